// SPDX-License-Identifier: Apache-2.0
#include "text/constraint/regex/regex_syntax.h"

#include <algorithm>
#include <optional>

#include "base/strf.h"
#include "base/utf8.h"

namespace sparrow {
namespace {

constexpr int kMaxDepth = 200;
// Of all escapes together: \W and \p{L} have some hundred each.
constexpr size_t kMaxRanges = 50'000;

using Kind = RegexNode::Kind;

class Parser {
 public:
  explicit Parser(std::string_view pattern) : text_(pattern) {}

  Result<RegexNode> parse() {
    RegexNode node = SPARROW_TRY(choice(0));
    if (at_ < text_.size()) return error("there is a ) without a (");
    return node;
  }

 private:
  Error error(std::string_view what) const { return error_at(at_, what); }
  Error error_at(size_t place, std::string_view what) const {
    return {Errc::kInvalidArgument,
            strf("{} at byte {} of the pattern {}", what, place, excerpt(std::string(text_), 100))};
  }
  bool next_is(std::string_view what) const { return text_.substr(at_).starts_with(what); }
  bool take(std::string_view what) {
    if (!next_is(what)) return false;
    at_ += what.size();
    return true;
  }
  bool at_end() const { return at_ >= text_.size(); }

  Result<RegexNode> choice(int depth) {
    if (depth > kMaxDepth) return error("groups are nested too deep");
    RegexNode node{.kind = Kind::kChoice, .place = at_};
    do node.parts.push_back(SPARROW_TRY(sequence(depth)));
    while (take("|"));
    if (node.parts.size() == 1) return std::move(node.parts[0]);
    for (const RegexNode& part : node.parts) node.anchored |= part.anchored;
    return node;
  }

  Result<RegexNode> sequence(int depth) {
    RegexNode node{.kind = Kind::kSequence, .place = at_};
    while (!at_end() && text_[at_] != '|' && text_[at_] != ')') {
      RegexNode part = SPARROW_TRY(atom(depth));
      SPARROW_TRY(quantifiers(part));
      node.anchored |= part.anchored;
      node.parts.push_back(std::move(part));
    }
    return node;
  }

  Result<RegexNode> atom(int depth) {
    const size_t place = at_;
    const auto set = [&](CodePoints points) {
      return RegexNode{.kind = Kind::kSet, .set = std::move(points), .place = place};
    };
    if (take("(")) return group(depth, place);
    if (take("^")) return RegexNode{.kind = Kind::kStart, .place = place, .anchored = true};
    if (take("$")) return RegexNode{.kind = Kind::kEnd, .place = place, .anchored = true};
    if (take(".")) return set(CodePoints::dot());
    if (take("[")) return set(SPARROW_TRY(bracket(place)));
    if (next_is("*") || next_is("+") || next_is("?")) return error("there is nothing to repeat");
    if (take("\\")) {
      if (take("A")) return RegexNode{.kind = Kind::kStart, .place = place, .anchored = true};
      if (take("z") || take("Z")) return RegexNode{.kind = Kind::kEnd, .place = place, .anchored = true};
      return set(SPARROW_TRY(escape(place, /*in_bracket=*/false)));
    }
    const uint32_t c = SPARROW_TRY(character());
    return set({{c, c}});
  }

  Result<RegexNode> group(int depth, size_t place) {
    if (take("?")) {
      if (const bool wanted = take("="); wanted || take("!")) {
        RegexNode ahead{.kind = wanted ? Kind::kAhead : Kind::kNotAhead, .place = place, .anchored = true};
        ahead.parts.push_back(SPARROW_TRY(choice(depth + 1)));
        if (!take(")")) return error_at(place, "a group has no end");
        return ahead;
      }
      if (next_is("<=") || next_is("<!")) return error_at(place, "look-behind is not supported");
      if (next_is(">")) return error_at(place, "an atomic group is not supported");
      if (next_is("P=") || next_is("P>")) return error_at(place, "a backreference is not supported");
      if (next_is("#") || next_is("(")) return error_at(place, "this kind of group is not supported");
      if (take("P<") || take("<")) {
        const size_t end = text_.find('>', at_);
        if (end == std::string_view::npos) return error_at(place, "a group's name has no end");
        at_ = end + 1;
      } else if (!take(":")) {
        return error_at(place, "flags are not supported");
      }
    }
    RegexNode inner = SPARROW_TRY(choice(depth + 1));
    if (!take(")")) return error_at(place, "a group has no end");
    return inner;
  }

  Status quantifiers(RegexNode& part) {
    const size_t place = at_;
    int min = 0, max = Grammar::kNoLimit;
    if (take("+")) {
      min = 1;
    } else if (take("?")) {
      max = 1;
    } else if (!take("*")) {
      const auto counted = SPARROW_TRY(braces());
      if (!counted) return Ok{};
      std::tie(min, max) = *counted;
    }
    if (next_is("+")) return error_at(place, "a possessive quantifier is not supported");
    take("?");  // how much is tried first does not change what fits
    if (part.anchored) return error_at(place, "an anchor that is repeated is not supported");
    RegexNode repeated{.kind = Kind::kRepeat, .min = min, .max = max, .place = place};
    repeated.parts.push_back(std::move(part));
    part = std::move(repeated);
    if (next_is("*") || next_is("+") || next_is("?")) return error("there is nothing to repeat");
    return Ok{};
  }

  // {m}, {m,} or {m,n}; other braces are text.
  Result<std::optional<std::pair<int, int>>> braces() {
    const size_t start = at_;
    const auto none = [&] {
      at_ = start;
      return std::optional<std::pair<int, int>>();
    };
    if (!take("{")) return none();
    if (next_is(",")) {
      const size_t close = text_.find('}', at_);
      const std::string_view inside =
          text_.substr(at_ + 1, close == std::string_view::npos ? 0 : close - at_ - 1);
      if (!inside.empty() && inside.find_first_not_of("0123456789") == std::string_view::npos)
        return error_at(start, "a quantifier without a lower limit is not supported");
      return none();
    }
    const std::optional<int> min = number();
    if (!min) return none();
    int max = *min;
    if (take(",")) max = next_is("}") ? Grammar::kNoLimit : number().value_or(-1);
    if (max < 0 || !take("}")) return none();
    if (*min > kMaxPatternRepeats || (max > kMaxPatternRepeats && max != Grammar::kNoLimit))
      return error_at(start, strf("a quantifier of more than {} is not supported", kMaxPatternRepeats));
    if (*min > max) return error_at(start, "a quantifier's lower limit is above its upper one");
    return std::optional(std::pair(*min, max));
  }

  std::optional<int> number() {
    int value = 0;
    const size_t start = at_;
    for (; !at_end() && text_[at_] >= '0' && text_[at_] <= '9'; ++at_)
      value = std::min(value * 10 + (text_[at_] - '0'), 10 * kMaxPatternRepeats);
    return at_ > start ? std::optional(value) : std::nullopt;
  }

  Result<uint32_t> character() {
    const Utf8Char c = decode_utf8(text_.substr(at_));
    if (!c.valid) return error("there is no UTF-8");
    at_ += c.length;
    return c.code_point;
  }

  Result<CodePoints> bracket(size_t place) {
    const bool negated = take("^");
    std::vector<CodePoints::Range> ranges;
    while (!take("]")) {
      if (at_end()) return error_at(place, "a class has no end");
      if (next_is("[:") && text_.find(":]", at_) != std::string_view::npos)
        return error("a named class is not supported");
      const size_t start = at_;
      CodePoints one = SPARROW_TRY(class_member(start));
      if (next_is("-") && !text_.substr(at_).starts_with("-]")) {
        ++at_;
        if (at_end()) return error_at(place, "a class has no end");
        const CodePoints to = SPARROW_TRY(class_member(at_));
        const auto single = [](const CodePoints& s) {
          return s.ranges().size() == 1 && s.ranges()[0].first == s.ranges()[0].last;
        };
        if (!single(one) || !single(to)) return error_at(start, "a range needs a character at either end");
        const uint32_t low = one.ranges()[0].first, high = to.ranges()[0].first;
        if (low > high) return error_at(start, "a range ends before it begins");
        one = CodePoints({{low, high}}).without({{0xD800, 0xDFFF}});
      }
      ranges.insert(ranges.end(), one.ranges().begin(), one.ranges().end());
    }
    CodePoints set(std::move(ranges));
    return negated ? CodePoints::all().without(set) : set;
  }

  Result<CodePoints> class_member(size_t place) {
    if (take("\\")) return escape(place, /*in_bracket=*/true);
    const uint32_t c = SPARROW_TRY(character());
    return CodePoints({{c, c}});
  }

  Result<CodePoints> escape(size_t place, bool in_bracket) {
    CodePoints set = SPARROW_TRY(escaped_set(place, in_bracket));
    num_ranges_ += set.ranges().size();
    if (num_ranges_ > kMaxRanges) return error_at(place, "there are too many large sets of characters");
    return set;
  }
  Result<CodePoints> escaped_set(size_t place, bool in_bracket);
  Result<CodePoints> property(size_t place, bool negated);
  Result<uint32_t> hex(size_t place, int digits);
  Result<uint32_t> unicode_escape(size_t place);

  std::string_view text_;
  size_t at_ = 0, num_ranges_ = 0;
};

Result<uint32_t> Parser::hex(size_t place, int digits) {
  uint32_t value = 0;
  int count = 0;
  for (; count < digits && !at_end() && std::isxdigit(static_cast<unsigned char>(text_[at_]));
       ++count, ++at_) {
    const char c = text_[at_];
    value = value * 16 + static_cast<uint32_t>(c <= '9' ? c - '0' : (c | 32) - 'a' + 10);
  }
  if (count < digits && digits < 8) return error_at(place, "an escape has too few digits");
  return value;
}

// After \u: four digits, a pair of them, or any number in braces.
Result<uint32_t> Parser::unicode_escape(size_t place) {
  uint32_t value;
  if (take("{")) {
    value = SPARROW_TRY(hex(place, 8));
    if (!take("}")) return error_at(place, "an escape has no end");
  } else {
    value = SPARROW_TRY(hex(place, 4));
    if (value >= 0xD800 && value < 0xDC00 && take("\\u")) {
      const uint32_t low = SPARROW_TRY(hex(place, 4));
      if (low < 0xDC00 || low > 0xDFFF) return error_at(place, "half a surrogate pair is not supported");
      value = 0x10000 + ((value - 0xD800) << 10) + (low - 0xDC00);
    }
  }
  if (value > 0x10FFFF || (value >= 0xD800 && value <= 0xDFFF))
    return error_at(place, "an escape is no character");
  return value;
}

// \p{L}, \p{Lu}, \p{Letter}, \p{gc=L}, \p{General_Category=L}.
Result<CodePoints> Parser::property(size_t place, bool negated) {
  std::string name;
  if (take("{")) {
    const size_t end = text_.find('}', at_);
    if (end == std::string_view::npos) return error_at(place, "an escape has no end");
    name = text_.substr(at_, end - at_);
    at_ = end + 1;
  } else if (!at_end()) {
    name = text_[at_++];
  }
  for (const std::string_view prefix : {"gc=", "General_Category="})
    if (name.starts_with(prefix)) name.erase(0, prefix.size());
  constexpr std::pair<std::string_view, std::string_view> kNames[] = {{"Letter", "L"},
                                                                      {"Uppercase_Letter", "Lu"},
                                                                      {"Lowercase_Letter", "Ll"},
                                                                      {"Titlecase_Letter", "Lt"},
                                                                      {"Mark", "M"},
                                                                      {"Number", "N"},
                                                                      {"Decimal_Number", "Nd"},
                                                                      {"digit", "Nd"},
                                                                      {"Punctuation", "P"},
                                                                      {"punct", "P"},
                                                                      {"Symbol", "S"},
                                                                      {"Separator", "Z"},
                                                                      {"Space_Separator", "Zs"}};
  for (const auto& [whole, brief] : kNames)
    if (name == whole) name = brief;
  const CodePoints set = name.empty() || name.size() > 2 ? CodePoints() : CodePoints::category(name);
  if (set.empty()) return error_at(place, strf("the property {} is not supported", excerpt(name, 40)));
  return negated ? CodePoints::all().without(set) : set;
}

Result<CodePoints> Parser::escaped_set(size_t place, bool in_bracket) {
  const auto one = [](uint32_t c) { return CodePoints({{c, c}}); };
  if (at_end()) return error_at(place, "a backslash ends the pattern");
  const char c = text_[at_++];
  switch (c) {
    case 'd':
      return CodePoints::digits();
    case 'D':
      return CodePoints::not_digits();
    case 'w':
      return CodePoints::words();
    case 'W':
      return CodePoints::not_words();
    case 's':
      return CodePoints::spaces();
    case 'S':
      return CodePoints::not_spaces();
    case 'p':
    case 'P':
      return property(place, c == 'P');
    case 'n':
      return one('\n');
    case 'r':
      return one('\r');
    case 't':
      return one('\t');
    case 'f':
      return one('\f');
    case 'v':
      return one('\v');
    case 'a':
      return one('\a');
    case 'x':
      return one(SPARROW_TRY(hex(place, 2)));
    case 'u':
      return one(SPARROW_TRY(unicode_escape(place)));
    case 'c':
      if (at_end() || !std::isalpha(static_cast<unsigned char>(text_[at_])))
        return error_at(place, "an escape is not known");
      return one(static_cast<uint32_t>(text_[at_++]) & 31);
    case 'b':
      if (in_bracket) return one('\b');
      [[fallthrough]];
    case 'B':
      return error_at(place, "a word boundary is not supported");
    case '0':
      return one(0);
    default:
      break;
  }
  if ((c >= '1' && c <= '9') || c == 'k') return error_at(place, "a backreference is not supported");
  if (std::isalnum(static_cast<unsigned char>(c))) return error_at(place, "an escape is not known");
  --at_;
  return one(SPARROW_TRY(character()));
}

}  // namespace

Result<RegexNode> parse_regex(std::string_view pattern) {
  if (pattern.size() > kMaxPatternBytes)
    return Error{Errc::kInvalidArgument,
                 strf("a pattern has {} bytes; {} are the limit", pattern.size(), kMaxPatternBytes)};
  return Parser(pattern).parse();
}

}  // namespace sparrow
