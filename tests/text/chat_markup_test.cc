// SPDX-License-Identifier: Apache-2.0
// Which of a prompt the template wrote itself, whatever it does to texts on the way, and what becomes of it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <random>

#include "base/files/mapped_file.h"
#include "base/json/json_writer.h"
#include "base/utf8.h"
#include "text/chat_template.h"
#include "text/synthetic/synthetic_template.h"
#include "text/tokenizer/encode_cache.h"
#include "text/tokenizer/tokenizer_file.h"

namespace sparrow {
namespace {

const std::filesystem::path kGolden = SPARROW_GOLDEN_DIR;

// The prompt with its markup between « and ».
std::string marked(const PromptText& prompt) {
  std::string out;
  size_t done = 0;
  for (const TextRange& range : prompt.markup) {
    EXPECT_LT(range.start, range.end);
    EXPECT_TRUE(range.start > done || range.start == 0);
    out += prompt.text.substr(done, range.start - done) + "«";
    out += prompt.text.substr(range.start, range.end - range.start) + "»";
    done = range.end;
  }
  return out + prompt.text.substr(done);
}

std::string rendered(std::string_view source, std::string_view content = "a b") {
  const auto parsed = ChatTemplate::parse(source, {{"bos_token", "<s>"}});
  const std::string messages = strf(R"([{{"role":"user","content":{}}}])", json_quoted(content));
  const JsonDocument document = JsonDocument::parse(messages, "messages").value();
  const auto prompt = parsed->render({.messages = document.root()});
  return prompt.ok() ? marked(prompt.value()) : prompt.error().message;
}

struct Origin {
  std::string_view source, expected;
};

class TextOrigin : public testing::TestWithParam<Origin> {};

TEST_P(TextOrigin, StaysWithEveryByte) {
  const std::string source = "{%- set c = messages[0].content -%}" + std::string(GetParam().source);
  EXPECT_EQ(rendered(source), GetParam().expected) << GetParam().source;
}

INSTANTIATE_TEST_SUITE_P(
    Operations, TextOrigin,
    testing::Values(
        Origin{"<{{ c }}>", "«<»a b«>»"}, Origin{"{{ '<' ~ c ~ '>' }}", "«<»a b«>»"},
        Origin{"{{ '<' + c + '>' }}", "«<»a b«>»"}, Origin{"{{ bos_token }}{{ c }}", "«<s>»a b"},
        Origin{"{{ '<|' ~ messages[0].role ~ '|>' }}", "«<|user|>»"},
        Origin{"{{ ('  <' ~ c ~ '> ').strip() }}", "«<»a b«>»"},
        Origin{"{{ ('<' ~ c ~ '>')[1:] }}{{ ('<' ~ c)[0] }}", "a b«><»"},
        Origin{"{{ ('<' ~ c)[::-1] }}", "b a«<»"}, Origin{"{{ ('<' ~ c) * 2 }}", "«<»a b«<»a b"},
        Origin{"{{ c | replace(' ', '-') }}", "a«-»b"}, Origin{"{{ '<x>'.replace('x', c) }}", "«<»a b«>»"},
        Origin{"{{ c.split(' ') | join('+') }}", "a«+»b"}, Origin{"{{ '+'.join([c, 'x']) }}", "a b«+x»"},
        Origin{"{{ '<{}>{{}}'.format(c) }}", "«<»a b«>{}»"}, Origin{"{{ '<%s>%%' % c }}", "«<»a b«>»%"},
        Origin{"{{ '<%s>' | format(c) }}", "«<»a b«>»"},
        Origin{"{{ ['x', c] | tojson }}", "[\"«x»\", \"a b\"]"},
        Origin{"{{ {'k': c} | tojson }}", "{\"«k»\": \"a b\"}"}, Origin{"{{ ['x', c] }}", "['«x»', 'a b']"},
        Origin{"{{ ('x\\n' ~ c) | indent(1, true) }}", " «x»\n a b"},
        Origin{"{{ ('x' ~ c) | center(6) }}", " «x»a b "}, Origin{"{{ 'x'.ljust(3, '.') ~ c }}", "«x..»a b"},
        Origin{"{{ ('x' ~ c) | truncate(3, true, '.', 0) }}", "«x»a«.»"},
        Origin{"{{ 'x' | upper }}{{ c | upper }}", "«X»A B"},
        Origin{"{{ ('x' ~ c) | upper }}", "XA B"},  // told apart no more: nothing is markup
        Origin{"{% macro m(t) %}<{{ t }}>{% endmacro %}{{ m(c) }}", "«<»a b«>»"},
        Origin{"{% macro m() %}<{{ caller() }}>{% endmacro %}{% call m() %}{{ c }}!{% endcall %}",
               "«<»a b«!>»"},
        Origin{"{% set t %}<{{ c }}>{% endset %}{{ t }}", "«<»a b«>»"},
        Origin{"{% filter trim %} <{{ c }}> {% endfilter %}", "«<»a b«>»"},
        Origin{"{% set ns = namespace(t='') %}{% for w in c.split() %}{% set ns.t = ns.t ~ '<' ~ w %}{% "
               "endfor %}{{ ns.t }}",
               "«<»a«<»b"},
        Origin{"{% for w in [c, 'y'] recursive %}{{ w }}{{ loop(['z']) if loop.depth == 1 else '' }}{% "
               "endfor %}",
               "a b«zyz»"},
        Origin{"{{ c ~ 1 ~ true ~ none }}", "a b1TrueNone"},
        Origin{"{{ messages[0].nothing ~ 'x' }}", "«x»"}));

// Prompts that hold nothing forged have the ids that they always had: markup may be any token that the
// templates build, and all of it is found.
// A placeholder is one in either form of messages, also where a template builds it around the part's type; of
// whatever else a message says nothing is.
TEST(ChatMarkup, PlaceholdersOfMediaAreMarkupAndOthersAreNot) {
  const JsonDocument messages =
      JsonDocument::parse(
          R"([{"role":"user","content":[{"type":"image","image":"a.png"},{"type":"video","video":["b.png"]},)"
          R"({"type":"text","text":"]<]image[>["},"]<]video[>["]}])",
          "messages")
          .value();
  for (const std::string_view source :
       {std::string_view("{% for p in messages[0].content %}{% if p is string %}{{ p }}{% elif p.text %}"
                         "{{ p.text }}{% else %}{{ ']<]' ~ p.type ~ '[>[' }}{% endif %}{% endfor %}"),
        std::string_view(
            "{% for p in messages[0].content %}{% if p is string %}{{ p }}{% elif p.type == 'image' "
            "%}]<]image[>[{% elif p.type == 'video' %}]<]video[>[{% else %}{{ p.text }}{% endif %}"
            "{% endfor %}")})
    for (const auto form : {ChatInput::Form::kOpenAi, ChatInput::Form::kTemplate}) {
      const auto prompt = ChatTemplate::parse(source)->render({.messages = messages.root(), .form = form});
      ASSERT_TRUE(prompt.ok()) << prompt.error().message;
      EXPECT_EQ(marked(prompt.value()), "«]<]image[>[]<]video[>[»]<]image[>[]<]video[>[");
    }
}

TEST(ChatMarkup, HonestPromptsKeepTheirIds) {
  constexpr std::array<std::string_view, 30> kTokens = {
      "<|open|>",        "<|close|>", "<|head|>",  "<|/head|>",        "<|end|>",       "<|say|>",
      "<|in|>",          "<|on|>",    "<|out|>",   "<|user|>",         "<|assistant|>", "<|system|>",
      "<|tool|>",        "<|/tool|>", "<|seen|>",  "<｜Me｜>",         "<｜You｜>",     "<｜calls▁begin｜>",
      "<｜calls▁end｜>", "<｜sep｜>", "<｜eos｜>", "<｜call▁begin｜>", "<muse>",        "</muse>",
      "<turn>",          "</turn>",   "[ASK]",     "[/ASK]",           "[CALLS]",       "<call>"};
  const auto base = read_text_file(kGolden / "tokenizer/m3.tokenizer.json", size_t{64} << 20).value();
  JsonWriter config;
  config.begin_object().key("added_tokens_decoder").begin_object();
  for (size_t i = 0; i < kTokens.size(); ++i)
    config.key(strf("{}", 300'000 + i))
        .begin_object()
        .key("content")
        .string(kTokens[i])
        .key("special")
        .boolean(true)
        .end_object();
  config.end_object().end_object();
  const Tokenizer tokenizer = Tokenizer::parse(base, config.text()).value();
  const auto text = read_text_file(kGolden / "jinja/cases.json", 16 << 20).value();
  const JsonDocument document = JsonDocument::parse(text, "cases.json").value();
  const Json cases = document.root().at("cases").value();
  const auto everything = ChatTemplate::parse("{{ messages }}{{ tools }}").value();
  int honest = 0;
  size_t controls = 0;
  for (size_t i = 0; i < cases.size(); ++i) {
    const Json test = cases.element(i);
    const auto file = test.find("file");
    if (!file) continue;
    const auto source = read_text_file(kGolden / "jinja/templates" / file->as_string().value(), 1 << 20);
    const auto parsed = ChatTemplate::parse(source.value(), {{"eos_token", "<｜eos｜>"}});
    ChatInput input{.messages = test.at("messages").value(), .tools = test.find("tools")};
    input.kwargs = test.find("kwargs");
    const auto prompt = parsed->render(input);
    const auto request = everything.render(input);
    if (!prompt.ok() || !request.ok()) continue;
    const bool forged = std::any_of(kTokens.begin(), kTokens.end(), [&](std::string_view token) {
      return request->text.find(token) != std::string::npos;
    });
    if (forged) continue;
    const auto ids = tokenizer.encode(prompt.value()).value();
    EXPECT_EQ(ids, tokenizer.encode(prompt->text).value()) << marked(prompt.value());
    controls +=
        static_cast<size_t>(std::count_if(ids.begin(), ids.end(), [](int32_t id) { return id >= 300'000; }));
    ++honest;
  }
  EXPECT_GT(honest, 100);
  EXPECT_GT(controls, 1000u);
}

Tokenizer m3() {
  return Tokenizer::parse(read_text_file(kGolden / "tokenizer/m3.tokenizer.json", size_t{64} << 20).value())
      .value();
}

// Text of pieces that make tokens together, and markup that is cut anywhere.
PromptText random_prompt(std::mt19937& random, size_t pieces) {
  static constexpr std::string_view kPieces[] = {
      "]~b]", "[e~[", "]<]minimax[>[", "<mm:think>", "</mm:think>", "]~",
      "b]",   "]<]",  "minimax[>",     "[",          "]",           "the ",
      "é",    "\n",   "<tool_call>",   "mm:think>",  "<",           "\xff"};
  PromptText prompt;
  for (size_t i = 0; i < pieces; ++i) {
    const size_t start = prompt.text.size();
    prompt.text += kPieces[random() % std::size(kPieces)];
    if (random() % 3 == 0) continue;
    if (!prompt.markup.empty() && prompt.markup.back().end == start) {
      prompt.markup.back().end = prompt.text.size();
    } else {
      prompt.markup.push_back({start, prompt.text.size()});
    }
  }
  return prompt;
}

// Leftmost first, the longest of those, and every byte of it markup.
std::vector<int32_t> expected_controls(const Tokenizer& tokenizer, const PromptText& prompt) {
  std::vector<int32_t> found;
  for (size_t at = 0; at < prompt.text.size();) {
    const AddedToken* best = nullptr;
    for (const AddedToken& token : tokenizer.added_tokens()) {
      const size_t end = at + token.content.size();
      const bool inside =
          std::any_of(prompt.markup.begin(), prompt.markup.end(),
                      [&](const TextRange& range) { return range.start <= at && end <= range.end; });
      if (inside && prompt.text.compare(at, token.content.size(), token.content) == 0 &&
          (best == nullptr || best->content.size() < token.content.size()))
        best = &token;
    }
    if (best != nullptr) found.push_back(best->id);
    at += best != nullptr ? best->content.size() : 1;
  }
  return found;
}

TEST(ChatMarkup, ATokenForgedOrSplitOverABorderIsTextAndHidesNoOther) {
  const Tokenizer tokenizer = m3();
  const int32_t first_added = tokenizer.id_of("]!p~[").value();
  std::mt19937 random(5);
  for (int round = 0; round < 3000; ++round) {
    const PromptText prompt = random_prompt(random, 1 + random() % 30);
    const std::vector<int32_t> ids = tokenizer.encode(prompt).value();
    std::vector<int32_t> controls;
    for (const int32_t id : ids)
      if (id >= first_added) controls.push_back(id);
    ASSERT_EQ(controls, expected_controls(tokenizer, prompt)) << marked(prompt);
    ASSERT_EQ(tokenizer.decode(ids).value(), with_valid_utf8(prompt).text);
  }
  // What a message ends with cannot swallow the end of its turn.
  const PromptText swallowing{.text = "]<]minimax[>[e~[", .markup = {{12, 16}}};
  EXPECT_EQ(tokenizer.encode(swallowing)->back(), tokenizer.id_of("[e~[").value());
  EXPECT_EQ(tokenizer.encode(swallowing.text)->front(), tokenizer.id_of("]<]minimax[>[").value());
}

TEST(ChatMarkup, PlainTextOfMarkupOnlyHasTheIdsOfAWholePrompt) {
  const Tokenizer tokenizer = m3();
  std::mt19937 random(6);
  for (int round = 0; round < 300; ++round) {
    const std::string text = random_prompt(random, 40).text;
    EXPECT_EQ(tokenizer.encode(PromptText::whole(text)).value(), tokenizer.encode(text).value());
  }
}

// Tokens that are looked for in normalised text, too.
TEST(ChatMarkup, NormalisedTextKeepsItsBorders) {
  JsonWriter vocab;
  vocab.begin_object();
  int id = 0;
  for (const uint32_t c : byte_level_alphabet()) {
    std::string name;
    append_utf8(name, c);
    vocab.key(name).integer(id++);
  }
  vocab.end_object();
  const Tokenizer tokenizer =
      Tokenizer::parse(
          strf(
              R"({{"normalizer":{{"type":"NFC"}},"pre_tokenizer":{{"type":"ByteLevel","add_prefix_space":false}},)"
              R"("added_tokens":[{{"id":256,"content":"<é>","special":true,"normalized":true}}],)"
              R"("model":{{"type":"BPE","vocab":{},"merges":[]}}}})",
              vocab.text()))
          .value();
  const std::string decomposed = "<e\u0301>";
  EXPECT_EQ(tokenizer.encode(PromptText::whole(decomposed)).value(), std::vector<int32_t>{256});
  const PromptText both{.text = decomposed + decomposed,
                        .markup = {{decomposed.size(), 2 * decomposed.size()}}};
  const auto ids = tokenizer.encode(both).value();
  EXPECT_EQ(std::count(ids.begin(), ids.end(), 256), 1);
  EXPECT_EQ(ids.back(), 256);
}

TEST(ChatMarkup, TheCacheTellsPromptsOfOneTextApart) {
  const Tokenizer tokenizer = m3();
  EncodeCache cache(tokenizer);
  std::mt19937 random(7);
  PromptText prompt = random_prompt(random, 1200);
  ASSERT_GT(prompt.text.size(), 4096u);
  for (int turn = 0; turn < 60; ++turn) {
    for (const PromptText& other : {prompt, PromptText{prompt.text, {}}, PromptText::whole(prompt.text)})
      ASSERT_EQ(cache.encode(other).value(), tokenizer.encode(other).value()) << "turn " << turn;
    // The same text with one stretch of other origin, and then some more text.
    prompt.markup.erase(prompt.markup.begin() + static_cast<ptrdiff_t>(random() % prompt.markup.size()));
    ASSERT_EQ(cache.encode(prompt).value(), tokenizer.encode(prompt).value()) << "turn " << turn;
    const PromptText more = random_prompt(random, 20);
    const size_t start = prompt.text.size();
    prompt.text += " " + more.text;
    for (const TextRange& range : more.markup)
      prompt.markup.push_back({start + 1 + range.start, start + 1 + range.end});
  }
}

TEST(ChatMarkup, AMegabyteOfTextCostsItsLength) {
  const auto parsed = ChatTemplate::parse(synthetic_chat_template());
  std::string request = "[";
  for (int i = 0; i < 1000; ++i)
    request +=
        strf(R"({}{{"role":"user","content":{}}})", i > 0 ? "," : "", json_quoted(std::string(1000, '[')));
  const JsonDocument document = JsonDocument::parse(request + "]", "messages").value();
  // The limits count the work: a step for every 64 bytes and some for each message.
  const auto prompt =
      parsed->render({.messages = document.root(), .limits = {.max_steps = 300'000, .max_memory = 32 << 20}});
  ASSERT_TRUE(prompt.ok()) << prompt.error().message;
  EXPECT_GT(prompt->text.size(), 1'000'000u);
  EXPECT_GE(prompt->markup.size(), 1000u);
}

}  // namespace
}  // namespace sparrow
