// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/mx/exclusions.h"

#include <algorithm>

namespace sparrow {
namespace {

// * stands for any characters, none included. Only the last * seen may grow: no pattern takes longer than
// both lengths multiplied.
bool matches(std::string_view pattern, std::string_view text) {
  size_t p = 0, t = 0, star = std::string_view::npos, grown = 0;
  while (t < text.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      grown = t;
    } else if (p < pattern.size() && pattern[p] == text[t]) {
      ++p, ++t;
    } else if (star != std::string_view::npos) {
      p = star + 1;
      t = ++grown;
    } else {
      return false;
    }
  }
  return pattern.find_first_not_of('*', p) == std::string_view::npos;
}

}  // namespace

Exclusions::Exclusions(std::span<const std::string> modules, std::string_view prefix) : prefix_(prefix) {
  for (const std::string& module : modules)
    if (module.find('*') != std::string::npos)
      patterns_.push_back(module);
    else
      names_.emplace(bare(module));
}

std::string_view Exclusions::bare(std::string_view module) const {
  return module.starts_with(prefix_) ? module.substr(prefix_.size()) : module;
}

bool Exclusions::contains(std::string_view module) const {
  const std::string_view name = bare(module);
  for (size_t end = name.size(); end != std::string_view::npos && end > 0; end = name.rfind('.', end - 1))
    if (names_.contains(name.substr(0, end))) return true;
  const std::string with_prefix = patterns_.empty() ? "" : prefix_ + std::string(name);
  return std::ranges::any_of(patterns_, [&](std::string_view pattern) {
    return matches(pattern, name) || matches(pattern, with_prefix);
  });
}

}  // namespace sparrow
