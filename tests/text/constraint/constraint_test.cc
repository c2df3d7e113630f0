// SPDX-License-Identifier: Apache-2.0
#include "text/constraint/constraint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <latch>
#include <optional>
#include <regex>
#include <thread>

#include "support/constraint_walks.h"
#include "text/constraint/gbnf.h"
#include "text/constraint/regex/regex.h"
#include "text/output/tool_markup.h"
#include "text/synthetic/tokenizer_training.h"

namespace sparrow {
namespace {

using sparrow::testing::fits;
using sparrow::testing::ids_of;
using sparrow::testing::mask_of;
using sparrow::testing::random_text;
using sparrow::testing::small_vocabulary;
using ::testing::HasSubstr;

Result<std::shared_ptr<Constraint>> made(Grammar grammar, NodeId root) {
  SPARROW_TRY(grammar.finish(root));
  return Constraint::create(std::make_shared<const Grammar>(std::move(grammar)), small_vocabulary());
}

Result<std::shared_ptr<Constraint>> regex(std::string_view pattern, bool search = false) {
  Grammar grammar;
  const NodeId root = SPARROW_TRY(add_regex(grammar, pattern, {.search = search}));
  return made(std::move(grammar), root);
}

Result<std::shared_ptr<Constraint>> gbnf(std::string_view text) {
  Grammar grammar;
  const NodeId root = SPARROW_TRY(add_gbnf(grammar, text));
  return made(std::move(grammar), root);
}

std::string error_of(const Result<std::shared_ptr<Constraint>>& result) {
  return result.ok() ? "" : result.error().message;
}

// Every byte is a token of such a vocabulary, also those that stand for markup.
TEST(Vocabulary, OnlyMarkupHasTheBytesOfMarkup) {
  const Tokenizer tokenizer =
      Tokenizer::parse(train_tokenizer("the fox", 400).value(), trained_tokenizer_config()).value();
  const int32_t marker = *tokenizer.id_of(kToolMarker);
  const MarkupToken markup[] = {{kToolMarker, kMarkerByte}};
  const Vocabulary vocabulary(tokenizer, 400, markup);
  for (int32_t id = 0; id < vocabulary.size(); ++id)
    EXPECT_EQ(vocabulary.bytes_of(id).find(kMarkerByte) != std::string_view::npos, id == marker) << id;
  EXPECT_EQ(vocabulary.bytes_of(tokenizer.encode("a").value()[0]), "a");
}

TEST(Regex, FitsWhatItSays) {
  struct Case {
    const char* pattern;
    std::vector<std::string> in, out;
  };
  const std::vector<Case> cases = {
      {"abc", {"abc"}, {"", "ab", "abcd"}},
      {"a*", {"", "a", "aaaa"}, {"b", "ab"}},
      {"(a|bc)+d?", {"a", "bcd", "abca"}, {"", "d", "b"}},
      {"[a-c]{2,3}", {"ab", "abc"}, {"a", "abca", "ad"}},
      {"a{3}", {"aaa"}, {"aa", "aaaa"}},
      {"a{2,}", {"aa", "aaaaaaa"}, {"a"}},
      {"a{,x}", {"a{,x}"}, {"a"}},
      {"(a*)*", {"", "aaa"}, {"b"}},
      {"(a*b?){2,5}c", {"c", "ac", "abababababc"}, {"abababababbc", "a"}},
      {".", {"a", "é", "日"}, {"", "\n", "ab", "\xC3"}},
      {"[^a]", {"b", "é", "\n"}, {"a", ""}},
      // Look-ahead where the text begins: passwords, and the numbers of pydantic.
      {"(?=.*[0-9])(?=.*[A-Z])[A-Za-z0-9]{3,}", {"aB3", "3BB"}, {"ab3", "B3", "ABC", "a B3"}},
      {"(?!^[-+.]*$)[+-]?0*\\d*\\.?\\d*", {"1", "-1.5", ".5", "007"}, {"", "-", ".", "-.", "x"}},
      {"(?!ab)(?:(?=ac)ac|b).*", {"ac", "acx", "bx"}, {"ab", "abx", "cx"}},
      {"\\d\\w\\s", {"1_ ", "0a\t"}, {"a_ "}},
      {"\\D\\W\\S", {"a-é"}, {"1-a", "aaa"}},
      {"\\p{Lu}\\P{L}", {"A1", "É-"}, {"a1", "AA"}},
      {"[\\u00e9-\\u00eb\\]\\-x]", {"é", "ë", "]", "-", "x"}, {"e", "ì"}},
      {"\\ud83d\\ude00|\\u{1F601}", {"😀", "😁"}, {"😂"}},
      {"^a$|^(?:b|c)$", {"a", "b", "c"}, {"ab"}},
      {"(?P<n>x)(?<m>y)", {"xy"}, {"x"}},
      {"a+?b*?", {"a", "ab"}, {"b"}},
  };
  for (const Case& one : cases) {
    const auto constraint = regex(one.pattern);
    ASSERT_TRUE(constraint.ok()) << one.pattern << ": " << error_of(constraint);
    for (const std::string& text : one.in)
      EXPECT_TRUE(fits(constraint.value(), text)) << one.pattern << " " << text;
    for (const std::string& text : one.out)
      EXPECT_FALSE(fits(constraint.value(), text)) << one.pattern << " " << text;
  }
}

TEST(Regex, SearchesUnlessAnchored) {
  const auto inside = regex("b+", true), start = regex("^b", true), end = regex("(a|b$)", true);
  EXPECT_TRUE(fits(inside.value(), "abba"));
  EXPECT_FALSE(fits(inside.value(), "aca"));
  EXPECT_TRUE(fits(start.value(), "bc"));
  EXPECT_FALSE(fits(start.value(), "cb"));
  EXPECT_TRUE(fits(end.value(), "xxb"));
  EXPECT_TRUE(fits(end.value(), "xax"));
  EXPECT_FALSE(fits(end.value(), "xbx"));
}

// Each is some hundred ranges, and a pattern has room for thousands of them.
TEST(Regex, LargeSetsAreCounted) {
  for (const std::string& set : std::vector<std::string>{"\\pL", "\\W", "[\\W]"}) {
    std::string pattern;
    for (int i = 0; i < 10'000; ++i) pattern += set;
    EXPECT_THAT(error_of(regex(pattern)), HasSubstr("too many large sets of characters")) << set;
    EXPECT_EQ(error_of(regex(pattern.substr(0, 20 * set.size()))), "") << set;
  }
}

TEST(Regex, RefusesByNameAndPlace) {
  const std::pair<const char*, const char*> cases[] = {
      {"ab(?=c)", "a look-ahead but where the text begins is not supported, at byte 2"},
      {"\\p{Xx}", "the property Xx is not supported at byte 0"},
      {"(?<!c)a", "look-behind is not supported at byte 0"},
      {"(a)\\1", "a backreference is not supported at byte 3"},
      {"(?P=n)", "a backreference is not supported at byte 0"},
      {"x\\b", "a word boundary is not supported at byte 1"},
      {"(?i)a", "flags are not supported at byte 0"},
      {"a++", "a possessive quantifier is not supported at byte 1"},
      {"(?>a)", "an atomic group is not supported at byte 0"},
      {"a{2,1}", "lower limit is above"},
      {"a{1000000}", "more than 100000"},
      {"(a", "a group has no end at byte 0"},
      {"a)", "a ) without a ("},
      {"[a", "a class has no end at byte 0"},
      {"*a", "nothing to repeat at byte 0"},
      {"a**", "nothing to repeat"},
      {"a^b", "an anchor in the middle"},
      {"(^a)*", "an anchor that is repeated"},
      {"[b-a]", "a range ends before it begins"},
      {"\\q", "an escape is not known"},
      {"\\p{Klingon}", "the property Klingon is not supported"},
      {"[]", "cannot be satisfied"},
  };
  for (const auto& [pattern, message] : cases)
    EXPECT_THAT(error_of(regex(pattern)), HasSubstr(message)) << pattern;
}

TEST(Regex, BombsCostNothing) {
  for (const char* pattern :
       {"(a+)+b", "(a|aa)*c", "(((a*)*)*)*b", "(.*a){20}", "(a?){100}a{100}", "(x+x+)+y"}) {
    const auto constraint = regex(pattern);
    ASSERT_TRUE(constraint.ok()) << pattern;
    Matcher matcher(constraint.value());
    for (int i = 0; i < 1000 && !ids_of(mask_of(matcher)).empty(); ++i)
      if (!matcher.advance("a") && !matcher.advance("x")) break;
  }
  EXPECT_THAT(error_of(regex(std::string(70'000, 'a'))), HasSubstr("65536 are the limit"));
  EXPECT_THAT(error_of(regex(std::string(1000, '(') + std::string(1000, ')'))), HasSubstr("too deep"));
}

TEST(Gbnf, ReadsRulesAndRecursion) {
  const auto constraint = gbnf(
      "# sums\n"
      "root ::= sum\n"
      "sum  ::= term ((\"+\" | \"-\") term)*   # left to right\n"
      "term ::= [0-9]+ (\".\" [0-9]{1,2})? |\n"
      "         \"(\" sum \")\" | \"\\x41\\u00e9\" [^a-z\\n]\n");
  ASSERT_TRUE(constraint.ok()) << error_of(constraint);
  for (const char* text : {"1", "1+2.25", "((1)-2)", "Aé9", "(((((7)))))"})
    EXPECT_TRUE(fits(constraint.value(), text)) << text;
  for (const char* text : {"", "1+", "(1", "1.234", "Aéa", "())"})
    EXPECT_FALSE(fits(constraint.value(), text)) << text;
}

TEST(Gbnf, RefusesByNameAndPlace) {
  const std::pair<const char*, const char*> cases[] = {
      {"", "needs a rule called root"},
      {"start: \"a\"", "::= was expected in line 1"},
      {"root ::= x", "the rule x is not defined in line 1"},
      {"root ::= \"a\"\nroot ::= \"b\"", "the rule root is defined twice in line 2"},
      {"root ::= root \"a\" | \"b\"", "the rule root begins with itself"},
      {"root ::= a\na ::= \"x\"? root \"y\" | \"b\"", "begins with itself"},
      {"root ::= \"a", "a literal has no end in line 1"},
      {"root ::= (\"a\"", "a group has no end"},
      {"root ::= \"a\"{3,2}", "a quantifier is not"},
      {"root ::= \"a\" root", "cannot be satisfied"},
  };
  for (const auto& [text, message] : cases) EXPECT_THAT(error_of(gbnf(text)), HasSubstr(message)) << text;
}

TEST(Grammar, AmbiguousOnesStaySmall) {
  const auto constraint = gbnf("root ::= \"a\" root \"b\" | \"a\" root \"c\" | \"a\" root | \"\"");
  ASSERT_TRUE(constraint.ok()) << error_of(constraint);
  Matcher matcher(constraint.value());
  for (int i = 0; i < 300; ++i) ASSERT_TRUE(matcher.advance("a"));
  EXPECT_TRUE(matcher.may_end());
  EXPECT_TRUE(matcher.advance("bccbbc"));
  EXPECT_FALSE(matcher.advance(std::string(300, 'b')));
}

TEST(Grammar, BothAndNoneOf) {
  Grammar grammar;
  const NodeId word = add_regex(grammar, "[a-z]{1,5}", {}).value();
  const NodeId with_b = add_regex(grammar, "b", {.search = true}).value();
  const NodeId not_this = grammar.words({"abc", "b", "abcde", "zz"});
  const NodeId tail = grammar.literal("!");
  const NodeId root = grammar.sequence({grammar.both({word, with_b}, {not_this}), tail});
  const auto constraint = made(std::move(grammar), root);
  ASSERT_TRUE(constraint.ok()) << error_of(constraint);
  for (const char* text : {"ab!", "bb!", "abcd!", "zzb!"})
    EXPECT_TRUE(fits(constraint.value(), text)) << text;
  for (const char* text : {"abc!", "b!", "zz!", "a!", "bbbbbb!", "abcde!"})
    EXPECT_FALSE(fits(constraint.value(), text)) << text;
}

// What cannot end well is not begun.
TEST(Grammar, BothSeesDeadEnds) {
  Grammar grammar;
  const NodeId ends = add_regex(grammar, "(a[a-z]{9}|b[a-z]{2})", {}).value();
  const NodeId brief = add_regex(grammar, "[a-z]{0,5}", {}).value();
  const NodeId root = grammar.both({ends, brief});
  const auto constraint = made(std::move(grammar), root);
  Matcher matcher(constraint.value());
  EXPECT_FALSE(Matcher(matcher).advance("a"));
  EXPECT_TRUE(matcher.advance("b"));
  Grammar none;
  const NodeId nothing = none.both({none.literal("aaa"), add_regex(none, "a{4,7}", {}).value()});
  EXPECT_THAT(error_of(made(std::move(none), nothing)), HasSubstr("cannot be satisfied"));
}

// Each token is in the mask exactly if its bytes may come.
TEST(Constraint, MasksSayWhatMayCome) {
  for (const char* pattern : {"[a-z ]*", "(true|false|null)", "\"([^\"\\\\]|\\\\[n\"])*\"",
                              "-?[0-9]{1,3}(\\.[0-9]+)?", ".{0,4}", "[^{]*", "(\"foo\"|\"bar\"): *[0-9]+"}) {
    const auto constraint = regex(pattern);
    ASSERT_TRUE(constraint.ok()) << pattern;
    std::minstd_rand random(3);
    for (int round = 0; round < 20; ++round) {
      Matcher matcher(constraint.value());
      for (int step = 0; step < 12; ++step) {
        const std::vector<uint32_t> bits = mask_of(matcher);
        const Vocabulary& vocabulary = *small_vocabulary();
        for (int32_t id = 0; id < vocabulary.size(); ++id)
          ASSERT_EQ((bits[id / 32] >> (id % 32) & 1) != 0, Matcher(matcher).advance(id))
              << pattern << ": token " << vocabulary.bytes_of(id);
        const std::vector<int32_t> ids = ids_of(bits);
        if (ids.empty()) break;
        ASSERT_TRUE(matcher.advance(ids[random() % ids.size()]));
      }
    }
  }
}

// Where a state takes letters whatever they are, up to a length, most tokens are known without a look; and
// some ids have the bytes of another.
TEST(Constraint, MasksOfCountedLettersSayWhatMayCome) {
  std::vector<std::string> tokens;
  for (const char* word : {"a", "b", "ab", "aba", "abab", "ababa", "bab", "b1", "1", "12", " a", " ab", "aB",
                           "\"", "a\"", "ab", "1", " a", "abab"})
    tokens.emplace_back(word);
  const auto vocabulary = std::make_shared<const Vocabulary>(tokens);
  for (const char* pattern : {"[a-z]*", "[a-z]{0,3}", "[a-z]{2}1?", "[a-z ]{1,4}\"", "[a-z0-9]{0,2}b*",
                              "[a-zA-Z]{3}a", "(ab){1,2}"}) {
    Grammar grammar;
    const NodeId root = add_regex(grammar, pattern, {}).value();
    ASSERT_TRUE(grammar.finish(root).ok());
    const auto constraint =
        Constraint::create(std::make_shared<const Grammar>(std::move(grammar)), vocabulary).value();
    std::vector<Matcher> reached{Matcher(constraint)};
    for (size_t i = 0; i < reached.size() && i < 200; ++i) {
      std::vector<uint32_t> bits(vocabulary->num_words());
      reached[i].write_mask(bits);
      for (int32_t id = 0; id < vocabulary->size(); ++id) {
        Matcher next = reached[i];
        const bool may_come = next.advance(id);
        EXPECT_EQ((bits[id / 32] >> (id % 32) & 1) != 0, may_come) << pattern << ": token " << tokens[id];
        if (may_come) reached.push_back(next);
      }
    }
    EXPECT_GT(reached.size(), 3u) << pattern;
  }
}

TEST(Constraint, WalksAlongMasksEndInTextsThatFit) {
  for (const char* pattern : {"[a-f]{3,9}x", "(a|b)*c", "[0-9]{4}-[0-9]{2}", "(foo|bar|the)+"}) {
    const auto constraint = regex(pattern);
    const std::regex judge(pattern);
    for (unsigned seed = 0; seed < 30; ++seed) {
      const auto text = random_text(constraint.value(), seed);
      ASSERT_TRUE(text) << pattern;
      EXPECT_TRUE(std::regex_match(*text, judge)) << pattern << ": " << *text;
    }
  }
}

TEST(Constraint, ForcedTextIsFound) {
  Matcher matcher(regex("abc(d|e)fgh").value());
  EXPECT_EQ(matcher.forced(), "abc");
  EXPECT_EQ(matcher.forced(2), "ab");
  ASSERT_TRUE(matcher.advance("abcd"));
  EXPECT_EQ(matcher.forced(), "fgh");
  ASSERT_TRUE(matcher.advance("fgh"));
  EXPECT_EQ(matcher.forced(), "");
  EXPECT_TRUE(matcher.must_end());
}

TEST(Constraint, RefusedTokensChangeNothing) {
  Matcher matcher(regex("abc").value());
  EXPECT_FALSE(matcher.advance("ax"));
  EXPECT_TRUE(matcher.advance("ab"));
  EXPECT_FALSE(matcher.may_end());
}

// States and masks are made by whoever needs them first: each round begins without any.
TEST(Constraint, SeveralThreadsWalkAsOneDoes) {
  const char* const pattern = "(\"[a-z ]{0,20}\": [0-9]{1,4}, ){1,5}(.*a.{4}b)?end";
  constexpr size_t kRounds = 30, kThreads = 4;
  std::vector<std::optional<std::string>> expected(kThreads);
  for (size_t i = 0; i < kThreads; ++i)
    expected[i] = random_text(regex(pattern).value(), static_cast<unsigned>(i));
  for (size_t round = 0; round < kRounds; ++round) {
    const auto shared = regex(pattern).value();
    std::vector<std::optional<std::string>> texts(kThreads);
    std::latch start(kThreads);
    {
      std::vector<std::jthread> threads;
      for (size_t i = 0; i < kThreads; ++i)
        threads.emplace_back([&, i] {
          start.arrive_and_wait();
          texts[i] = random_text(shared, static_cast<unsigned>(i));
        });
    }
    ASSERT_EQ(texts, expected) << "round " << round;
  }
}

// An automaton of many states is given up for a fresh one, and outputs go on where they were.
TEST(Constraint, OutlivesItsAutomaton) {
  const auto constraint = regex("(.*a.{12}b|.*[0-9]{3}c)");
  ASSERT_TRUE(constraint.ok());
  std::minstd_rand random(5);
  Matcher matcher(constraint.value()), other(constraint.value());
  ASSERT_TRUE(other.advance("xa"));
  size_t most = 0;
  for (int i = 0; i < 20'000; ++i) {
    const char byte = "ab1x"[random() % 4];
    ASSERT_TRUE(matcher.advance(std::string_view(&byte, 1)));
    most = std::max(most, constraint.value()->bytes());
  }
  EXPECT_LT(most, size_t{64} << 20);
  ASSERT_TRUE(other.advance("123456789012b"));
  EXPECT_TRUE(other.may_end());
  ASSERT_TRUE(matcher.advance("123c"));
  EXPECT_TRUE(matcher.may_end());
}

}  // namespace
}  // namespace sparrow
