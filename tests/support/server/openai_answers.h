// SPDX-License-Identifier: Apache-2.0
// What an answer says, read from its JSON: the same for a whole answer and for what the chunks of a stream
// add up to, so that the two can be compared.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/json/json.h"

namespace sparrow::test {

struct ReadCall {
  std::string id, name, arguments;
  // Ids are random.
  bool operator==(const ReadCall& other) const { return name == other.name && arguments == other.arguments; }
};

struct ReadChoice {
  std::string reasoning, content;  // the text of a text completion is its content
  std::vector<ReadCall> calls;
  std::vector<std::string> logprobs;  // one entry for each token, as JSON
  std::string finish_reason, stop_reason;
  bool operator==(const ReadChoice&) const = default;
};

struct ReadAnswer {
  std::map<int64_t, ReadChoice> choices;  // by index
  std::string usage;                      // as JSON
  bool operator==(const ReadAnswer&) const = default;
};
void PrintTo(const ReadAnswer& answer, std::ostream* out);

// All of a value, as JSON.
std::string json_text(const Json& value);

// Fails the test where the answer is not what a client could read: no JSON, a call without a name, a role
// that is said twice.
ReadAnswer read_whole(std::string_view body);
ReadAnswer read_stream(std::string_view events);

}  // namespace sparrow::test
