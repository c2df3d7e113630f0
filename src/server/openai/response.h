// SPDX-License-Identifier: Apache-2.0
// What answers look like on the wire: whole chat and text completions and their chunks, as OpenAI and vLLM
// write them.
#pragma once

#include <memory>

#include "server/api/writer.h"

namespace sparrow::openai {

// What a stream says of its usage.
struct UsageOptions {
  bool included = false;    // "usage" is there, null until the end
  bool continuous = false;  // and has its value in every chunk
};

std::unique_ptr<AnswerWriter> make_chat_writer(UsageOptions usage);
std::unique_ptr<AnswerWriter> make_completion_writer(UsageOptions usage);

}  // namespace sparrow::openai
