// SPDX-License-Identifier: Apache-2.0
// Media in a prompt: what a chat template leaves for an image or a video, one marker each, becomes as many
// placeholders as the medium has tokens, between the tokens for its start and end.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "text/prompt_text.h"

namespace sparrow {

struct MediumText {
  bool is_video = false;
  int64_t tokens = 0;                // of an image, or of each temporal patch
  int64_t patches = 1;               // temporal ones of a video, each between tokens of its own
  std::vector<std::string> seconds;  // when each of these is, as written before it; empty: not known
};

// The media in the order of their markers. Only markup has markers: what a message says stays text. Error:
// there are more or fewer of them, or of another kind.
Result<PromptText> expand_media(const PromptText& prompt, std::span<const MediumText> media);

}  // namespace sparrow
