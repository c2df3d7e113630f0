// SPDX-License-Identifier: Apache-2.0
// Exclusions: the modules that a quantised model leaves as they are, or has in another format, as its
// config.json lists them.
#pragma once

#include <functional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace sparrow {

// A name stands for its module and for all below it; one with * stands for modules that it matches from
// first to last character. `prefix` in front of a module is left out by some and says nothing. A name may fit
// no module: of layers that an override takes away, or of a vision tower that is not there.
class Exclusions {
 public:
  Exclusions(std::span<const std::string> modules, std::string_view prefix);

  bool contains(std::string_view module) const;

 private:
  std::string_view bare(std::string_view module) const;

  std::string prefix_;
  std::set<std::string, std::less<>> names_;
  std::vector<std::string> patterns_;
};

}  // namespace sparrow
