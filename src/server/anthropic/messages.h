// SPDX-License-Identifier: Apache-2.0
// Anthropic's Messages API: a request is translated into a chat, its answer is written as content blocks.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "server/api/writer.h"
#include "server/openai/prepare.h"

namespace sparrow::anthropic {

extern const openai::Api kMessagesApi, kCountApi;

std::unique_ptr<AnswerWriter> make_writer();

// Stands for the input of a call that was cut off: the text of it under this name, so that nobody can take
// half a command for a whole one.
inline constexpr std::string_view kInvalidJson = "INVALID_JSON";

}  // namespace sparrow::anthropic
