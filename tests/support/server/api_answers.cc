// SPDX-License-Identifier: Apache-2.0
#include "support/server/api_answers.h"

#include "base/strf.h"

namespace sparrow::test {
namespace {

constexpr std::string_view kNs = "]<]minimax[>[";

}  // namespace

std::string invoke(std::string_view name, std::string_view value) {
  return strf("{0}<invoke name=\"{1}\">{0}<n>{2}{0}</n>{0}<m>{2}x{0}</m>{0}</invoke>\n", kNs, name, value);
}

std::string call_block(const std::string& invokes) {
  return strf("{0}<tool_call>\n{1}{0}</tool_call>", kNs, invokes);
}

std::vector<SaidCase> said_cases() {
  const std::string think = "<mm:think>the lazy dog</mm:think>", bird = "fox \xf0\x9f\x90\xa6 dog";
  const std::string calls = call_block(invoke("f", "3") + invoke("g", "four") + invoke("f", "5"));
  return {
      {"Text", bird},
      {"ThoughtThenText", think + bird},
      {"ThoughtThenCalls", think + calls},
      {"ThoughtTextCalls", think + "the fox " + calls},
      {"TextBetweenCalls", calls + "and then " + calls + "the end"},
      {"CutOffInACall", think + calls.substr(0, 60), FinishReason::kLength},
      {"CutOffInAThought", "<mm:think>the lazy", FinishReason::kLength},
      {"CutOffInText", "the lazy", FinishReason::kLength},
      {"NothingButAnEnd", think},
  };
}

std::vector<TokenEvent> ApiAnswers::events(const SaidCase& said) const {
  const std::vector<int32_t> ids = tokenizer_.encode(said.text).value();
  std::vector<TokenEvent> out;
  for (size_t i = 0; i < ids.size(); ++i) {
    TokenEvent event{.id = ids[i]};
    event.cached_tokens = 3;
    if (i + 1 == ids.size()) event.finish = said.reason;
    out.push_back(std::move(event));
  }
  return out;
}

openai::Generation ApiAnswers::generation(const openai::Api& api, const std::string& body) {
  return openai::Generation(model_, openai::prepare(api, body, model_).value(), "r1");
}

std::string ApiAnswers::whole(const openai::Api& api, const std::string& body, const SaidCase& said) {
  openai::Generation answer = generation(api, "{" + body + said.more + "}");
  for (TokenEvent& event : events(said)) answer.take(std::move(event));
  EXPECT_TRUE(answer.finished());
  return answer.response();
}

std::string ApiAnswers::stream(const openai::Api& api, const std::string& body, const SaidCase& said,
                               const std::function<size_t()>& piece) {
  openai::Generation answer = generation(api, "{" + body + said.more + R"(,"stream":true})");
  std::string out;
  size_t left = piece();
  for (TokenEvent& event : events(said)) {
    answer.take(std::move(event));
    if (--left > 0) continue;
    answer.append_chunks(out);
    left = piece();
  }
  answer.append_chunks(out);
  EXPECT_TRUE(answer.finished());
  return out;
}

std::string ApiAnswers::prompt(const openai::Api& api, const std::string& body) {
  const auto prepared = openai::prepare(api, "{" + body + "}", model_);
  if (!prepared.ok()) return "error: " + prepared.error().message;
  return tokenizer_.decode(prepared.value()->request.prompts[0]).value();
}

Error ApiAnswers::error(const openai::Api& api, const std::string& body) {
  const auto prepared = openai::prepare(api, "{" + body + "}", model_);
  return prepared.ok() ? Error{Errc::kIo, "it was accepted"} : prepared.error();
}

std::vector<SseEvent> read_events(std::string_view stream) {
  std::vector<SseEvent> out;
  while (!stream.empty()) {
    const size_t end = stream.find("\n\n");
    if (end == stream.npos) ADD_FAILURE() << "an event without an end: " << stream;
    const std::string_view event = stream.substr(0, end);
    stream.remove_prefix(std::min(stream.size(), end + 2));
    if (event.starts_with(':')) continue;
    const size_t line = event.find("\ndata: ");
    if (!event.starts_with("event: ") || line == event.npos) {
      ADD_FAILURE() << "no event: " << event;
      continue;
    }
    const std::string type(event.substr(7, line - 7));
    JsonDocument data = JsonDocument::parse(event.substr(line + 7), "data").value();
    EXPECT_EQ(text_of(data.root(), "type"), type);
    out.push_back({type, std::move(data)});
  }
  return out;
}

std::string without_ids(std::string answer) {
  const size_t begin = answer.find("\"id\":\"") + 6, from = answer.find('_', begin) + 1;
  const std::string unique = answer.substr(from, answer.find('"', from) - from);
  for (size_t at = 0; (at = answer.find(unique, at)) != answer.npos;) answer.replace(at, unique.size(), "U");
  return answer;
}

std::string text_of(const Json& value, std::string_view key) {
  const auto found = value.find(key);
  return found ? std::string(found->string_view()) : "";
}

}  // namespace sparrow::test
