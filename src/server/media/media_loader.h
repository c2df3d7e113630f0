// SPDX-License-Identifier: Apache-2.0
// MediaLoader: the pictures and videos of a request -> frames in the sizes that the model sees. Pictures are
// decoded by workers that can do nothing else, all of a request at the same time; videos by ffmpeg, on
// threads that do nothing else. The first one that fails ends the others.
#pragma once

#include <functional>
#include <memory>
#include <stop_token>
#include <string>
#include <vector>

#include "base/result.h"
#include "media/video.h"
#include "server/byte_budget.h"
#include "server/fetch/picture_loader.h"
#include "server/media/media_parts.h"
#include "server/media/sha256.h"
#include "server/work_queue.h"

namespace sparrow {

struct LoadedMedium {
  bool is_video = false;
  Video video;                            // of an image: one frame
  Sha256Digest digest{};                  // of the bytes that it was made of, and of how
  std::vector<ByteBudget::Share> memory;  // that it takes from here to the model
};

// Media on their way. Destroyed: nobody waits for them any more.
class MediaLoad;

class MediaLoader {
 public:
  // Both outlive all that the loader has begun, and end before it does: their threads call it. `memory`: of
  // the media of all requests under way.
  MediaLoader(MediaWorkers& workers, MediaFetcher& fetcher, const MediaSettings& settings, int64_t memory);
  ~MediaLoader() { stop(); }

  // Videos that are under way, or come later, end at once with an error of kind kStopped. Any thread.
  void stop() { stop_.request_stop(); }

  const MediaSettings& settings() const { return settings_; }
  ByteBudget& memory() { return memory_; }  // for tests

  using Done = std::function<void(Result<std::vector<LoadedMedium>>)>;
  // Any thread but those that must not wait: what came with the request is decoded from base64 here. Errors
  // at once, or `done` is called once, on another thread, unless the load is destroyed before. It must not
  // wait, nor throw, nor destroy the load, and owns what it touches. What is cached is found again by the
  // same `salt` alone.
  Result<std::shared_ptr<MediaLoad>> load(const std::string& key, const std::string& salt,
                                          std::vector<MediaSource> sources, Done done);

 private:
  MediaFetcher& fetcher_;
  const MediaSettings settings_;
  ByteBudget memory_;
  PictureCache cache_;
  PictureLoader pictures_;
  std::stop_source stop_;
  WorkQueue videos_;
};

}  // namespace sparrow
