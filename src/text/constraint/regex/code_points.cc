// SPDX-License-Identifier: Apache-2.0
#include "text/constraint/regex/code_points.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <map>

#include "base/json/json_writer.h"
#include "base/strf.h"
#include "text/unicode.h"

namespace sparrow {
namespace {

constexpr uint32_t kLast = 0x10FFFF;

template <typename Test>
CodePoints where(const Test& test) {
  CodePoints set;
  uint32_t start = 0;
  bool inside = false;
  for (uint32_t c = 0; c <= kLast + 1; ++c) {
    const bool in = c <= kLast && !(c >= 0xD800 && c <= 0xDFFF) && test(c);
    if (in && !inside) start = c;
    if (!in && inside) set.add(start, c - 1);
    inside = in;
  }
  return set;
}

using Ranges = std::vector<CodePoints::Range>;

// By general category. Looked up once: a pattern may name one at every place.
const std::map<std::string, Ranges, std::less<>>& categories() {
  static const auto all = [] {
    std::map<std::string, Ranges, std::less<>> made;
    for (uint32_t c = 0; c <= kLast; ++c) {
      if (c >= 0xD800 && c <= 0xDFFF) continue;
      Ranges& ranges = made[utf8proc_category_string(static_cast<utf8proc_int32_t>(c))];
      if (!ranges.empty() && ranges.back().last + 1 == c)
        ranges.back().last = c;
      else
        ranges.push_back({c, c});
    }
    return made;
  }();
  return all;
}

// Characters whose last `shift` bits are in further bytes. `ranges` are of the bits that are left.
NodeId encoded(Grammar& grammar, const Ranges& ranges, int shift, int base) {
  const auto below_of = [](const Ranges& a, const Ranges& b) {
    return std::ranges::lexicographical_compare(
        a, b, {}, [](const auto& r) { return std::pair(r.first, r.last); },
        [](const auto& r) { return std::pair(r.first, r.last); });
  };
  const uint32_t mask = (uint32_t{1} << shift) - 1;
  ByteSet here;
  std::map<uint32_t, Ranges> below;  // by the first byte
  for (const auto& [first, last] : ranges) {
    for (uint32_t lead = first >> shift; lead <= last >> shift; ++lead) {
      if (shift == 0) here.add(base + static_cast<int>(lead));
      if (shift == 0) continue;
      const uint32_t from = std::max(first, lead << shift), to = std::min(last, (lead << shift) | mask);
      below[lead].push_back({from & mask, to & mask});
    }
  }
  if (shift == 0) return grammar.bytes(here);
  std::map<Ranges, ByteSet, decltype(below_of)> leads(below_of);  // that the same may follow
  for (const auto& [lead, rest] : below) leads[rest].add(base + static_cast<int>(lead));
  std::vector<NodeId> ways;
  for (const auto& [rest, bytes] : leads)
    ways.push_back(grammar.sequence({grammar.bytes(bytes), encoded(grammar, rest, shift - 6, 0x80)}));
  return grammar.choice(ways);
}

NodeId raw(Grammar& grammar, const CodePoints& set) {
  struct Length {
    uint32_t first, last;
    int shift, base;
  };
  constexpr std::array<Length, 4> kLengths = {
      {{0, 0x7F, 0, 0}, {0x80, 0x7FF, 6, 0xC0}, {0x800, 0xFFFF, 12, 0xE0}, {0x10000, kLast, 18, 0xF0}}};
  std::vector<NodeId> ways;
  for (const Length& length : kLengths) {
    Ranges ranges;
    for (const auto& [first, last] : set.ranges()) {
      const uint32_t from = std::max(first, length.first), to = std::min(last, length.last);
      if (from <= to) ranges.push_back({from, to});
    }
    if (!ranges.empty()) ways.push_back(encoded(grammar, ranges, length.shift, length.base));
  }
  return grammar.choice(ways);
}

const CodePoints& escaped_in_json() {
  static const CodePoints set = {{0, 0x1F}, {'"', '"'}, {'\\', '\\'}};
  return set;
}

}  // namespace

void CodePoints::tidy() {
  std::sort(ranges_.begin(), ranges_.end(), [](const Range& a, const Range& b) { return a.first < b.first; });
  size_t kept = 0;
  for (size_t i = 0; i < ranges_.size(); ++i) {
    if (kept > 0 && ranges_[i].first <= ranges_[kept - 1].last + 1)
      ranges_[kept - 1].last = std::max(ranges_[kept - 1].last, ranges_[i].last);
    else
      ranges_[kept++] = ranges_[i];
  }
  ranges_.resize(kept);
}

void CodePoints::add(uint32_t first, uint32_t last) {
  if (!ranges_.empty() && first > ranges_.back().last + 1) {
    ranges_.push_back({first, last});
    return;
  }
  ranges_.push_back({first, last});
  tidy();
}

void CodePoints::add(const CodePoints& other) {
  ranges_.insert(ranges_.end(), other.ranges_.begin(), other.ranges_.end());
  tidy();
}

CodePoints CodePoints::without(const CodePoints& other) const {
  CodePoints left;
  for (Range range : ranges_) {
    for (const Range& gone : other.ranges_) {
      if (gone.last < range.first || gone.first > range.last) continue;
      if (gone.first > range.first) left.ranges_.push_back({range.first, gone.first - 1});
      range.first = gone.last + 1;
      if (range.first > range.last) break;
    }
    if (range.first <= range.last) left.ranges_.push_back(range);
  }
  left.tidy();
  return left;
}

CodePoints CodePoints::category(std::string_view name) {
  Ranges found;
  for (const auto& [own, ranges] : categories())
    if (own.starts_with(name)) found.insert(found.end(), ranges.begin(), ranges.end());
  return CodePoints(std::move(found));
}

CodePoints CodePoints::spaces() {
  static const CodePoints set = where(is_white_space).without({{0x85, 0x85}});
  return set;
}

CodePoints CodePoints::not_spaces() {
  static const CodePoints set = [] {
    CodePoints either = where(is_white_space);
    either.add({{0x1C, 0x1F}, {0xFEFF, 0xFEFF}});
    return all().without(either);
  }();
  return set;
}

CodePoints CodePoints::not_digits() {
  static const CodePoints set = all().without(category("N"));
  return set;
}

CodePoints CodePoints::not_words() {
  static const CodePoints set = [] {
    CodePoints words = category("L");
    for (const char* more : {"N", "M", "Pc"}) words.add(category(more));
    return all().without(words);
  }();
  return set;
}

CodePoints CodePoints::dot() {
  return all().without({{'\n', '\n'}, {'\r', '\r'}, {0x2028, 0x2029}});
}

NodeId one_of(Grammar& grammar, const CodePoints& set, Spelling spelling) {
  std::string key = spelling == Spelling::kRaw ? "raw" : "json";
  for (const auto& [first, last] : set.ranges()) key += strf(" {}-{}", first, last);
  return grammar.once(key, [&] {
    if (spelling == Spelling::kRaw) return raw(grammar, set);
    std::vector<NodeId> ways{raw(grammar, set.without(escaped_in_json()))};
    for (const auto& [first, last] : escaped_in_json().ranges())
      for (uint32_t c = first; c <= last; ++c)
        for (const auto& range : set.ranges())
          if (range.first <= c && c <= range.last)
            ways.push_back(grammar.literal(spelled(std::string(1, static_cast<char>(c)), spelling)));
    return grammar.choice(ways);
  });
}

std::string spelled(std::string_view text, Spelling spelling) {
  if (spelling == Spelling::kRaw) return std::string(text);
  std::string quoted;
  append_json_string(quoted, text);
  return quoted.substr(1, quoted.size() - 2);
}

}  // namespace sparrow
