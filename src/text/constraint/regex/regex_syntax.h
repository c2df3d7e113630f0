// SPDX-License-Identifier: Apache-2.0
// A regular expression as a tree.
#pragma once

#include <memory>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "text/constraint/regex/code_points.h"

namespace sparrow {

struct RegexNode {
  enum class Kind {
    kSet,
    kSequence,
    kChoice,
    kRepeat,
    kStart,     // ^
    kEnd,       // $
    kAhead,     // (?= )
    kNotAhead,  // (?! )
  };
  Kind kind = Kind::kSequence;
  CodePoints set = {};
  std::vector<RegexNode> parts = {};
  int min = 0, max = 0;
  size_t place = 0;       // in the pattern
  bool anchored = false;  // there is an anchor in it, or a look-ahead
};

inline constexpr size_t kMaxPatternBytes = 65'536;
inline constexpr int kMaxPatternRepeats = 100'000;

Result<RegexNode> parse_regex(std::string_view pattern);

}  // namespace sparrow
