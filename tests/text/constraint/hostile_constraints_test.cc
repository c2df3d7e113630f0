// SPDX-License-Identifier: Apache-2.0
// What costs more than it says: small requests that a quadratic or exponential step somewhere turned into
// seconds of processor time, or into more memory than there is. Each ends soon, taken or refused.
#include <gtest/gtest.h>

#include <algorithm>
#include <ctime>
#include <functional>

#include "base/strf.h"
#include "support/constraint_walks.h"
#include "text/constraint/constraint.h"
#include "text/constraint/gbnf.h"
#include "text/constraint/regex/regex.h"
#include "text/constraint/schema/json_schema.h"

namespace sparrow {
namespace {

using sparrow::testing::small_vocabulary;

// Of this thread, whoever else has the processor. A tenth of a second each on a machine of 2026; the worst of
// them took a minute and more.
constexpr double kMaxSeconds = 10;

double thread_seconds() {
  timespec time;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

std::string list(int count, const char* separator, const std::function<std::string(int)>& part) {
  std::string text;
  for (int i = 0; i < count; ++i) text += (i > 0 ? separator : "") + part(i);
  return text;
}

std::string times(int count, const std::string& part) {
  return list(count, "", [&](int) { return part; });
}

using Add = std::function<Result<NodeId>(Grammar&)>;

// The first masks are part of it: they are made before a request is taken.
void expect_soon(const std::string& name, const Add& add) {
  const double start = thread_seconds();
  std::string outcome = "taken";
  auto grammar = std::make_shared<Grammar>();
  const auto root = add(*grammar);
  const Status finished = root.ok() ? grammar->finish(root.value()) : Status(root.error());
  if (finished.ok()) {
    auto made = Constraint::create(grammar, small_vocabulary());
    if (made.ok()) {
      Matcher matcher(made.value());
      std::vector<uint32_t> bits(small_vocabulary()->num_words());
      matcher.write_mask(bits);
      EXPECT_NE(std::count(bits.begin(), bits.end(), 0u), std::ssize(bits)) << name << ": a dead end";
      const std::string forced = matcher.forced();
      EXPECT_TRUE(forced.empty() || matcher.advance(forced)) << name;
      matcher.write_mask(bits);
    } else {
      outcome = made.error().message;
    }
  } else {
    outcome = finished.error().message;
  }
  EXPECT_LT(thread_seconds() - start, kMaxSeconds) << name << ": " << outcome;
}

void expect_soon(const std::string& name, const std::string& schema) {
  expect_soon(name, [&](Grammar& grammar) -> Result<NodeId> {
    const JsonDocument document = SPARROW_TRY(JsonDocument::parse(schema, "schema"));
    return add_schema(grammar, document.root());
  });
}

TEST(HostileConstraints, Schemas) {
  const auto numbered = [](const char* before, const char* after) {
    return [=](int i) { return strf("{}{}{}", before, i, after); };
  };
  expect_soon("20,000 numbers", R"({"enum":[)" + list(20'000, ",", numbered("", ".5")) + "]}");
  expect_soon("20,000 values, twice", R"({"allOf":[{"enum":[)" + list(20'000, ",", numbered("\"v", "\"")) +
                                          R"(]},{"enum":[)" + list(20'000, ",", numbered("\"v", "\"")) +
                                          "]}]}");
  expect_soon("512 objects, one of them",
              R"({"oneOf":[)" + list(512, ",", [&](int i) {
                return strf(R"({{"type":"object","properties":{{"k":{{"const":{}}}}},"required":[{},"k"]}})",
                            i, list(20, ",", numbered("\"m", "\"")));
              }) + "]}");
  expect_soon("alternatives of alternatives",
              R"({"allOf":[)" + list(8, ",", [&](int i) {
                return R"({"anyOf":[)" +
                       list(64, ",",
                            [&](int k) {
                              return strf(R"({{"properties":{{"p{}_{}":{{"type":"string"}}}}}})", i, k);
                            }) +
                       "]}";
              }) + "]}");
  expect_soon("2,000 anchors",
              R"({"$ref":"#a0","$defs":{)" + list(2'000, ",", [](int i) {
                return strf(
                    R"("d{}":{{"$anchor":"a{}","type":"object","properties":{{"n":{{"$ref":"#a{}"}}}}}})", i,
                    i, (i + 1) % 2'000);
              }) + "}}");
  const auto chain = [&](int length, const char* more) {
    return R"({"$ref":"#/$defs/d0","$defs":{)" +
           list(length, ",",
                [&](int i) {
                  return strf(R"("d{}":{{"type":"object","properties":{{"n":{{"$ref":"#/$defs/d{}"}}}}{}}})",
                              i, (i + 1) % length, more);
                }) +
           "}}";
  };
  expect_soon("a chain of 4,900 definitions", chain(4'900, ""));
  expect_soon("one that never ends", chain(4'900, R"(,"required":["n"])"));
  const std::string members = list(1'000, ",", numbered("\"p", "\":{}"));
  expect_soon("members that are counted", R"({"maxProperties":199,"properties":{)" + members + "}}");
  expect_soon("at least so many of them", R"({"minProperties":200,"properties":{)" + members + "}}");
  expect_soon("patterns of names", R"({"properties":{)" + members + R"(},"patternProperties":{)" +
                                       list(6, ",", numbered("\"a", ".*b$\":{}")) + "}}");
  expect_soon("patterns of names that hang together",
              R"({"patternProperties":{)" + list(6, ",", numbered("\".*a.{1", "}\":{}")) + "}}");
}

TEST(HostileConstraints, Expressions) {
  const auto regex = [](const std::string& name, const std::string& pattern) {
    expect_soon(name, [&](Grammar& grammar) { return add_regex(grammar, pattern, {}); });
  };
  const std::string classes =
      list(9'000, "", [](int i) { return strf("[a-{}]?", static_cast<char>('b' + i % 20)); });
  regex("so many that may be left out", times(16'000, "a?") + times(16'000, "a"));
  regex("the same with sets", classes);
  regex("the same again and again", "(" + classes + ")*");
  regex("a password's rules", "(?=.*[0-9])(?=.*[a-z])(?=.*[A-Z])(?=.*[!@#])(?!.*aaa)(?!.*bbb).{8,64}");
  regex("parts that have to agree", "(?=.*1.{9})(?=.*2.{8})(?=.*3.{7}).{8,64}");
}

TEST(HostileConstraints, Grammars) {
  const auto gbnf = [](const std::string& name, const std::string& text) {
    expect_soon(name, [&](Grammar& grammar) { return add_gbnf(grammar, text); });
  };
  gbnf("as many stacks as there are subsets", "root ::= r0\nr900 ::= \"b\"\n" + list(900, "\n", [](int i) {
                                                return strf("r{} ::= r{}? r{}? \"a\"", i, i + 1, i + 1);
                                              }));
  gbnf("rules in the wrong order", "root ::= r0\n" + list(4'900, "\n", [](int i) {
                                     return strf("r{} ::= r{} | \"x\" r{}", i, i + 1, i + 1);
                                   }) + "\nr4900 ::= \"b\"");
  gbnf("a chain of what may be nothing", "root ::= (r0)*\n" + list(2'400, "\n", [](int i) {
                                           return strf("r{} ::= r{}?", i, i + 1);
                                         }) + "\nr2400 ::= \"b\"?");
}

}  // namespace
}  // namespace sparrow
