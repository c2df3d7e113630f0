// SPDX-License-Identifier: Apache-2.0
// PictureDecoder: bytes of a stranger -> a picture in the size that the model sees. The header is read here,
// where nothing is decoded; all else is done by workers.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "base/result.h"
#include "media/image.h"
#include "media/media_bytes.h"
#include "media/resize.h"
#include "media/sandbox/media_workers.h"

namespace sparrow {

// For workers that decode pictures within these limits.
MediaWorkersOptions picture_worker_options(const DecodeLimits& limits, const SizeRule& largest, int workers);

class PictureDecoder {
 public:
  PictureDecoder(MediaWorkers& workers, const DecodeLimits& limits) : workers_(workers), limits_(limits) {}

  using Done = std::function<void(Result<Image>)>;
  // Any thread. Errors at once: no picture, one over the limits, a full queue (kBusy). Else `done` is called
  // once, on the workers' thread; it must not wait, nor throw. The number is for MediaWorkers::cancel().
  Result<uint64_t> submit(const std::string& owner, MediaBytes file, const SizeRule& rule, Done done);

 private:
  MediaWorkers& workers_;
  DecodeLimits limits_;
};

}  // namespace sparrow
