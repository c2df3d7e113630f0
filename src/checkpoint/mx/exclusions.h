// SPDX-License-Identifier: Apache-2.0
// Exclusions: the modules that a quantised model leaves as they are, as its config.json lists them.
#pragma once

#include <functional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace sparrow {

// A name stands for its module and for all below it; one with * stands for modules that it matches from
// first to last character. "language_model." in front is left out by some and says nothing. A name may fit
// no module: of layers that an override takes away, or of a vision tower that is not there.
class Exclusions {
 public:
  explicit Exclusions(std::span<const std::string> modules);

  bool contains(std::string_view module) const;

 private:
  std::set<std::string, std::less<>> names_;
  std::vector<std::string> patterns_;
};

}  // namespace sparrow
