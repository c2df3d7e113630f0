// SPDX-License-Identifier: Apache-2.0
#include "text/constraint/gbnf.h"

#include <algorithm>
#include <cctype>
#include <map>
#include <optional>

#include "base/strf.h"
#include "base/utf8.h"
#include "text/constraint/regex/code_points.h"

namespace sparrow {
namespace {

constexpr size_t kMaxTextBytes = 1 << 20;
constexpr int kMaxDepth = 200, kMaxRepeats = 100'000;
constexpr std::string_view kDefines = "::=";

class Parser {
 public:
  Parser(Grammar& grammar, std::string_view text) : grammar_(grammar), text_(text) {}

  Result<NodeId> parse() {
    for (skip(); at_ < text_.size(); skip()) SPARROW_TRY(definition());
    for (const auto& [name, rule] : rules_)
      if (!rule.defined) return error_at(rule.place, strf("the rule {} is not defined", excerpt(name, 60)));
    const auto root = rules_.find("root");
    if (root == rules_.end())
      return Error{Errc::kInvalidArgument, "a grammar in GBNF needs a rule called root: root ::= ..."};
    return grammar_.rule(root->second.number);
  }

 private:
  struct Rule {
    int number;
    size_t place;
    bool defined = false;
  };

  Error error(std::string_view what) const { return error_at(at_, what); }
  Error error_at(size_t place, std::string_view what) const {
    const auto line = 1 + std::count(text_.begin(), text_.begin() + static_cast<ptrdiff_t>(place), '\n');
    return {Errc::kInvalidArgument, strf("{} in line {} of the grammar (GBNF)", what, line)};
  }
  bool next_is(std::string_view what) const { return text_.substr(at_).starts_with(what); }
  bool take(std::string_view what) {
    if (!next_is(what)) return false;
    at_ += what.size();
    return true;
  }
  void skip() {
    while (at_ < text_.size()) {
      if (text_[at_] == '#')
        at_ = std::min(text_.find('\n', at_), text_.size());
      else if (std::isspace(static_cast<unsigned char>(text_[at_])))
        ++at_;
      else
        break;
    }
  }
  std::string name() {
    const size_t start = at_;
    const auto fits = [](char c) {
      return std::isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '-';
    };
    while (at_ < text_.size() && fits(text_[at_])) ++at_;
    return std::string(text_.substr(start, at_ - start));
  }
  // The next thing is the beginning of another rule.
  bool at_definition() {
    const size_t start = at_;
    const bool named = !name().empty();
    skip();
    const bool found = named && next_is(kDefines);
    at_ = start;
    return found;
  }
  Rule& rule(const std::string& name, size_t place) {
    const auto [entry, is_new] = rules_.try_emplace(name, Rule{0, place});
    if (is_new) entry->second.number = grammar_.add_rule(name);
    return entry->second;
  }

  Status definition() {
    const size_t place = at_;
    const std::string called = name();
    if (called.empty()) return error("a rule's name was expected");
    skip();
    if (!take(kDefines)) return error("::= was expected");
    Rule& defined = rule(called, place);
    if (defined.defined) return error_at(place, strf("the rule {} is defined twice", excerpt(called, 60)));
    defined.defined = true;
    grammar_.define(defined.number, SPARROW_TRY(choice(0)));
    return Ok{};
  }

  Result<NodeId> choice(int depth) {
    if (depth > kMaxDepth) return error("groups are nested too deep");
    std::vector<NodeId> ways;
    do ways.push_back(SPARROW_TRY(sequence(depth)));
    while (take("|"));
    return grammar_.choice(ways);
  }

  Result<NodeId> sequence(int depth) {
    std::vector<NodeId> parts;
    for (skip(); at_ < text_.size() && !next_is("|") && !next_is(")") && !at_definition(); skip()) {
      if (grammar_.overflows()) return error("this is too much");
      NodeId part = SPARROW_TRY(element(depth));
      for (skip(); at_ < text_.size(); skip()) {
        const std::optional<NodeId> more = SPARROW_TRY(repeated(part));
        if (!more) break;
        part = *more;
      }
      parts.push_back(part);
    }
    return grammar_.sequence(parts);
  }

  Result<NodeId> element(int depth) {
    const size_t place = at_;
    if (take("\"")) return literal(place);
    if (take("[")) return char_class(place);
    if (take(".")) return one_of(grammar_, CodePoints::all().without({{'\n', '\n'}}), Spelling::kRaw);
    if (take("(")) {
      const NodeId inner = SPARROW_TRY(choice(depth + 1));
      if (!take(")")) return error_at(place, "a group has no end");
      return inner;
    }
    const std::string called = name();
    if (called.empty())
      return error(strf("{} was not expected", excerpt(std::string(text_.substr(at_, 8)), 8)));
    return grammar_.rule(rule(called, place).number);
  }

  Result<std::optional<NodeId>> repeated(NodeId part) {
    if (take("*")) return std::optional(grammar_.repeat(part, 0));
    if (take("+")) return std::optional(grammar_.repeat(part, 1));
    if (take("?")) return std::optional(grammar_.optional(part));
    const size_t place = at_;
    if (!take("{")) return std::optional<NodeId>();
    const std::optional<int> min = number();
    int max = min.value_or(0);
    skip();
    if (take(",")) max = number().value_or(Grammar::kNoLimit);
    skip();
    if (!min || !take("}") || max < *min) return error_at(place, "a quantifier is not {m}, {m,} or {m,n}");
    if (*min > kMaxRepeats || (max > kMaxRepeats && max != Grammar::kNoLimit))
      return error_at(place, strf("a quantifier of more than {} is not supported", kMaxRepeats));
    return std::optional(grammar_.repeat(part, *min, max));
  }

  std::optional<int> number() {
    skip();
    int value = 0;
    const size_t start = at_;
    for (; at_ < text_.size() && std::isdigit(static_cast<unsigned char>(text_[at_])); ++at_)
      value = std::min(value * 10 + (text_[at_] - '0'), 10 * kMaxRepeats);
    return at_ > start ? std::optional(value) : std::nullopt;
  }

  // A character of a literal or a class, escapes resolved.
  Result<uint32_t> character() {
    if (!take("\\")) {
      const Utf8Char c = decode_utf8(text_.substr(at_));
      if (!c.valid) return error("there is no UTF-8");
      at_ += c.length;
      return c.code_point;
    }
    if (at_ >= text_.size()) return error("a backslash ends the grammar");
    const char c = text_[at_++];
    constexpr std::string_view kLetters = "nrtfv0", kMeanings("\n\r\t\f\v\0", 6);
    if (const size_t found = kLetters.find(c); found != kLetters.npos)
      return static_cast<uint32_t>(kMeanings[found]);
    const int digits = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
    if (digits == 0) {
      if (std::isalnum(static_cast<unsigned char>(c))) return error("an escape is not known");
      return static_cast<uint32_t>(static_cast<unsigned char>(c));
    }
    const std::string hex(text_.substr(at_, static_cast<size_t>(digits)));
    if (static_cast<int>(hex.size()) < digits || hex.find_first_not_of("0123456789abcdefABCDEF") != hex.npos)
      return error("an escape has too few digits");
    at_ += hex.size();
    const auto value = static_cast<uint32_t>(std::stoul(hex, nullptr, 16));
    if (value > 0x10FFFF || (value >= 0xD800 && value <= 0xDFFF)) return error("an escape is no character");
    return value;
  }

  Result<NodeId> literal(size_t place) {
    std::vector<NodeId> parts;
    while (!take("\"")) {
      if (at_ >= text_.size() || text_[at_] == '\n') return error_at(place, "a literal has no end");
      const uint32_t c = SPARROW_TRY(character());
      parts.push_back(one_of(grammar_, {{c, c}}, Spelling::kRaw));
    }
    return grammar_.sequence(parts);
  }

  Result<NodeId> char_class(size_t place) {
    const bool negated = take("^");
    std::vector<CodePoints::Range> ranges;
    while (!take("]")) {
      if (at_ >= text_.size()) return error_at(place, "a class has no end");
      const uint32_t first = SPARROW_TRY(character());
      uint32_t last = first;
      if (next_is("-") && !next_is("-]")) {
        ++at_;
        if (at_ >= text_.size()) return error_at(place, "a class has no end");
        last = SPARROW_TRY(character());
      }
      if (first > last) return error_at(place, "a range ends before it begins");
      ranges.push_back({first, last});
    }
    const CodePoints set = CodePoints(std::move(ranges)).without({{0xD800, 0xDFFF}});
    return one_of(grammar_, negated ? CodePoints::all().without(set) : set, Spelling::kRaw);
  }

  Grammar& grammar_;
  std::string_view text_;
  size_t at_ = 0;
  std::map<std::string, Rule> rules_;
};

}  // namespace

Result<NodeId> add_gbnf(Grammar& grammar, std::string_view text) {
  if (text.size() > kMaxTextBytes)
    return Error{Errc::kInvalidArgument,
                 strf("a grammar has {} bytes; {} are the limit", text.size(), kMaxTextBytes)};
  return Parser(grammar, text).parse();
}

}  // namespace sparrow
