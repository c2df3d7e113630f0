// SPDX-License-Identifier: Apache-2.0
// What a template must not be able to do: run on, eat memory, overflow the stack, or fail without saying
// where.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/strf.h"
#include "text/jinja/run/interpreter.h"
#include "text/jinja/syntax/parser.h"

namespace sparrow::jinja {
namespace {

using ::testing::HasSubstr;

Result<std::string> render(std::string_view source, Limits limits = {}) {
  const Template parsed = SPARROW_TRY(parse_template(source));
  Heap heap(limits);
  return SPARROW_TRY(Interpreter(heap, std::tm{}).render(parsed)).text;
}

std::string error_of(std::string_view source, Limits limits = {}) {
  const Result<std::string> result = render(source, limits);
  return result.ok() ? "no error: " + result.value() : result.error().message;
}

TEST(JinjaErrors, NameTheLineAndTheReason) {
  EXPECT_EQ(error_of("a\nb\n{{ user.name }}"), "chat template, line 3: 'user' is undefined");
  EXPECT_EQ(error_of("{% if true %}\n\n{{ 1 + 'a' }}{% endif %}"),
            "chat template, line 3: unsupported operand type(s) for +: 'int' and 'str'");
  EXPECT_EQ(error_of("x\n{{ raise_exception('not now') }}"), "chat template, line 2: not now");
  EXPECT_EQ(error_of("{% macro m() %}\n{{ {}.a.b }}\n{% endmacro %}\n{{ m() }}"),
            "chat template, line 2: 'dict object' has no attribute 'a'");
  EXPECT_EQ(error_of("\n{% if %}"),
            "chat template, line 2: expected an expression, got 'end of statement block'");
  EXPECT_THAT(error_of("{% if true %}\nx"), HasSubstr("line 2: unexpected end of template, looking for"));
  EXPECT_THAT(error_of("{% extends 'a' %}"), HasSubstr("line 1: unknown or unsupported tag 'extends'"));
  EXPECT_EQ(error_of("{{ 'a'\n|nope }}"), "chat template, line 2: No filter named 'nope'.");
}

TEST(JinjaErrors, SourceThatIsNotUtf8IsRefused) {
  EXPECT_EQ(error_of("a\n\xff"), "chat template, line 2: byte 2 is not valid UTF-8");
}

TEST(JinjaSandbox, ListsAndDictsOfTheCallerCannotBeChanged) {
  for (const std::string_view source : {"{{ [1].append(2) }}", "{{ {'a': 1}.update({}) }}",
                                        "{{ [1].sort() }}", "{{ {}.setdefault('a', 1) }}"})
    EXPECT_THAT(error_of(source), HasSubstr("is unsafe"));
}

TEST(JinjaSandbox, NothingBehindTheValuesCanBeReached) {
  for (const std::string_view source :
       {"{{ ''.__class__.__mro__ }}", "{{ self.x }}", "{{ range.__globals__.os }}",
        "{% set ns = namespace(__class__=1) %}", "{% include 'x' %}", "{% import 'x' as y %}",
        "{{ lipsum() }}", "{{ cycler.__init__ }}"})
    EXPECT_THAT(error_of(source), HasSubstr("chat template, line 1: ")) << source;
}

TEST(JinjaLimits, EndlessWorkStopsAtTheStepLimit) {
  const std::string loops =
      "{% for a in range(9999) %}{% for b in range(9999) %}{% for c in range(9999) %}{% endfor %}{% endfor %}"
      "{% endfor %}";
  EXPECT_THAT(error_of(loops, {.max_steps = 100'000}), HasSubstr("more than 100000 steps"));
  // Sharing makes a small value exponentially large to walk.
  const std::string doubling =
      "{% set ns = namespace(l=[1]) %}{% for i in range(60) %}{% set ns.l = [ns.l, ns.l] %}{% endfor %}";
  EXPECT_THAT(error_of(doubling + "{{ ns.l }}", {.max_steps = 100'000}), HasSubstr("steps"));
  EXPECT_THAT(error_of(doubling + "{{ ns.l|tojson }}", {.max_steps = 100'000}), HasSubstr("steps"));
  EXPECT_THAT(error_of(doubling + "{{ ns.l == [ns.l, 1] }}{{ [ns.l] < [ns.l[:]] }}", {.max_steps = 100'000}),
              HasSubstr("False"));
}

TEST(JinjaLimits, RecursionStopsAtTheDepthLimitAndNotAtTheEndOfTheStack) {
  EXPECT_THAT(error_of("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}"),
              HasSubstr("nest more than 1000 deep"));
  EXPECT_THAT(error_of("{% macro m(a=m()) %}{% endmacro %}{{ m() }}"), HasSubstr("nest more than 1000 deep"));
  EXPECT_THAT(error_of("{% for x in [[1]] recursive %}{{ loop([[1]]) }}{% endfor %}"),
              HasSubstr("nest more than 1000 deep"));
}

TEST(JinjaLimits, SourceMayNotNestDeeperThanTheParserGoes) {
  const auto repeated = [](std::string_view text, int count) {
    std::string out;
    for (int i = 0; i < count; ++i) out += text;
    return out;
  };
  for (const std::string& source :
       {"{{ " + repeated("(", 100'000), "{{ " + repeated("[", 100'000),
        "{{ " + repeated("-", 100'000) + "1 }}", "{{ " + repeated("not ", 100'000) + "1 }}",
        "{{ 1" + repeated("+1", 100'000) + " }}", "{{ a" + repeated(".b", 100'000) + " }}",
        "{{ a" + repeated("|upper", 100'000) + " }}", "{{ a" + repeated(" if a else a", 100'000) + " }}",
        "{{ " + repeated("{1:", 100'000), repeated("{% if 1 %}", 100'000),
        repeated("{% for a in b %}", 100'000), "{{ a" + repeated("()", 100'000) + " }}",
        "{% set " + repeated("(", 100'000)})
    EXPECT_THAT(error_of(source), HasSubstr("200 deep")) << source.substr(0, 20);
}

TEST(JinjaLimits, ValuesMayNotNestDeeperThanTheyCanBeWalked) {
  EXPECT_THAT(
      error_of("{% set ns = namespace(l=[]) %}{% for i in range(9999) %}{% set ns.l = [ns.l] %}{% endfor %}"),
      HasSubstr("nested more than 200 deep"));
}

TEST(JinjaLimits, ANamespaceMayContainItself) {
  EXPECT_EQ(render("{% set ns = namespace(a=1) %}{% set ns.me = ns %}{{ ns.me.me.me.a }}").value(), "1");
}

TEST(JinjaLimits, TextsStopAtTheOutputLimit) {
  const Limits small{.max_output = 10'000};
  for (const std::string_view source :
       {"{{ 'x' * 1000000000000 }}", "{{ 'abc'.center(99999) }}", "{{ 'abc'.ljust(9223372036854775807) }}",
        "{{ '1'.zfill(99999) }}", "{% for i in range(99999) %}x{% endfor %}",
        "{{ ('x' * 9999)|replace('x', 'yy') }}", "{{ ('x' * 9999).replace('', 'yy') }}",
        "{{ (['x' * 999] * 99)|join }}", "{{ 'x'|indent(99999, true) }}",
        "{% set ns = namespace(s='x') %}{% for i in range(99) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}",
        "{{ ['x'] * 99999 }}", "{{ '%99999d' % 1 }}", "{{ '{:99999}'.format(1) }}"})
    EXPECT_THAT(error_of(source, small), HasSubstr("chat template, line 1: ")) << source;
}

TEST(JinjaLimits, MemoryStopsAtItsLimit) {
  const Limits small{.max_memory = 1 << 20};
  EXPECT_THAT(error_of("{% for i in range(99999) %}{% set x = 'abc' * 1000 %}{% endfor %}", small),
              HasSubstr("more than 1048576 bytes of memory"));
}

TEST(JinjaLimits, BuildingUpALongTextPieceByPieceIsLinear) {
  // 20,000 pieces of 100 bytes: copying the whole each time would take 20 GB of the 1 GiB allowed.
  const std::string source =
      "{% set ns = namespace(s='') %}{% set piece = 'x' * 100 %}{% for i in range(20000) %}"
      "{% set ns.s = ns.s + piece %}{% endfor %}{{ ns.s|length }}";
  EXPECT_EQ(render(source).value(), "2000000");
}

TEST(JinjaIntegers, OverflowIsAnErrorAndNotAWrongNumber) {
  for (const std::string_view source :
       {"{{ 9223372036854775807 + 1 }}", "{{ 2 ** 64 }}", "{{ -9223372036854775807 - 2 }}",
        "{{ 4611686018427387904 * 2 }}", "{{ (-9223372036854775807 - 1) // -1 }}",
        "{{ 18446744073709551615 + 1 }}"})
    EXPECT_THAT(error_of(source), HasSubstr("does not fit 64 bits")) << source;
  EXPECT_EQ(render("{{ (-9223372036854775807 - 1) % -1 }}").value(), "0");
}

}  // namespace
}  // namespace sparrow::jinja
