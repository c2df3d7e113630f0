// SPDX-License-Identifier: Apache-2.0
// Video: which frames of one the model sees, when they were, and the frames themselves, resized. They come as
// a list of image files, or out of a video file by the ffmpeg program, which runs as a child with limits.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <span>
#include <stop_token>
#include <string>
#include <vector>

#include "base/result.h"
#include "media/image.h"
#include "media/resize.h"

namespace sparrow {

struct VideoRule {
  SizeRule frame{.max_pixels = kMaxVideoPixels};
  double fps = 1.0;  // frames of a second that the model sees
  int max_frames = 768;
  int64_t max_pixels = 301'056'000;  // of all frames, resized; more is an error
};

struct Video {
  std::vector<Image> frames;  // of one size, by the rule
  // Of the file: its frames a second, and each frame's place in it. Without them there are no times.
  double fps = 0;
  std::vector<int64_t> indices;
};

// Frame 0, then each time the first that comes 1/fps after the last; the last frame of all as well. Where
// these are more than `max_frames`, so many of them, evenly. `total` and both rates are above zero,
// `max_frames` above one.
std::vector<int64_t> sample_frames(int64_t total, double video_fps, double fps, int max_frames);

// When each temporal patch begins, in seconds; empty without times.
std::vector<double> patch_seconds(const Video& video);
// "2.0", as prompts have it.
std::string seconds_text(double seconds);

// A list of image files as a video. They resize to one size; an error says which frame is at fault.
Result<Video> video_of_files(std::span<const std::span<const std::byte>> files, const VideoRule& rule,
                             const DecodeLimits& limits);

struct VideoLimits {
  size_t max_bytes = size_t{256} << 20;  // of the file
  int64_t max_frame_pixels = 3840 * 2160;
  int64_t max_source_frames = 200'000;
  std::chrono::milliseconds time{30'000};
  size_t memory = size_t{2} << 30;
  std::string ffmpeg = "ffmpeg";  // a path, or a name to look for in PATH
};

// What a video's caller has a say in while it is read.
struct VideoCaller {
  // Told the bytes that the frames and their patches will have, before any is decoded; an error ends it.
  std::function<Status(int64_t bytes)> reserve;
  std::stop_token stop;  // once asked for, ffmpeg ends at once, and the call with Errc::kStopped
};

// Frames of a video file. Without ffmpeg the error says what to install. Blocks for as long as the limits
// allow; any thread.
Result<Video> video_of_file(std::span<const std::byte> file, const VideoRule& rule, const VideoLimits& limits,
                            const VideoCaller& caller = {});

}  // namespace sparrow
