// SPDX-License-Identifier: Apache-2.0
// Parts of messages that are pictures or videos: what a request says of them, held against what the server
// allows. Nothing is fetched or decoded here.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json/json.h"
#include "base/result.h"
#include "media/options.h"

namespace sparrow {

// What a server takes.
struct MediaSettings {
  int max_images = 8, max_videos = 1;            // of a request; a list of frames is one video
  size_t max_request_bytes = size_t{128} << 20;  // of the files that come with a request
  size_t cache_bytes = size_t{256} << 20;        // of pictures that were decoded before
  MediaLimits limits;
};

// A picture or a video as it was asked for.
struct MediaSource {
  bool is_video = false;
  bool is_frame_list = false;
  std::vector<std::string> urls;    // one, but of a list of frames
  std::vector<std::string> fields;  // where each stands in the request: errors name it
  SizeRule image;                   // of an image
  VideoRule video;
  // Of a list of frames: when each was. 0: not known.
  double frame_rate = 0;
  std::vector<int64_t> frame_indices;
};

// Whether a part of that type is one.
bool is_media_part(std::string_view type);

// All of them, in the order of the prompt. `kwargs`: what the request says of all (mm_processor_kwargs).
// `settings` nullptr: there must be none, because of `refusal`.
Result<std::vector<MediaSource>> read_media_parts(const Json& messages, const std::optional<Json>& kwargs,
                                                  const MediaSettings* settings, std::string_view refusal);

}  // namespace sparrow
