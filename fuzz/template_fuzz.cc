// SPDX-License-Identifier: Apache-2.0
// A chat template, a zero byte, and a request as JSON: whatever they are, the template renders or is refused.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "text/chat_template.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace sparrow;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const size_t zero = text.find('\0');
  const std::string_view request =
      zero == std::string_view::npos ? std::string_view("{}") : text.substr(zero + 1);
  const auto parsed = ChatTemplate::parse(text.substr(0, zero));
  const auto document = JsonDocument::parse(request, "request");
  if (!parsed.ok() || !document.ok()) return 0;
  const Json root = document->root();
  const auto messages = root.at("messages");
  ChatInput input{.messages = messages.ok() ? messages.value() : root};
  input.tools = root.find("tools");
  input.kwargs = root.find("kwargs");
  input.limits = {.max_steps = 100'000, .max_output = 1 << 20, .max_memory = 16 << 20};
  for (const auto form : {ChatInput::Form::kOpenAi, ChatInput::Form::kTemplate}) {
    for (const bool continues : {false, true}) {
      input.form = form;
      input.add_generation_prompt = !continues;
      input.continue_final_message = continues;
      const auto prompt = parsed->render(input);
      if (!prompt.ok()) continue;
      size_t done = 0;
      for (const TextRange& range : prompt->markup) {
        SPARROW_CHECK(done <= range.start && range.start < range.end);
        done = range.end;
      }
      SPARROW_CHECK(done <= prompt->text.size());
    }
  }
  return 0;
}
