// SPDX-License-Identifier: Apache-2.0
#include "server/media/media_input.h"

#include <utility>

#include "media/patches.h"

namespace sparrow {
namespace {

PatchGrid patches_of(const LoadedMedium& medium) {
  const Image& first = medium.video.frames[0];
  return grid_of(ImageSize{.height = first.height, .width = first.width}, std::ssize(medium.video.frames));
}

}  // namespace

std::vector<MediumText> texts_of(std::span<const LoadedMedium> media) {
  std::vector<MediumText> texts;
  for (const LoadedMedium& medium : media) {
    const PatchGrid grid = patches_of(medium);
    MediumText text{.is_video = medium.is_video, .tokens = tokens_of(grid) / grid.t, .patches = grid.t};
    if (medium.is_video)
      for (const double seconds : patch_seconds(medium.video)) text.seconds.push_back(seconds_text(seconds));
    texts.push_back(std::move(text));
  }
  return texts;
}

int64_t frame_bytes(std::span<const LoadedMedium> media) {
  int64_t bytes = 0;
  for (const LoadedMedium& medium : media)
    for (const Image& frame : medium.video.frames) bytes += std::ssize(frame.rgb);
  return bytes;
}

std::vector<RequestMedium> to_request_media(std::vector<LoadedMedium> media) {
  std::vector<RequestMedium> result;
  for (LoadedMedium& medium : media) {
    MediaPatches patches = patches_of_frames(medium.video.frames);
    medium.video.frames.clear();
    result.push_back({.grid = patches.grid,
                      .patches = std::make_shared<const std::vector<float>>(std::move(patches.rows)),
                      .digest = medium.digest});
  }
  return result;
}

}  // namespace sparrow
