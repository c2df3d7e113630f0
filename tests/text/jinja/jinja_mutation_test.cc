// SPDX-License-Identifier: Apache-2.0
// Ten thousand damaged templates and inputs: each renders or is refused, in bounded time. Worth most under
// AddressSanitizer.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <random>

#include "base/files/mapped_file.h"
#include "text/chat_template.h"

namespace sparrow {
namespace {

const std::filesystem::path kFolder = std::filesystem::path(SPARROW_GOLDEN_DIR) / "jinja";

// Pieces that are likely to mean something where they land.
constexpr std::string_view kPieces[] = {"{{",
                                        "}}",
                                        "{%",
                                        "%}",
                                        "{#",
                                        "#}",
                                        "{%-",
                                        "-%}",
                                        " if ",
                                        " else ",
                                        "{% endif %}",
                                        "{% endfor %}",
                                        "{% for x in messages %}",
                                        "{% set x = ",
                                        "{% macro m(a) %}",
                                        "{% endmacro %}",
                                        "m(m)",
                                        "|tojson",
                                        "|join",
                                        "|sort",
                                        "|map(attribute='role')",
                                        "|selectattr('role')",
                                        "|batch(2)",
                                        "|int",
                                        "|format(1, 2)",
                                        ".items()",
                                        ".split('a')",
                                        "[1:]",
                                        "[::-1]",
                                        "[-1]",
                                        "(",
                                        ")",
                                        "[",
                                        "]",
                                        "{",
                                        "}",
                                        "'",
                                        "\"",
                                        "\\",
                                        "~",
                                        " is defined",
                                        " in ",
                                        " not ",
                                        "messages",
                                        "tools",
                                        "loop",
                                        "loop.index",
                                        "none",
                                        "true",
                                        "1",
                                        "-9223372036854775808",
                                        "1e308",
                                        "'%s'",
                                        "** 99",
                                        "* 999999",
                                        "namespace(a=1)",
                                        "range(99999)",
                                        "\n",
                                        "\xc3\xa9",
                                        "\xf0\x9f\x98\x80",
                                        "\xff",
                                        "caller()",
                                        "{% call m(1) %}",
                                        "{% endcall %}",
                                        "{% raw %}",
                                        "{% endraw %}",
                                        "{% break %}",
                                        "{% generation %}",
                                        "recursive"};

class Mutator {
 public:
  explicit Mutator(uint32_t seed) : random_(seed) {}

  size_t below(size_t n) { return n == 0 ? 0 : random_() % n; }

  std::string damaged(std::string text) {
    for (size_t n = 1 + below(4); n > 0; --n) {
      const size_t at = below(text.size() + 1);
      switch (below(5)) {
        case 0:
          text.insert(at, kPieces[below(std::size(kPieces))]);
          break;
        case 1:
          text.erase(at, below(12));
          break;
        case 2:
          text.insert(at, text.substr(below(text.size() + 1), below(200)));
          break;
        case 3:
          if (at < text.size()) text[at] = static_cast<char>(random_());
          break;
        default:
          text.replace(at, below(6), kPieces[below(std::size(kPieces))]);
          break;
      }
    }
    return text;
  }

 private:
  std::mt19937 random_;
};

std::vector<std::string> template_sources() {
  std::vector<std::string> sources;
  for (const auto& entry : std::filesystem::directory_iterator(kFolder / "templates"))
    sources.push_back(read_text_file(entry.path(), 1 << 20).value());
  std::sort(sources.begin(), sources.end());  // the folder's order is the file system's
  const std::string text = read_text_file(kFolder / "cases.json", 16 << 20).value();
  const JsonDocument document = JsonDocument::parse(text, "cases").value();
  const Json cases = document.root().at("cases").value();
  for (size_t i = 0; i < cases.size(); ++i)
    if (const auto source = cases.element(i).find("template")) sources.push_back(source->as_string().value());
  return sources;
}

// Its texts hold a letter that no template has.
constexpr std::string_view kForeign = "ø";
constexpr std::string_view kRequest =
    R"({"messages": [{"role": "system", "content": "Sø"}, {"role": "user", "content":
    [{"type": "text", "text": "éø"}, {"type": "image_url", "image_url": {"url": "u"}}]}, {"role": "assistant", "content":
    null, "tool_calls": [{"id": "a", "type": "function", "function": {"name": "f", "arguments":
    "{\"a\": [1, 2.5, null, {\"bø\": \"vø\"}]}"}}]}, {"role": "tool", "content": "rø", "tool_call_id": "a"},
    {"role": "assistant", "content": "doneø", "reasoning_content": "whyø"}], "tools": [{"type": "function", "function":
    {"name": "f", "description": "dø", "parameters": {"type": "object", "properties": {"a": {"type": "array"}}}}}],
    "kwargs": {"bos_token": "<sø>", "eos_token": "</s>", "enable_thinking": true, "n": 18446744073709551615}})";

// Whether the damaged pair got as far as a prompt.
bool try_render(const std::string& source, const std::string& request, bool openai, bool continues) {
  const auto parsed = ChatTemplate::parse(source);
  const auto document = JsonDocument::parse(request, "request");
  if (!parsed.ok() || !document.ok()) return false;
  const auto messages = document->root().at("messages");
  if (!messages.ok()) return false;
  ChatInput input{.messages = messages.value()};
  input.form = openai ? ChatInput::Form::kOpenAi : ChatInput::Form::kTemplate;
  input.tools = document->root().find("tools");
  input.kwargs = document->root().find("kwargs");
  input.add_generation_prompt = !continues;
  input.continue_final_message = continues;
  input.limits = {.max_steps = 200'000, .max_output = 1 << 20, .max_memory = 16 << 20};
  const Result<PromptText> prompt = parsed->render(input);
  EXPECT_TRUE(prompt.ok() || !prompt.error().message.empty());
  if (!prompt.ok() || source.find(kForeign) != std::string::npos) return prompt.ok();
  for (const TextRange& range : prompt->markup) {
    EXPECT_LE(range.end, prompt->text.size());
    const std::string_view markup(prompt->text.data() + range.start, range.end - range.start);
    EXPECT_EQ(markup.find(kForeign), std::string_view::npos)
        << "of the request, not of the template: " << markup;
  }
  return true;
}

TEST(JinjaMutation, TenThousandDamagedTemplatesAndInputsNeitherCrashNorHang) {
  const std::vector<std::string> sources = template_sources();
  ASSERT_GT(sources.size(), 100u);
  Mutator mutator(20261115);
  int rendered = 0;
  for (int i = 0; i < 10'000; ++i) {
    std::string source = sources[mutator.below(sources.size())];
    if (mutator.below(4) > 0) source = mutator.damaged(std::move(source));
    std::string request(kRequest);
    if (mutator.below(3) == 0) request = mutator.damaged(std::move(request));
    const bool openai = mutator.below(2) == 0, continues = mutator.below(8) == 0;
    SCOPED_TRACE(source);
    const auto start = std::chrono::steady_clock::now();
    rendered += try_render(source, request, openai, continues) ? 1 : 0;
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    // Generous: sanitizers slow a rendering down, and the machine may be busy.
    ASSERT_LT(took.count(), 10.0);
  }
  // Both sides of the fence must be met often for this to mean anything.
  EXPECT_GT(rendered, 1500);
  EXPECT_LT(rendered, 8500);
}

}  // namespace
}  // namespace sparrow
