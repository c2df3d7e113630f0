// SPDX-License-Identifier: Apache-2.0
// Images and video of `sparrow serve`: the processes and threads that its flags ask for.
#pragma once

#include <memory>

#include "base/result.h"
#include "cli/serve/media_flags.h"
#include "config/config.h"
#include "engine/engine.h"
#include "server/openai/prepare.h"

namespace sparrow::cli {

// What the flags allow. Error: one of them makes no sense.
Result<MediaSettings> media_settings(const MediaFlags& flags);

// What decodes. It outlives the service.
class ServeMedia {
 public:
  // Where the engine takes no images nothing is started, and served() says why.
  static Result<std::unique_ptr<ServeMedia>> start(const MediaFlags& flags, const ModelConfig& config,
                                                   const Engine& engine);

  const openai::ServedMedia& served() const { return served_; }
  // Nobody waits for a video that is still being read.
  void stop() {
    if (loader_) loader_->stop();
  }

 private:
  std::unique_ptr<MediaLoader> loader_;  // outlives the threads of the other two
  std::unique_ptr<MediaWorkers> workers_;
  std::unique_ptr<MediaFetcher> fetcher_;
  openai::ServedMedia served_;
};

}  // namespace sparrow::cli
