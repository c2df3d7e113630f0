// SPDX-License-Identifier: Apache-2.0
// A chat with images and clips in files, as `trace` takes it: its prompt and its media, ready to run.
#pragma once

#include <filesystem>
#include <span>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "config/config.h"
#include "engine/media/request_media.h"

namespace sparrow::cli {

struct MediaChat {
  std::vector<int32_t> ids;  // placeholders expanded
  std::vector<RequestMedium> media;
};

// `file` holds a JSON array of messages, which the model's chat template gets as they are. Parts of their
// content are {"type": "text", "text"}, {"type": "image", "image": PATH} and {"type": "video", "video":
// [PATHS of frames], "fps", "frames_indices"}; paths are relative to the file.
Result<MediaChat> read_media_chat(const std::filesystem::path& file, const std::filesystem::path& model,
                                  const ModelConfig& config);

// A user's message: images, then a text.
Result<MediaChat> ask_about_images(std::span<const std::filesystem::path> images, std::string_view text,
                                   const std::filesystem::path& model, const ModelConfig& config);

}  // namespace sparrow::cli
