// SPDX-License-Identifier: Apache-2.0
// Numbers as flags take them.
#include <CLI/CLI.hpp>

#include "base/strf.h"
#include "cli/args/args_parts.h"

namespace sparrow::cli {

std::function<std::string(const std::string&)> number_in(double least, double most) {
  return [=](const std::string& text) {
    double value = 0;
    const bool is_in =
        CLI::detail::lexical_cast(text, value) && value >= least && value <= most;  // NaN is neither
    return is_in ? "" : strf("Value {} not in range [{} - {}]", text, least, most);
  };
}

}  // namespace sparrow::cli
