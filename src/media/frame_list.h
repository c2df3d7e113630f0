// SPDX-License-Identifier: Apache-2.0
// FrameList: frames of a video as they come, each resized at once. The first one decides the size.
#pragma once

#include <utility>

#include "media/video.h"

namespace sparrow {

class FrameList {
 public:
  explicit FrameList(const VideoRule& rule) : rule_(rule) {}

  // Whether so many frames of this size, resized, are within the rule.
  static Status check(ImageSize resized, int64_t frames, const VideoRule& rule);

  Status add(const Image& frame);
  int64_t size() const { return static_cast<int64_t>(video_.frames.size()); }
  Video take() && { return std::move(video_); }

 private:
  VideoRule rule_;
  ImageSize source_, size_;
  Video video_;
};

}  // namespace sparrow
