// SPDX-License-Identifier: Apache-2.0
// From the frames of media to what a prompt says of them and what the engine is given.
#pragma once

#include <span>
#include <vector>

#include "base/result.h"
#include "engine/request.h"
#include "server/media/media_loader.h"
#include "text/media_prompt.h"

namespace sparrow {

// How many placeholders each has.
std::vector<MediumText> texts_of(std::span<const LoadedMedium> media);

// What their frames have.
int64_t frame_bytes(std::span<const LoadedMedium> media);

// The media with their patches, not placed yet. Frames are dropped on the way.
std::vector<RequestMedium> to_request_media(std::vector<LoadedMedium> media);

}  // namespace sparrow
