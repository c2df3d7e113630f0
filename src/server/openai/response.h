// SPDX-License-Identifier: Apache-2.0
// What answers look like on the wire: whole chat and text completions and their chunks, as OpenAI and vLLM
// write them.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/json/json_pieces.h"
#include "engine/request.h"
#include "text/output/output_parser.h"
#include "text/tokenizer/tokenizer.h"

namespace sparrow::openai {

struct Usage {
  int64_t prompt_tokens = 0, completion_tokens = 0, cached_tokens = 0, reasoning_tokens = 0;
};

// What all messages of one response have in common.
struct AnswerHead {
  std::string id;  // "chatcmpl-..." or "cmpl-..."
  int64_t created = 0;
  std::string model;
  std::string call_ids;  // what the ids of its tool calls begin with
  const Tokenizer* tokenizer = nullptr;
  // Of streams.
  bool include_usage = false;     // "usage" is there, null until the end
  bool continuous_usage = false;  // and has its value in every chunk
};

// What of the request ended an answer: "stop_reason" is the string, the id, or null.
struct StopReason {
  std::string_view text;  // empty: none
  std::optional<int32_t> id;
};

// A finished choice.
struct Choice {
  ParsedOutput output;
  std::string_view finish_reason;
  StopReason stop_reason;
  bool wants_logprobs = false;
  std::vector<TokenLogprobs> logprobs;
  bool wants_prompt_logprobs = false;
  // Borrowed: all choices of a prompt have the same.
  std::span<const TokenLogprobs> prompt_logprobs;
  // With return_token_ids, borrowed too.
  std::optional<std::span<const int32_t>> token_ids = {}, prompt_ids = {};
  // Of text completions with echo.
  std::string_view echoed_text;
  std::span<const int32_t> echoed_ids;
};

// Both borrow the head and the choices.
JsonPieces chat_response(const AnswerHead& head, std::span<const Choice> choices, const Usage& usage);
JsonPieces completion_response(const AnswerHead& head, std::span<const Choice> choices, const Usage& usage);

// One step of a stream. Calls are numbered through by the parser.
struct ChunkPart {
  int index = 0;
  bool first = false;  // of this choice: says the role
  std::span<const OutputDelta> deltas;
  std::span<const TokenLogprobs> logprobs;
  bool wants_logprobs = false;
  std::string_view finish_reason;  // empty: goes on
  StopReason stop_reason;
  // With return_token_ids.
  std::optional<std::span<const int32_t>> token_ids = {};
  std::optional<std::span<const int32_t>> prompt_ids = {};  // with the first chunk
  // Text completions.
  int64_t text_offset = 0;  // characters of the tokens before this chunk
  // With echo, the prompt goes before the first chunk's own text.
  std::string_view echoed_text = {};
  std::span<const int32_t> echoed_ids = {};
  std::span<const TokenLogprobs> prompt_logprobs = {};
};

// "data: {...}\n\n", several of them where one message cannot hold the deltas.
void append_chat_chunks(std::string& out, const AnswerHead& head, ChunkPart part, const Usage& usage);
// Returns the text_offset of the chunk after this one.
int64_t append_completion_chunk(std::string& out, const AnswerHead& head, const ChunkPart& part,
                                const Usage& usage);
// The chunk that only says the usage.
void append_usage_chunk(std::string& out, const AnswerHead& head, bool chat, const Usage& usage);
void append_event(std::string& out, std::string_view json);
inline constexpr std::string_view kDoneEvent = "data: [DONE]\n\n";

}  // namespace sparrow::openai
