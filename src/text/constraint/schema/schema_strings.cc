// SPDX-License-Identifier: Apache-2.0
// Strings: lengths, patterns, formats.
#include <algorithm>
#include <map>

#include "base/strf.h"
#include "text/constraint/automaton.h"
#include "text/constraint/regex/regex.h"
#include "text/constraint/schema/compiler.h"
#include "text/constraint/schema/formats.h"
#include "text/output/tool_markup.h"

namespace sparrow {
namespace {

constexpr int64_t kMaxLength = 1 << 30;

}  // namespace

// One character of a JSON string, in any of its spellings.
NodeId SchemaCompiler::json_char() {
  if (char_ >= 0) return char_;
  ByteSet ascii, simple, hex = ByteSet::range('0', '9'), not_d;
  for (int byte = 0x20; byte < 0x80; ++byte)
    if (byte != '"' && byte != '\\') ascii.add(byte);
  for (const char c : {'"', '\\', '/', 'b', 'f', 'n', 'r', 't'}) simple.add(c);
  hex.add(ByteSet::range('a', 'f'));
  hex.add(ByteSet::range('A', 'F'));
  for (int byte = 0; byte < 256; ++byte)
    if (hex.has(byte) && byte != 'd' && byte != 'D') not_d.add(byte);
  ByteSet d, low = ByteSet::range('0', '7'), high = ByteSet::range('8', '9'), last = ByteSet::range('c', 'f');
  for (const char c : {'d', 'D'}) d.add(c);
  for (const char c : {'a', 'A', 'b', 'B'}) high.add(c);
  last.add(ByteSet::range('C', 'F'));
  const NodeId digit = g_.bytes(hex);
  const NodeId first_half = g_.sequence({g_.bytes(d), g_.bytes(high), digit, digit});
  const NodeId second_half = g_.sequence({g_.literal("\\u"), g_.bytes(d), g_.bytes(last), digit, digit});
  // Half a surrogate pair is no character.
  const NodeId code = g_.choice({g_.sequence({g_.bytes(not_d), digit, digit, digit}),
                                 g_.sequence({g_.bytes(d), g_.bytes(low), digit, digit}),
                                 g_.sequence({first_half, second_half})});
  const NodeId escape =
      g_.sequence({g_.literal("\\"), g_.choice({g_.bytes(simple), g_.sequence({g_.literal("u"), code})})});
  char_ =
      g_.choice({g_.bytes(ascii), one_of(g_, {{0x80, 0xD7FF}, {0xE000, 0x10FFFF}}, Spelling::kRaw), escape});
  g_.set_plain(g_.bytes(ascii), char_);
  return char_;
}

NodeId SchemaCompiler::any_string() {
  return g_.sequence({g_.literal("\""), g_.repeat(json_char(), 0), g_.literal("\"")});
}

NodeId SchemaCompiler::any_tool_text() {
  if (tool_text_ < 0) tool_text_ = add_text_without(g_, kToolMarker);
  return tool_text_;
}

// What is between the quotes.
Result<NodeId> SchemaCompiler::text(const Facets& facets, Spelling spelling) {
  const auto min = SPARROW_TRY(largest(facets, "minLength")),
             max = SPARROW_TRY(smallest(facets, "maxLength"));
  std::vector<NodeId> all;
  const auto add = [&](const Facet& facet, std::string_view keyword, std::string_view pattern,
                       bool search) -> Status {
    auto node = add_regex(g_, pattern, {.spelling = spelling, .search = search});
    if (!node.ok()) return refuse(facet, keyword, strf("cannot be read: {}", node.error().message));
    all.push_back(node.value());
    return Ok{};
  };
  for (const Facet& facet : facets) {
    if (const auto pattern = member(facet.schema, "pattern")) {
      if (!pattern->is_string()) return refuse(facet, "pattern", "is no text");
      SPARROW_TRY(add(facet, "pattern", pattern->string_view(), true));
    }
    if (const auto format = member(facet.schema, "format")) {
      const auto known = format_pattern(format->string_view());
      if (!known) return refuse(facet, "format", strf("is {}, which is not known here", format->brief()));
      if (!known->empty()) SPARROW_TRY(add(facet, "format", *known, false));
    }
  }
  const int64_t low = min.value_or(0), high = max.value_or(Grammar::kNoLimit);
  if (low > high) return g_.nothing();
  if (low > kMaxLength) return refuse(facets[0], "minLength", "is too large");
  const bool counted = min || max;
  const int most = max && *max < Grammar::kNoLimit ? static_cast<int>(*max) : Grammar::kNoLimit;
  if (all.empty() && spelling == Spelling::kJson) return g_.repeat(json_char(), static_cast<int>(low), most);
  if (counted || all.empty())
    all.push_back(g_.repeat(one_of(g_, CodePoints::all(), spelling), static_cast<int>(low), most));
  return g_.both(std::move(all));
}

Result<NodeId> SchemaCompiler::string(const Facets& facets) {
  if (style_ == ValueStyle::kJson)
    return g_.sequence({g_.literal("\""), SPARROW_TRY(text(facets, Spelling::kJson)), g_.literal("\"")});
  const bool free = std::ranges::none_of(facets, [](const Facet& facet) {
    return member(facet.schema, "minLength") || member(facet.schema, "maxLength") ||
           member(facet.schema, "pattern") || member(facet.schema, "format");
  });
  if (free) return any_tool_text();
  return g_.both({any_tool_text(), SPARROW_TRY(text(facets, Spelling::kRaw))});
}

// One rule for each part of the phrase that has just been read.
NodeId add_text_without(Grammar& grammar, std::string_view phrase) {
  const auto size = static_cast<int>(phrase.size());
  std::vector<int> rules;
  for (int i = 0; i < size; ++i) rules.push_back(grammar.add_rule("text"));
  const NodeId other = one_of(grammar, {{0x80, 0xD7FF}, {0xE000, 0x10FFFF}}, Spelling::kRaw);
  for (int i = 0; i < size; ++i) {
    std::map<int, ByteSet> steps;
    for (int byte = 0; byte < 0x80; ++byte) {
      const std::string read = std::string(phrase.substr(0, i)) + static_cast<char>(byte);
      int kept = i + 1;
      while (!read.ends_with(phrase.substr(0, kept))) --kept;
      if (kept < size) steps[kept].add(byte);
    }
    std::vector<NodeId> ways{grammar.empty(), grammar.sequence({other, grammar.rule(rules[0])})};
    for (const auto& [kept, set] : steps)
      ways.push_back(grammar.sequence({grammar.bytes(set), grammar.rule(rules[kept])}));
    grammar.define(rules[i], grammar.choice(ways));
  }
  return grammar.rule(rules[0]);
}

}  // namespace sparrow
