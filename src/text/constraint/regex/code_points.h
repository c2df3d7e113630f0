// SPDX-License-Identifier: Apache-2.0
// CodePoints: a set of characters, and how it is written: as UTF-8, or inside a JSON string.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/constraint/grammar.h"

namespace sparrow {

class CodePoints {
 public:
  struct Range {
    uint32_t first, last;
  };

  CodePoints() = default;
  CodePoints(std::initializer_list<Range> ranges) : ranges_(ranges) { tidy(); }
  // In any order.
  explicit CodePoints(std::vector<Range> ranges) : ranges_(std::move(ranges)) { tidy(); }
  static CodePoints all() { return {{0, 0xD7FF}, {0xE000, 0x10FFFF}}; }
  // By a general category ("L", "Lu", ...); empty: there is no such.
  static CodePoints category(std::string_view name);
  // \d, \w, \s and their opposites. Whoever checks a text may read them as ASCII or as Unicode: each set is
  // what both readings have.
  static CodePoints digits() { return {{'0', '9'}}; }
  static CodePoints words() { return {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}}; }
  static CodePoints spaces();
  static CodePoints not_spaces();
  static CodePoints not_digits();
  static CodePoints not_words();
  // All but line breaks.
  static CodePoints dot();

  void add(uint32_t first, uint32_t last);
  void add(const CodePoints& other);
  CodePoints without(const CodePoints& other) const;
  bool empty() const { return ranges_.empty(); }
  const std::vector<Range>& ranges() const { return ranges_; }

 private:
  void tidy();
  std::vector<Range> ranges_;  // sorted, apart
};

// How characters are written.
enum class Spelling { kRaw, kJson };

// One character of the set. In JSON each has one spelling: an escape only where there has to be one.
NodeId one_of(Grammar& grammar, const CodePoints& set, Spelling spelling);
// A text in that spelling.
std::string spelled(std::string_view text, Spelling spelling);

}  // namespace sparrow
