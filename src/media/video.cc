// SPDX-License-Identifier: Apache-2.0
#include "media/video.h"

#include <algorithm>
#include <cmath>

#include "base/strf.h"
#include "media/frame_list.h"
#include "media/patches.h"

namespace sparrow {
namespace {

constexpr double kSlack = 1e-4;  // seconds: frames are where rounding puts them

}  // namespace

std::vector<int64_t> sample_frames(int64_t total, double video_fps, double fps, int max_frames) {
  SPARROW_CHECK(total > 0 && video_fps > 0 && fps > 0 && max_frames > 1);
  std::vector<int64_t> kept{0};
  while (true) {
    const double due = std::ceil((double(kept.back()) / video_fps + 1 / fps - kSlack) * video_fps);
    if (!(due < double(total))) break;
    const int64_t next = std::max(kept.back() + 1, static_cast<int64_t>(due));
    if (next >= total) break;
    kept.push_back(next);
  }
  if (double(total - 1 - kept.back()) / video_fps > kSlack) kept.push_back(total - 1);
  const auto count = static_cast<int64_t>(kept.size());
  if (count <= max_frames) return kept;
  std::vector<int64_t> even;
  for (int64_t i = 0; i < max_frames - 1; ++i) even.push_back(kept[i * count / (max_frames - 1)]);
  even.push_back(kept.back());
  return even;
}

std::vector<double> patch_seconds(const Video& video) {
  std::vector<double> seconds;
  if (video.fps <= 0) return seconds;
  for (size_t i = 0; i < video.indices.size(); i += kFramesPerPatch)
    seconds.push_back(double(video.indices[i]) / video.fps);
  return seconds;
}

std::string seconds_text(double seconds) {
  return strf("{:.1f}", seconds);
}

Status FrameList::check(ImageSize resized, int64_t frames, const VideoRule& rule) {
  if (resized.pixels() * frames <= rule.max_pixels) return Ok{};
  return Error{Errc::kInvalidArgument,
               strf("{} frames of {} x {} pixels are too many: {} pixels in all is the limit", frames,
                    resized.width, resized.height, rule.max_pixels)};
}

Status FrameList::add(const Image& frame) {
  const size_t index = video_.frames.size();
  if (index == 0) {
    source_ = {frame.height, frame.width};
    size_ = SPARROW_TRY(smart_resize(frame.height, frame.width, rule_.frame));
  } else if (source_ != ImageSize{frame.height, frame.width}) {
    return Error{Errc::kInvalidArgument, strf("frame {} has {} x {} pixels, frame 0 {} x {}", index,
                                              frame.width, frame.height, source_.width, source_.height)};
  }
  SPARROW_TRY(check(size_, size() + 1, rule_));
  resize_bicubic(frame, size_, video_.frames.emplace_back());
  return Ok{};
}

Result<Video> video_of_files(std::span<const std::span<const std::byte>> files, const VideoRule& rule,
                             const DecodeLimits& limits) {
  if (files.empty()) return Error{Errc::kInvalidArgument, "a video must have at least one frame"};
  if (files.size() > static_cast<size_t>(rule.max_frames))
    return Error{Errc::kInvalidArgument,
                 strf("the video has {} frames; {} is the limit", files.size(), rule.max_frames)};
  FrameList frames(rule);
  for (size_t i = 0; i < files.size(); ++i) {
    const auto frame = decode_image(files[i], limits);
    if (!frame.ok()) return Error{frame.error().code, strf("frame {}: {}", i, frame.error().message)};
    SPARROW_TRY(frames.add(frame.value()));
  }
  return std::move(frames).take();
}

}  // namespace sparrow
