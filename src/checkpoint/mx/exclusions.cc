// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/mx/exclusions.h"

#include <algorithm>

namespace sparrow {
namespace {

std::string_view without_prefix(std::string_view module) {
  constexpr std::string_view kPrefix = "language_model.";
  return module.starts_with(kPrefix) ? module.substr(kPrefix.size()) : module;
}

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

Exclusions::Exclusions(std::span<const std::string> modules) {
  for (const std::string& module : modules)
    if (module.find('*') != std::string::npos)
      patterns_.push_back(module);
    else
      names_.emplace(without_prefix(module));
}

bool Exclusions::contains(std::string_view module) const {
  const std::string_view bare = without_prefix(module);
  for (size_t end = bare.size(); end != std::string_view::npos && end > 0; end = bare.rfind('.', end - 1))
    if (names_.contains(bare.substr(0, end))) return true;
  return std::ranges::any_of(patterns_, [&](std::string_view pattern) {
    return matches(pattern, module) || matches(pattern, bare);
  });
}

}  // namespace sparrow
