// SPDX-License-Identifier: Apache-2.0
// Requests of any API and answers that a test dictates: whole, or as a stream of any chunking.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/json/json.h"
#include "server/openai/generation.h"
#include "support/server/openai_requests.h"

namespace sparrow::test {

// What the model says, in M3's own syntax.
std::string invoke(std::string_view name, std::string_view value);
std::string call_block(const std::string& invokes);

struct SaidCase {
  const char* name;
  std::string text;
  FinishReason reason = FinishReason::kStop;
  std::string more = "";  // fields of the request

  friend void PrintTo(const SaidCase& it, std::ostream* out) { *out << it.name; }
};
// Thoughts, texts, calls, and what comes of them when they are cut off.
std::vector<SaidCase> said_cases();

class ApiAnswers : public openai::OpenAiRequests {
 protected:
  // The text as the engine would send it.
  std::vector<TokenEvent> events(const SaidCase& said) const;
  openai::Generation generation(const openai::Api& api, const std::string& body);
  std::string whole(const openai::Api& api, const std::string& body, const SaidCase& said);
  // `piece` tells how many events come before the next write.
  std::string stream(const openai::Api& api, const std::string& body, const SaidCase& said,
                     const std::function<size_t()>& piece);
  // The messages of the chat that the engine would get, as text.
  std::string prompt(const openai::Api& api, const std::string& body);
  Error error(const openai::Api& api, const std::string& body);
};

// One event of a stream that names its events twice.
struct SseEvent {
  std::string type;
  JsonDocument data;
};
std::vector<SseEvent> read_events(std::string_view stream);

// The answer with its random part replaced, so that two can be compared.
std::string without_ids(std::string answer);

std::string text_of(const Json& value, std::string_view key);

}  // namespace sparrow::test
