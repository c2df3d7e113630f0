// SPDX-License-Identifier: Apache-2.0
#include "text/constraint/schema/decimal_range.h"

#include <algorithm>
#include <charconv>
#include <map>

#include "base/strf.h"

namespace sparrow {
namespace {

// As many as an int64 surely has, and a double; numbers without bounds have no more.
constexpr int kWholeDigits = 18;
constexpr size_t kMaxDigits = 400;

class NumberWriter {
 public:
  NumberWriter(Grammar& grammar, const NumberRange& range) : g_(grammar), range_(range) {
    for (const auto& bound : {range.low, range.high})
      if (bound) {
        whole_digits_ = std::max(whole_digits_, static_cast<int>(bound->value.whole.size()));
        fraction_digits_ = std::max(fraction_digits_, static_cast<int>(bound->value.fraction.size()) + 1);
      }
    fraction_digits_ = std::min(std::max(fraction_digits_, 17), range.max_fraction_digits);
  }

  NodeId number() {
    const Decimal zero;
    const auto& [low, high] = std::pair(range_.low, range_.high);
    std::vector<NodeId> ways;
    // From zero up.
    if (!high || compare(high->value, zero) >= 0) {
      const bool above_zero =
          low && (compare(low->value, zero) > 0 || (compare(low->value, zero) == 0 && low->exclusive));
      ways.push_back(magnitude(above_zero ? low : std::nullopt, high));
    }
    // Below zero the bounds change places.
    if (!low || compare(low->value, zero) < 0) {
      const auto turned = [](NumberRange::Bound bound) {
        bound.value.negative = false;
        return bound;
      };
      std::optional<NumberRange::Bound> from = NumberRange::Bound{zero, true}, to;
      if (high && compare(high->value, zero) < 0) from = turned(*high);
      if (low) to = turned(*low);
      ways.push_back(g_.sequence({g_.literal("-"), magnitude(from, to)}));
    }
    return g_.choice(ways);
  }

 private:
  NodeId digit(char first, char last) { return g_.bytes(ByteSet::range(first, last)); }
  NodeId digits(int min, int max) { return g_.repeat(digit('0', '9'), std::min(min, max), std::max(max, 0)); }
  bool no_fraction() const { return range_.whole || fraction_digits_ <= 0; }

  NodeId magnitude(const std::optional<NumberRange::Bound>& low,
                   const std::optional<NumberRange::Bound>& high) {
    std::vector<NodeId> all;
    if (low) all.push_back(at_least(*low));
    if (high) all.push_back(at_most(*high));
    if (all.empty() || range_.max_fraction_digits < 17)
      all.push_back(g_.sequence({any_whole(), any_fraction()}));
    if (range_.multiple > 1) all.push_back(multiples());
    return g_.both(std::move(all));
  }

  NodeId any_whole() {
    return g_.choice({g_.literal("0"), g_.sequence({digit('1', '9'), digits(0, whole_digits_ - 1)})});
  }
  NodeId any_fraction() {
    if (no_fraction()) return g_.empty();
    return g_.optional(g_.sequence({g_.literal("."), digits(1, fraction_digits_)}));
  }

  NodeId at_least(const NumberRange::Bound& bound) {
    const auto& [value, exclusive] = bound;
    return g_.choice({g_.sequence({above(value.whole), any_fraction()}),
                      g_.sequence({g_.literal(value.whole), fraction_at_least(value.fraction, exclusive)})});
  }
  NodeId at_most(const NumberRange::Bound& bound) {
    const auto& [value, exclusive] = bound;
    return g_.choice({g_.sequence({under(value.whole), any_fraction()}),
                      g_.sequence({g_.literal(value.whole), fraction_at_most(value.fraction, exclusive)})});
  }

  // Whole numbers above and below one.
  NodeId above(const std::string& whole) {
    const int size = static_cast<int>(whole.size());
    std::vector<NodeId> ways;
    if (size < whole_digits_) ways.push_back(g_.sequence({digit('1', '9'), digits(size, whole_digits_ - 1)}));
    for (int i = 0; i < size; ++i)
      if (whole[i] < '9')
        ways.push_back(
            g_.sequence({g_.literal(whole.substr(0, i)), digit(static_cast<char>(whole[i] + 1), '9'),
                         digits(size - i - 1, size - i - 1)}));
    return g_.choice(ways);
  }
  NodeId under(const std::string& whole) {
    const int size = static_cast<int>(whole.size());
    std::vector<NodeId> ways;
    if (size > 1) ways = {g_.literal("0"), g_.sequence({digit('1', '9'), digits(0, size - 2)})};
    for (int i = 0; i < size; ++i) {
      const char least = i == 0 && size > 1 ? '1' : '0';
      if (whole[i] > least)
        ways.push_back(
            g_.sequence({g_.literal(whole.substr(0, i)), digit(least, static_cast<char>(whole[i] - 1)),
                         digits(size - i - 1, size - i - 1)}));
    }
    return g_.choice(ways);
  }

  // What follows the whole part where that is the bound's own.
  NodeId fraction_at_least(const std::string& bound, bool exclusive) {
    if (no_fraction()) return bound.empty() && !exclusive ? g_.empty() : g_.nothing();
    if (bound.empty() && !exclusive) return any_fraction();
    const int size = static_cast<int>(bound.size());
    std::vector<NodeId> ways;
    for (int i = 0; i < size && i < fraction_digits_; ++i)
      if (bound[i] < '9')
        ways.push_back(
            g_.sequence({g_.literal("." + bound.substr(0, i)), digit(static_cast<char>(bound[i] + 1), '9'),
                         digits(0, fraction_digits_ - i - 1)}));
    const int room = fraction_digits_ - size;
    if (!exclusive && room >= 0) ways.push_back(g_.sequence({g_.literal("." + bound), digits(0, room)}));
    // Zeros, and something after them.
    if (exclusive && room > 0)
      ways.push_back(g_.sequence({g_.literal("." + bound), g_.repeat(g_.literal("0"), 0, room - 1),
                                  digit('1', '9'), digits(0, fraction_digits_)}));
    return g_.choice(ways);
  }
  NodeId fraction_at_most(const std::string& bound, bool exclusive) {
    if (no_fraction()) return bound.empty() && exclusive ? g_.nothing() : g_.empty();
    const int size = static_cast<int>(bound.size());
    const NodeId zeros = g_.repeat(g_.literal("0"), 1, fraction_digits_);
    if (bound.empty()) return exclusive ? g_.nothing() : g_.optional(g_.sequence({g_.literal("."), zeros}));
    std::vector<NodeId> ways{g_.empty()};
    for (int i = 0; i < size && i < fraction_digits_; ++i) {
      if (bound[i] > '0')
        ways.push_back(
            g_.sequence({g_.literal("." + bound.substr(0, i)), digit('0', static_cast<char>(bound[i] - 1)),
                         digits(0, fraction_digits_ - i - 1)}));
      if (i > 0) ways.push_back(g_.literal("." + bound.substr(0, i)));
    }
    if (!exclusive && size <= fraction_digits_)
      ways.push_back(
          g_.sequence({g_.literal("." + bound), g_.repeat(g_.literal("0"), 0, fraction_digits_ - size)}));
    return g_.choice(ways);
  }

  // Digits whose number leaves no remainder: a rule for each remainder. Factors of ten are zeros at the end.
  NodeId multiples() {
    int64_t divisor = range_.multiple;
    int zeros = 0;
    for (; divisor % 10 == 0; divisor /= 10) ++zeros;
    std::vector<int> rules;
    for (int64_t i = 0; i < divisor; ++i) rules.push_back(g_.add_rule(strf("remainder {}", i)));
    for (int64_t rest = 0; rest < divisor; ++rest) {
      std::map<int64_t, ByteSet> steps;
      for (int d = 0; d < 10; ++d) steps[(rest * 10 + d) % divisor].add('0' + d);
      std::vector<NodeId> ways;
      if (rest == 0) ways.push_back(g_.empty());
      for (const auto& [next, set] : steps)
        ways.push_back(g_.sequence({g_.bytes(set), g_.rule(rules[next])}));
      g_.define(rules[rest], g_.choice(ways));
    }
    return g_.choice(
        {g_.literal("0"), g_.sequence({g_.rule(rules[0]), g_.literal(std::string(zeros, '0'))})});
  }

  Grammar& g_;
  const NumberRange& range_;
  int whole_digits_ = kWholeDigits, fraction_digits_ = 0;
};

}  // namespace

Result<Decimal> decimal_of(const Json& number) {
  std::string text;
  if (const auto digits = number.integer_digits()) {
    text = *digits;
  } else {
    const double value = SPARROW_TRY(number.as_number());
    char buffer[1100];
    const auto written = std::to_chars(buffer, buffer + sizeof(buffer), value, std::chars_format::fixed);
    text.assign(buffer, written.ptr);
  }
  Decimal decimal{.negative = text.starts_with('-')};
  if (decimal.negative) text.erase(0, 1);
  const size_t point = std::min(text.find('.'), text.size());
  decimal.whole = text.substr(0, point);
  decimal.whole.erase(0, std::min(decimal.whole.find_first_not_of('0'), decimal.whole.size() - 1));
  if (point < text.size()) decimal.fraction = text.substr(point + 1);
  decimal.fraction.erase(decimal.fraction.find_last_not_of('0') + 1);
  if (decimal.is_zero()) decimal.negative = false;
  if (text.size() > kMaxDigits) return number.error("must have fewer digits");
  return decimal;
}

int compare(const Decimal& a, const Decimal& b) {
  if (a.negative != b.negative) return a.negative ? -1 : 1;
  int order = a.whole.size() != b.whole.size() ? (a.whole.size() < b.whole.size() ? -1 : 1)
                                               : a.whole.compare(b.whole);
  if (order == 0) order = a.fraction.compare(b.fraction);
  order = order < 0 ? -1 : order > 0 ? 1 : 0;
  return a.negative ? -order : order;
}

NodeId add_number(Grammar& grammar, const NumberRange& range) {
  NumberWriter writer(grammar, range);
  const NodeId number = writer.number();
  if (range.whole || range.low || range.high || range.max_fraction_digits < 17) return number;
  ByteSet exponent, sign;
  for (const char c : {'e', 'E'}) exponent.add(c);
  for (const char c : {'+', '-'}) sign.add(c);
  const NodeId digits = grammar.repeat(grammar.bytes(ByteSet::range('0', '9')), 1, 2);
  return grammar.sequence(
      {number, grammar.optional(grammar.sequence(
                   {grammar.bytes(exponent), grammar.optional(grammar.bytes(sign)), digits}))});
}

}  // namespace sparrow
