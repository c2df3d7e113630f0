// SPDX-License-Identifier: Apache-2.0
// Tests: what may follow `is`.
#include <algorithm>

#include "base/strf.h"
#include "text/jinja/builtins/builtins.h"
#include "text/jinja/value/compare.h"
#include "text/jinja/value/format.h"
#include "text/jinja/value/unicode.h"

namespace sparrow::jinja {

namespace {

template <bool (*kPredicate)(const Value&)>
Result<bool> simple(Context&, const Value& v, const Args& args) {
  SPARROW_TRY(args.bind("test", {}));
  return kPredicate(v);
}

bool is_callable(const Value& v) {
  return v.is(Kind::kMacro) || v.is(Kind::kFunction) || v.is(Kind::kMethod) || v.is(Kind::kLoop) ||
         v.is_undefined();  // calling it is what fails, in jinja2 too
}
bool is_iterable(const Value& v) {
  return v.is_string() || v.is(Kind::kList) || v.is(Kind::kDict) || v.is_undefined() || v.is(Kind::kLoop);
}
// Has a length and items by index or key.
bool is_sequence(const Value& v) {
  if (v.is(Kind::kList)) return v.list->style <= ListStyle::kRange;
  return v.is_string() || v.is(Kind::kDict) || v.is_undefined();
}

// The remainder by 2, as Python takes it.
Result<double> parity(Context& context, const Value& v) {
  const Value remainder = SPARROW_TRY(binary(context, "%", v, int_value(2)));
  return remainder.is_number() ? remainder.as_double() : -1;
}

Result<bool> is_odd(Context& context, const Value& v, const Args&) {
  return SPARROW_TRY(parity(context, v)) == 1;
}

Result<bool> is_even(Context& context, const Value& v, const Args&) {
  return SPARROW_TRY(parity(context, v)) == 0;
}

Result<bool> is_divisible(Context& context, const Value& v, const Args& args) {
  const auto bound = SPARROW_TRY(args.bind("divisibleby", {"num"}, 1));
  const Value remainder = SPARROW_TRY(binary(context, "%", v, *bound[0]));
  return equal(context.heap, remainder, int_value(0));
}

Result<bool> is_equal(Context& context, const Value& v, const Args& args) {
  const auto bound = SPARROW_TRY(args.bind("eq", {"other"}, 1));
  return equal(context.heap, v, *bound[0]);
}

Result<bool> is_unequal(Context& context, const Value& v, const Args& args) {
  return !SPARROW_TRY(is_equal(context, v, args));
}

template <char kFirst, char kSecond = ' '>
Result<bool> is_ordered(Context& context, const Value& v, const Args& args) {
  const auto bound = SPARROW_TRY(args.bind("test", {"other"}, 1));
  const std::string_view op = kFirst == '<' ? (kSecond == '=' ? "<=" : "<") : (kSecond == '=' ? ">=" : ">");
  const int sign = SPARROW_TRY(order(context.heap, v, *bound[0], op));
  return (sign < 0 && kFirst == '<') || (sign > 0 && kFirst == '>') || (sign == 0 && kSecond == '=');
}

Result<bool> is_in(Context& context, const Value& v, const Args& args) {
  const auto bound = SPARROW_TRY(args.bind("in", {"seq"}, 1));
  return contains(context.heap, *bound[0], v);
}

Result<bool> is_same(Context& context, const Value& v, const Args& args) {
  const auto bound = SPARROW_TRY(args.bind("sameas", {"other"}, 1));
  const Value& other = *bound[0];
  if (v.kind != other.kind) return false;
  if (v.is(Kind::kList)) return v.list == other.list;
  if (v.is(Kind::kDict)) return v.dict == other.dict;
  return equal(context.heap, v, other);
}

template <bool (*kWanted)(char32_t), bool (*kUnwanted)(char32_t)>
Result<bool> is_case(Context& context, const Value& v, const Args&) {
  bool any = false;
  for (std::string_view rest = SPARROW_TRY(str_view(context.heap, v)); !rest.empty();
       rest.remove_prefix(char_bytes(rest))) {
    const char32_t c = first_char(rest);
    if (kUnwanted(c) || is_title(c)) return false;
    any = any || kWanted(c);
  }
  return any;
}

template <typename Found, Found (*kFind)(std::string_view)>
Result<bool> is_known(Context&, const Value& v, const Args&) {
  return v.is_string() && kFind(v.view()) != nullptr;
}

constexpr std::pair<std::string_view, Test> kTests[] = {
    {"!=", is_unequal},
    {"<", is_ordered<'<'>},
    {"<=", is_ordered<'<', '='>},
    {"==", is_equal},
    {">", is_ordered<'>'>},
    {">=", is_ordered<'>', '='>},
    {"boolean", simple<[](const Value& v) { return v.is(Kind::kBool); }>},
    {"callable", simple<is_callable>},
    {"defined", simple<[](const Value& v) { return !v.is_undefined(); }>},
    {"divisibleby", is_divisible},
    {"eq", is_equal},
    {"equalto", is_equal},
    {"escaped", simple<[](const Value&) { return false; }>},
    {"even", is_even},
    {"false", simple<[](const Value& v) { return v.is(Kind::kBool) && !v.boolean; }>},
    {"filter", is_known<Filter, find_filter>},
    {"float", simple<[](const Value& v) { return v.is(Kind::kFloat); }>},
    {"ge", is_ordered<'>', '='>},
    {"greaterthan", is_ordered<'>'>},
    {"gt", is_ordered<'>'>},
    {"in", is_in},
    {"integer", simple<[](const Value& v) { return v.is(Kind::kInt) || v.is(Kind::kBigInt); }>},
    {"iterable", simple<is_iterable>},
    {"le", is_ordered<'<', '='>},
    {"lessthan", is_ordered<'<'>},
    {"lower", is_case<is_lower, is_upper>},
    {"lt", is_ordered<'<'>},
    {"mapping", simple<[](const Value& v) { return v.is(Kind::kDict); }>},
    {"ne", is_unequal},
    {"none", simple<[](const Value& v) { return v.is_none(); }>},
    {"number", simple<[](const Value& v) { return v.is_number(); }>},
    {"odd", is_odd},
    {"sameas", is_same},
    {"sequence", simple<is_sequence>},
    {"string", simple<[](const Value& v) { return v.is_string(); }>},
    {"test", is_known<Test, find_test>},
    {"true", simple<[](const Value& v) { return v.is(Kind::kBool) && v.boolean; }>},
    {"undefined", simple<[](const Value& v) { return v.is_undefined(); }>},
    {"upper", is_case<is_upper, is_lower>},
};

}  // namespace

Test find_test(std::string_view name) {
  const auto* const found =
      std::lower_bound(std::begin(kTests), std::end(kTests), name,
                       [](const auto& row, std::string_view wanted) { return row.first < wanted; });
  return found != std::end(kTests) && found->first == name ? found->second : nullptr;
}

}  // namespace sparrow::jinja
