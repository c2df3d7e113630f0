// SPDX-License-Identifier: Apache-2.0
#include "media/picture/picture_decoder.h"

#include <algorithm>
#include <utility>

#include "media/picture/picture_work.h"

namespace sparrow {
namespace {

// Decoders and the resize, for each pixel of the file, and what comes on top of that.
constexpr int64_t kBytesPerPixel = 18, kMoreBytes = int64_t{128} << 20;
constexpr size_t kOptionBytes = 64;
// Above all screens. What is larger may take seconds.
constexpr uint64_t kLargePixels = uint64_t{8} << 20;

// Generous: a processor that has nothing else to do takes a small part of it.
std::chrono::milliseconds time_for(int64_t pixels) {
  return std::chrono::milliseconds(1000 + pixels / 4000);
}

}  // namespace

MediaWorkersOptions picture_worker_options(const DecodeLimits& limits, const SizeRule& largest, int workers) {
  const int64_t pixels =
      std::max(largest.max_pixels, largest.max_long_side ? largest.max_long_side_pixels : 0);
  return {.workers = workers,
          .max_input_bytes = limits.max_bytes + kOptionBytes,
          .max_output_bytes = static_cast<size_t>(pixels) * 3,
          .memory_bytes = static_cast<size_t>(limits.max_pixels * kBytesPerPixel + pixels * 6 + kMoreBytes),
          .large_cost = kLargePixels};
}

Result<uint64_t> PictureDecoder::submit(const std::string& owner, MediaBytes file, const SizeRule& rule,
                                        Done done) {
  const ImageHeader header = SPARROW_TRY(admit_image(file, limits_));
  const PictureTask task{.size = SPARROW_TRY(smart_resize(header.height, header.width, rule)),
                         .limits = limits_};
  const int64_t pixels = int64_t{header.height} * header.width;
  MediaJob job{.owner = owner,
               .options = options_of(task),
               .bytes = std::move(file),
               .max_output_bytes = task.output_bytes(),
               .time_limit = time_for(pixels),
               .cost = static_cast<uint64_t>(pixels),
               .done = [task, done = std::move(done)](Result<MediaBytes> output) {
                 done(output.ok() ? picture_of(output.value(), task) : Result<Image>(output.error()));
               }};
  return workers_.submit(std::move(job));
}

}  // namespace sparrow
