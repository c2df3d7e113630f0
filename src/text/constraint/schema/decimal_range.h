// SPDX-License-Identifier: Apache-2.0
// Numbers between two bounds, digit by digit. They are written without an exponent and without needless
// zeros.
#pragma once

#include <optional>
#include <string>

#include "base/json/json.h"
#include "text/constraint/grammar.h"

namespace sparrow {

struct Decimal {
  bool negative = false;
  std::string whole = "0";    // no leading zeros
  std::string fraction = {};  // no trailing ones
  bool is_zero() const { return whole == "0" && fraction.empty(); }
};

// Error: no number, or one with more digits than anybody means.
Result<Decimal> decimal_of(const Json& number);
// -1, 0 or 1.
int compare(const Decimal& a, const Decimal& b);

struct NumberRange {
  struct Bound {
    Decimal value;
    bool exclusive = false;
  };
  std::optional<Bound> low, high;
  bool whole = false;    // integers only
  int64_t multiple = 1;  // of this; whole numbers
  int max_fraction_digits = 17;
};

NodeId add_number(Grammar& grammar, const NumberRange& range);

}  // namespace sparrow
