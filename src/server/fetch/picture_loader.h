// SPDX-License-Identifier: Apache-2.0
// PictureLoader: the pictures of one request, from wherever they are to pixels in the size that the model
// sees; all at the same time. The first one that fails ends the others.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "base/result.h"
#include "media/image.h"
#include "media/media_bytes.h"
#include "media/picture/picture_decoder.h"
#include "media/resize.h"
#include "server/byte_budget.h"
#include "server/fetch/media_fetcher.h"
#include "server/media/picture_cache.h"
#include "server/media/sha256.h"

namespace sparrow {

struct PictureSource {
  std::variant<std::string, MediaBytes> from;  // a URL of any kind, or the file itself
  SizeRule rule;
  std::string field;  // of the request: errors name it
};

// A picture in the size that the model sees, and what its file is known by.
struct LoadedPicture {
  Image image;
  Sha256Digest file{};
  ByteBudget::Share memory;  // that it takes from here to the model
};

struct PictureLimits {
  int pictures = 8;                       // of a request
  size_t all_bytes = size_t{128} << 20;   // of their files together, as far as they came with the request
  int64_t all_pixels = int64_t{1} << 28;  // of them together, as the model sees them
  DecodeLimits decode;                    // of each
};

// What loads share. Null: everything is decoded; memory is not counted.
struct PictureStores {
  PictureCache* cache = nullptr;
  ByteBudget* memory = nullptr;
};

// Pictures on their way. Destroyed: nobody waits for them any more.
class PictureLoad;

class PictureLoader {
 public:
  // All of them outlive the loader, and all that it has begun.
  PictureLoader(MediaWorkers& workers, MediaFetcher& fetcher, const PictureLimits& limits,
                PictureStores stores = {})
      : workers_(workers), fetcher_(fetcher), limits_(limits), stores_(stores) {}

  using Done = std::function<void(Result<std::vector<LoadedPicture>>)>;
  // Any thread. Data URLs are decoded here. Errors at once: too many, a source that is refused, full queues
  // (kBusy). Else `done` is called once, on a thread of workers or fetcher or, where all was cached, on this
  // one, unless the load is destroyed before. It must not wait, nor throw, nor destroy the load, and owns
  // what it touches: it may run while the load is being destroyed. What is cached is found again by the same
  // `salt` alone.
  Result<std::shared_ptr<PictureLoad>> load(const std::string& key, std::vector<PictureSource> sources,
                                            Done done, std::string salt = "") const;

 private:
  MediaWorkers& workers_;
  MediaFetcher& fetcher_;
  const PictureLimits limits_;
  const PictureStores stores_;
};

}  // namespace sparrow
