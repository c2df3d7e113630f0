// SPDX-License-Identifier: Apache-2.0
// A guided answer holds a complete call, whatever the model would rather write.
#include "text/output/call_guide.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <set>

#include "text/output/output_parser.h"
#include "text/synthetic/tokenizer_training.h"

namespace sparrow {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::UnorderedElementsAre;
using Start = CallGuideOptions::Start;

constexpr int kVocab = 400;

const Tokenizer& tokenizer() {
  static const Tokenizer made =
      Tokenizer::parse(train_tokenizer("find the route from the first stop to the next stop", kVocab).value(),
                       trained_tokenizer_config())
          .value();
  return made;
}

// Guides for the tools of one request.
class CallGuides : public testing::Test {
 protected:
  void set_tools(const std::string& json) {
    document_.emplace(JsonDocument::parse(json, "tools").value());
    tools_ = ToolSet::from_json(document_->root()).value();
    names_.clear();
    for (size_t i = 0; i < document_->root().size(); ++i)
      names_.push_back(document_->root().element(i).find("name")->as_string().value());
  }
  Result<CallGuide> make(Start start = Start::kCall, bool several = false) const {
    return CallGuide::create(
        tokenizer(),
        {.names = names_, .tools = &tools_, .vocab_size = kVocab, .several = several, .start = start});
  }
  ParsedOutput parse(std::string_view text, bool in_reasoning = false) const {
    OutputParser parser({.starts_in_reasoning = in_reasoning, .tools = &tools_});
    std::vector<OutputDelta> deltas;
    parser.feed(text, deltas);
    parser.finish(deltas);
    ParsedOutput out;
    for (const OutputDelta& delta : deltas) out.add(delta);
    complete_calls_ = parser.num_complete_calls();
    return out;
  }

  std::optional<JsonDocument> document_;
  ToolSet tools_;
  std::vector<std::string> names_;
  mutable int complete_calls_ = 0;
};

std::string text_of(const std::vector<int32_t>& ids) {
  return tokenizer().decode(ids).value();
}

// Says the ids of the text, each of which must be allowed.
void say(CallGuide::State& state, std::string_view text) {
  for (const int32_t id : tokenizer().encode(text).value()) {
    const auto allowed = state.allowed();
    ASSERT_TRUE(allowed.empty() || std::find(allowed.begin(), allowed.end(), id) != allowed.end())
        << text << ": " << tokenizer().bytes_of(id).value();
    state.advance(id);
  }
}

// What a model without sense writes. In values it comes to a marker sooner or later.
std::vector<int32_t> babble(CallGuide::State& state, uint64_t seed, int max_ids = 4000) {
  std::mt19937_64 random(seed);
  const int32_t marker = *tokenizer().id_of(kToolMarker), closer = *tokenizer().id_of(kThinkClose);
  std::vector<int32_t> ids;
  while (!state.done() && static_cast<int>(ids.size()) < max_ids) {
    const auto allowed = state.allowed();
    int32_t id = static_cast<int32_t>(random() % 256);
    if (!allowed.empty()) {
      id = allowed[random() % allowed.size()];
    } else if (random() % 4 == 0) {
      id = random() % 2 ? marker : closer;
    }
    state.advance(id);
    ids.push_back(id);
  }
  return ids;
}

constexpr const char* kRoute =
    R"({"name":"find_route","parameters":{"type":"object","properties":{"stops":{"type":"array","items":)"
    R"({"type":"string"}},"fast":{"type":"boolean"},"name":{"type":"string"}},"required":["name"]}})";
const std::string kNs(kToolMarker);

TEST_F(CallGuides, ACallAsTheModelWritesItIsAllowed) {
  set_tools(strf("[{}]", kRoute));
  const CallGuide guide = make().value();
  CallGuide::State state(guide);
  say(state, kNs + "<tool_call>\n" + kNs + "<invoke name=\"find_route\">" + kNs + "<name>the first" + kNs +
                 "</name>" + kNs + "<stops>" + kNs + "<item>A" + kNs + "</item>" + kNs + "<item>B" + kNs +
                 "</item>" + kNs + "</stops>" + kNs + "</invoke>\n" + kNs + "</tool_call>");
  EXPECT_TRUE(state.done());
}

TEST_F(CallGuides, WithoutThinkingNothingButACallCanBegin) {
  set_tools(strf("[{}]", kRoute));
  const CallGuide guide = make(Start::kCall).value();
  EXPECT_THAT(CallGuide::State(guide).allowed(), ElementsAre(*tokenizer().id_of(kToolMarker)));
}

TEST_F(CallGuides, TheModelDecidesWhetherItThinks) {
  set_tools(strf("[{}]", kRoute));
  const CallGuide guide = make(Start::kOpen).value();
  const int32_t marker = *tokenizer().id_of(kToolMarker);
  CallGuide::State thinks(guide), refuses(guide), calls(guide);
  EXPECT_THAT(thinks.allowed(),
              UnorderedElementsAre(*tokenizer().id_of(kThinkOpen), *tokenizer().id_of(kThinkClose), marker));
  say(thinks, "<mm:think>");
  EXPECT_TRUE(thinks.allowed().empty());
  say(thinks, "find the stop " + kNs + "<tool_call>");
  EXPECT_TRUE(thinks.allowed().empty()) << "what it thinks is its own";
  say(thinks, "</mm:think>");
  EXPECT_THAT(thinks.allowed(), ElementsAre(marker));
  say(refuses, "</mm:think>");
  EXPECT_THAT(refuses.allowed(), ElementsAre(marker));
  say(calls, kNs + "<tool_call>\n");
  EXPECT_THAT(calls.allowed(), ElementsAre(marker));
}

TEST_F(CallGuides, AClosingTagInSeveralTokensEndsThinkingToo) {
  set_tools(strf("[{}]", kRoute));
  const CallGuide guide = make(Start::kThinking).value();
  CallGuide::State state(guide);
  for (const char c : std::string_view("so </mm:thin</mm:think>")) {
    EXPECT_TRUE(state.allowed().empty());
    state.advance(*tokenizer().id_of(std::string_view(&c, 1)));
  }
  EXPECT_THAT(state.allowed(), ElementsAre(*tokenizer().id_of(kToolMarker)));
}

TEST_F(CallGuides, BabbleBecomesACompleteCall) {
  set_tools(
      strf(R"([{},{{"name":"find"}},{{"name":"find_r","parameters":{{"type":"object","properties":{{}}}}}}])",
           kRoute));
  std::set<std::string> called;
  for (const Start start : {Start::kThinking, Start::kOpen, Start::kCall})
    for (const bool several : {false, true}) {
      const CallGuide guide = make(start, several).value();
      for (uint64_t seed = 0; seed < 200; ++seed) {
        CallGuide::State state(guide);
        const std::string text = text_of(babble(state, seed));
        ASSERT_TRUE(state.done()) << seed << ": " << text;
        const ParsedOutput output = parse(text, start == Start::kThinking);
        ASSERT_GE(output.tool_calls.size(), 1u) << text;
        EXPECT_EQ(complete_calls_, static_cast<int>(output.tool_calls.size())) << text;
        EXPECT_TRUE(several || output.tool_calls.size() == 1) << text;
        EXPECT_EQ(output.content, "") << text;
        for (const ParsedToolCall& call : output.tool_calls) {
          called.insert(call.name);
          const auto arguments = JsonDocument::parse(call.arguments, "arguments");
          ASSERT_TRUE(arguments.ok()) << call.arguments;
          EXPECT_TRUE(call.name != "find_route" || arguments->root().find("name")) << text;
        }
      }
    }
  EXPECT_THAT(called, UnorderedElementsAre("find", "find_r", "find_route"));
}

TEST_F(CallGuides, AnInvokeClosesOnlyWithWhatIsRequired) {
  set_tools(strf("[{}]", kRoute));
  const CallGuide guide = make().value();
  CallGuide::State state(guide);
  // In this vocabulary "st" is a token, and each other character of the tags.
  const auto after_angle = [](CallGuide::State at) {
    say(at, "<");
    const auto allowed = at.allowed();
    return text_of({allowed.begin(), allowed.end()});
  };
  say(state, kNs + "<tool_call>\n" + kNs + "<invoke name=\"find_route\">" + kNs);
  EXPECT_EQ(after_angle(state), "fnst");
  say(state, "<name>x" + kNs + "</name>" + kNs);
  EXPECT_EQ(after_angle(state), "/fst") << "a parameter comes once";
  say(state, "<fast>1" + kNs + "</fast>" + kNs);
  EXPECT_EQ(after_angle(state), "/st");
}

TEST_F(CallGuides, ParametersThatAreNotDeclaredAreLeftToTheModel) {
  set_tools(R"([{"name":"f","parameters":{"type":"object","additionalProperties":{"type":"string"}}},)"
            R"({"name":"g","parameters":{"properties":{"o":{"type":"object"},"a":{}}}}])");
  const CallGuide guide = make().value();
  CallGuide::State f(guide), g(guide);
  const std::string begin = kNs + "<tool_call>\n" + kNs, end = kNs + "</tool_call>";
  say(f,
      begin + "<invoke name=\"f\">" + kNs + "<any thing>v" + kNs + "</any thing>" + kNs + "</invoke>" + end);
  EXPECT_TRUE(f.done());
  say(g, begin + "<invoke name=\"g\">" + kNs + "<o>" + kNs + "<x>" + kNs + "<y>2" + kNs + "</y>" + kNs +
             "</x>" + kNs + "</o>" + kNs + "<a>plain " + kNs + " marker" + kNs + kNs + "</a>" + kNs +
             "</invoke>\n" + end);
  EXPECT_TRUE(g.done());
}

TEST_F(CallGuides, BrokenMarkupOfTheModelsOwnIsNotGuidedAnyFurther) {
  set_tools(R"([{"name":"f","parameters":{"additionalProperties":true}}])");
  const CallGuide guide = make().value();
  CallGuide::State state(guide);
  say(state, kNs + "<tool_call>\n" + kNs + "<invoke name=\"f\">" + kNs + "<x>1" + kNs + "</y>");
  EXPECT_TRUE(state.lost());
  EXPECT_TRUE(state.allowed().empty());
}

TEST_F(CallGuides, NamesThatNoTagCanHoldAreLeftOut) {
  set_tools(
      R"([{"name":"f","parameters":{"properties":{"a>b":{},"/c":{},"":{},"[e~[":{},"ok":{"type":"string"}},)"
      R"("required":["a>b","[e~[","ok"]}}])");
  const CallGuide guide = make().value();
  for (uint64_t seed = 0; seed < 50; ++seed) {
    CallGuide::State state(guide);
    const std::vector<int32_t> ids = babble(state, seed);
    ASSERT_TRUE(state.done());
    for (const int32_t id : ids) EXPECT_FALSE(tokenizer().is_special(id));
    const ParsedOutput output = parse(text_of(ids));
    EXPECT_THAT(output.tool_calls[0].arguments, HasSubstr("{\"ok\":"));
  }
}

TEST_F(CallGuides, AToolThatTheModelCannotNameIsRefused) {
  set_tools(R"([{"name":"f"},{"name":"stop [e~[ here"}])");
  EXPECT_THAT(make().error().message, HasSubstr("cannot write"));
  set_tools(R"([{"name":"f"}])");
  const int too_few = *tokenizer().id_of(kToolMarker);
  const auto small = CallGuide::create(tokenizer(), {.names = names_, .vocab_size = too_few});
  EXPECT_EQ(small.error().code, Errc::kUnsupported);
}

TEST_F(CallGuides, SchemasWithoutEndAreCutOff) {
  set_tools(R"([{"name":"f","parameters":{"properties":{"a":{"$ref":"#"},"b":{"$ref":"#"},"c":{"$ref":"#"},)"
            R"("d":{"type":"array","items":{"$ref":"#"}}}}}])");
  const CallGuide guide = make().value();
  CallGuide::State state(guide);
  std::string open, close;
  for (int i = 0; i < 12; ++i) {
    open += kNs + "<a>";
    close += kNs + "</a>";
  }
  say(state, kNs + "<tool_call>\n" + kNs + "<invoke name=\"f\">" + open + "x" + close + kNs + "</invoke>\n" +
                 kNs + "</tool_call>");
  EXPECT_TRUE(state.done());
}

TEST_F(CallGuides, AStateIsCopiedWithWhereItStands) {
  set_tools(strf("[{}]", kRoute));
  const CallGuide guide = make().value();
  CallGuide::State first(guide);
  say(first, kNs + "<tool_call>\n" + kNs + "<invoke name=\"find_route\">" + kNs + "<name>x" + kNs);
  CallGuide::State second = first;
  say(first, "</name>" + kNs + "</invoke>\n" + kNs + "</tool_call>");
  EXPECT_TRUE(first.done());
  EXPECT_FALSE(second.done());
  say(second, "</name>" + kNs + "<fast>");
}

}  // namespace
}  // namespace sparrow
