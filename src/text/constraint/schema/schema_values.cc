// SPDX-License-Identifier: Apache-2.0
// Values by their type, and alternatives.
#include <algorithm>
#include <numeric>

#include "base/strf.h"
#include "base/utf8.h"
#include "text/constraint/automaton.h"
#include "text/constraint/schema/compiler.h"
#include "text/constraint/schema/decimal_range.h"

namespace sparrow {
namespace {

constexpr size_t kMaxAlternatives = 512;
constexpr int64_t kMaxDivisor = 1000;
constexpr int kMaxIndent = 40;
// Definitions may refer to each other in a chain that is longer than a stack: what is deeper waits its turn.
constexpr int kMaxNesting = 64;

std::string key_of(const Facets& facets) {
  std::string key;
  for (const Facet& facet : facets) key += facet.key() + "\n";
  return key;
}

void tighten(NumberRange& range, bool low, const NumberRange::Bound& by) {
  auto& bound = low ? range.low : range.high;
  const int order = bound ? compare(by.value, bound->value) : 0;
  if (!bound || (low ? order > 0 : order < 0) || (order == 0 && by.exclusive)) bound = by;
}

// Those of OpenAPI's kind that have bounds. int64 has all integers that are written without one.
void tighten_by_format(NumberRange& range, std::string_view format) {
  struct Format {
    std::string_view name, low, high;  // below zero; none: there is no such bound
  };
  static constexpr Format kFormats[] = {
      {"int8", "128", "127"}, {"int16", "32768", "32767"}, {"int32", "2147483648", "2147483647"},
      {"uint8", "0", "255"},  {"uint16", "0", "65535"},    {"uint32", "0", "4294967295"},
      {"uint64", "0", ""},    {"uint", "0", ""},           {"int64", "", ""},
  };
  for (const auto& [name, low, high] : kFormats) {
    if (name != format) continue;
    range.whole = true;
    if (!low.empty())
      tighten(range, true, {{.negative = low != "0", .whole = std::string(low), .fraction = ""}});
    if (!high.empty())
      tighten(range, false, {{.negative = false, .whole = std::string(high), .fraction = ""}});
  }
}

}  // namespace

SchemaCompiler::SchemaCompiler(Grammar& grammar, const Json& root, ValueStyle style)
    : g_(grammar),
      document_(root),
      style_(style),
      spelling_(style == ValueStyle::kJson ? Spelling::kJson : Spelling::kRaw),
      gap_(grammar.empty()),
      space_(grammar.empty()) {
  if (style == ValueStyle::kToolCall) return;
  ByteSet blanks;
  for (const char c : {' ', '\t'}) blanks.add(c);
  const NodeId indent = g_.sequence({g_.literal("\n"), g_.repeat(g_.bytes(blanks), 0, kMaxIndent)});
  space_ = g_.optional(g_.literal(" "));
  gap_ = g_.choice({g_.empty(), g_.literal(" "), indent});
}

Result<NodeId> SchemaCompiler::root() {
  Facet whole = document_.root();
  if (style_ == ValueStyle::kToolCall) whole.role = Role::kArguments;
  const NodeId node = SPARROW_TRY(value({whole}));
  if (node != g_.nothing()) return node;
  return Error{Errc::kInvalidArgument, strf("the schema cannot be satisfied: nothing fits {}",
                                            unfit_.empty() ? "it" : "what is at " + excerpt(unfit_))};
}

// A rule for each set of schemas, so that they may refer to themselves.
Result<NodeId> SchemaCompiler::value(const Facets& facets) {
  const auto [entry, is_new] = rules_.try_emplace(key_of(facets), 0);
  if (!is_new) return g_.rule(entry->second);
  const int rule = entry->second = g_.add_rule(facets.empty() ? "value" : facets[0].pointer);
  if (rules_.size() > kMaxGrammarDepth || g_.overflows())
    return Error{Errc::kInvalidArgument, "the schema is too large"};
  if (nesting_ == kMaxNesting) {
    later_.emplace_back(rule, facets);
    return g_.rule(rule);
  }
  const NodeId node = SPARROW_TRY(define(rule, facets));
  while (nesting_ == 0 && !later_.empty()) {
    const auto [number, inner] = std::move(later_.back());
    later_.pop_back();
    SPARROW_TRY(define(number, inner));
  }
  return node == g_.nothing() ? node : g_.rule(rule);
}

Result<NodeId> SchemaCompiler::define(int rule, const Facets& facets) {
  ++nesting_;
  Result<NodeId> node = open_value(facets);
  --nesting_;
  if (node.ok()) g_.define(rule, *node);
  return node;
}

Result<NodeId> SchemaCompiler::open_value(const Facets& facets) {
  OpenFacets open = SPARROW_TRY(open_facets(document_, facets));
  if (open.never) return g_.nothing();
  if (const auto node = SPARROW_TRY(listed(open.facets))) return *node;
  for (const std::string_view keyword : {"anyOf", "oneOf"})
    if (const auto node = SPARROW_TRY(alternatives(open.facets, keyword))) return *node;
  const Role role = role_of(open.facets);
  const bool any =
      std::ranges::all_of(open.facets, [](const Facet& facet) { return facet.schema.size() == 0; });
  if (any && role == Role::kValue) return any_value();
  const unsigned types = SPARROW_TRY(types_of(open.facets));
  if (role == Role::kName) return types & kString ? text(open.facets, spelling_) : g_.nothing();
  return typed(open.facets, role == Role::kArguments ? types & kObject : types);
}

// The first facet that has alternatives, each of them beside all else. nullopt: there is none.
Result<std::optional<NodeId>> SchemaCompiler::alternatives(const Facets& facets, std::string_view keyword) {
  const bool one = keyword == "oneOf";
  for (size_t i = 0; i < facets.size(); ++i) {
    const Facet& facet = facets[i];
    const auto list = member(facet.schema, keyword);
    if (!list || (one ? facet.one_taken : facet.any_taken)) continue;
    if (list->size() == 0) return refuse(facet, keyword, "lists no schemas");
    if (list->size() > kMaxAlternatives) return refuse(facet, keyword, "has too many alternatives");
    std::vector<Facets> ways;
    for (size_t k = 0; k < list->size(); ++k) {
      SPARROW_TRY(document_.spend(1 + 3 * facets.size()));
      Facets way = facets;
      (one ? way[i].one_taken : way[i].any_taken) = true;
      way.push_back(part_of(facet, keyword, std::to_string(k)));
      ways.push_back(std::move(way));
    }
    if (one) SPARROW_TRY(check_apart(facet, ways));
    std::vector<NodeId> nodes;
    for (const Facets& way : ways) nodes.push_back(SPARROW_TRY(value(way)));
    return std::optional(g_.choice(nodes));
  }
  return std::optional<NodeId>();
}

Status SchemaCompiler::check_apart(const Facet& facet, const std::vector<Facets>& ways) {
  std::vector<OpenFacets> open;
  for (const Facets& way : ways) open.push_back(SPARROW_TRY(open_facets(document_, way)));
  for (size_t a = 0; a < ways.size(); ++a)
    for (size_t b = a + 1; b < ways.size(); ++b)
      if (!SPARROW_TRY(apart(open[a], open[b], 0)))
        return refuse(facet, "oneOf",
                      strf("has the alternatives {} and {}, and a value might fit both: use anyOf", a, b));
  return Ok{};
}

// Whether no value can fit both, as far as that is easy to see.
Result<bool> SchemaCompiler::apart(const OpenFacets& left, const OpenFacets& right, int depth) {
  if (depth > 4) return false;
  if (left.never || right.never) return true;
  const unsigned types = SPARROW_TRY(types_of(left.facets)) & SPARROW_TRY(types_of(right.facets));
  if (types == 0) return true;
  const auto lists = [](const Facet& facet) {
    return member(facet.schema, "const") || member(facet.schema, "enum");
  };
  for (const auto& [one, other] : {std::pair(&left, &right), std::pair(&right, &left)}) {
    if (std::ranges::none_of(one->facets, lists)) continue;
    bool found = false;
    for (const Json& value : SPARROW_TRY(listed_values(one->facets)))
      found =
          found || (SPARROW_TRY(lists_value(other->facets, value)) &&
                    SPARROW_TRY(fits(value, one->facets, 0)) && SPARROW_TRY(fits(value, other->facets, 0)));
    return !found;
  }
  if (types & ~kObject) return false;
  // Objects: a member that both must have, and that cannot be the same.
  for (const Facet& facet : left.facets) {
    const auto required = member(facet.schema, "required");
    for (size_t i = 0; required && i < required->size(); ++i) {
      const std::string name(required->element(i).string_view());
      bool in_other = false;
      for (const Facet& other : right.facets)
        if (const auto names = member(other.schema, "required")) {
          SPARROW_TRY(document_.spend(1 + names->size() / 4));
          for (size_t k = 0; k < names->size(); ++k) in_other |= names->element(k).string_view() == name;
        }
      if (!in_other) continue;
      const Facets here = SPARROW_TRY(member_facets(left.facets, name)),
                   there = SPARROW_TRY(member_facets(right.facets, name));
      if (SPARROW_TRY(apart(SPARROW_TRY(open_facets(document_, here)),
                            SPARROW_TRY(open_facets(document_, there)), depth + 1)))
        return true;
    }
  }
  return false;
}

Result<NodeId> SchemaCompiler::typed(const Facets& facets, unsigned types) {
  std::vector<NodeId> ways;
  if (types & kNull) ways.push_back(g_.literal("null"));
  if (types & kBoolean) ways.push_back(g_.words({"true", "false"}));
  if (types & (kNumber | kInteger)) ways.push_back(SPARROW_TRY(number(facets, !(types & kNumber))));
  if (types & kString) ways.push_back(SPARROW_TRY(string(facets)));
  if (types & kArray) ways.push_back(SPARROW_TRY(array(facets)));
  if (types & kObject) ways.push_back(SPARROW_TRY(object(facets)));
  return g_.choice(ways);
}

Result<NodeId> SchemaCompiler::number(const Facets& facets, bool whole) {
  NumberRange range{.whole = whole};
  for (const Facet& facet : facets) {
    for (const std::string_view keyword : {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"}) {
      const auto found = member(facet.schema, keyword);
      if (!found) continue;
      const auto value = decimal_of(*found);
      if (!value.ok()) return refuse(facet, keyword, strf("is {}", found->brief()));
      tighten(range, keyword.ends_with("inimum"), {value.value(), keyword.starts_with("ex")});
    }
    if (const auto format = member(facet.schema, "format")) tighten_by_format(range, format->string_view());
    const auto multiple = member(facet.schema, "multipleOf");
    if (!multiple) continue;
    const auto value = decimal_of(*multiple);
    if (!value.ok() || value.value().negative || value.value().is_zero())
      return refuse(facet, "multipleOf", strf("is {}", multiple->brief()));
    const Decimal& step = value.value();
    if (!step.fraction.empty()) {
      // A tenth, a hundredth, ...: so many digits. Who checks may divide doubles, and then smaller steps do
      // not come out even: of those whole numbers are written.
      if (step.whole != "0" || step.fraction.find_first_not_of('0') + 1 != step.fraction.size() ||
          step.fraction.back() != '1')
        return refuse(facet, "multipleOf", "is no whole number and no power of ten");
      const auto digits = static_cast<int>(step.fraction.size());
      range.max_fraction_digits = std::min(range.max_fraction_digits, digits <= 2 ? digits : 0);
      continue;
    }
    const auto divisor = multiple->as_int(1, INT64_MAX);
    int64_t rest = divisor.ok() ? divisor.value() : INT64_MAX;
    range.multiple = divisor.ok() && rest < INT32_MAX ? std::lcm(range.multiple, rest) : INT64_MAX;
    range.whole = true;
    for (rest = range.multiple; rest % 10 == 0;) rest /= 10;
    if (rest > kMaxDivisor) return refuse(facet, "multipleOf", "is too large to be held to");
  }
  return add_number(g_, range);
}

Result<NodeId> add_schema(Grammar& grammar, const Json& root, ValueStyle style) {
  return SchemaCompiler(grammar, root, style).root();
}

NodeId add_json_object(Grammar& grammar) {
  const auto empty = JsonDocument::parse("{}", "schema");
  return SchemaCompiler(grammar, empty.value().root(), ValueStyle::kJson).any_object();
}

}  // namespace sparrow
