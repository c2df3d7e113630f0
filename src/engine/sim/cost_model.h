// SPDX-License-Identifier: Apache-2.0
// CostModel: how long a step takes on a machine that is not there, from steps that were measured on one.
// Plain data, and arithmetic.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "engine/sim/step_shape.h"

namespace sparrow {

// A function given at ascending points, straight between them; after the last it goes on as it was, but does
// not fall.
struct Curve {
  std::vector<double> at, us;

  double operator()(double x) const;
};

struct CostModel {
  // What a step's time is a sum of, beside the curve over its rows.
  static constexpr std::array<std::string_view, 8> kTerms = {"context",        "selected",  "sequences",
                                                             "prompt_context", "pairs",     "selected_pairs",
                                                             "prompts",        "logit_rows"};
  static std::array<double, kTerms.size()> terms_of(const StepShape& shape);

  std::string name;          // "m3-mxfp8 TP8 on H200"
  int gpus = 1;              // of an instance
  int groups = 1;            // data-parallel ones of these, side by side: a step is as long as the longest
  int64_t cache_tokens = 0;  // of each data-parallel group
  Curve rows;                // us, by the rows of the graph that a step of decodes alone runs in
  Curve prompt_rows;         // the same of a step with prompts, by its rows; empty: as the other
  std::array<double, kTerms.size()> us_of{};  // for each of a term
  Curve exchange;      // us that one sum over the ranks takes, by rows; empty: there is one rank
  int exchanges = 0;   // in a step
  double host_us = 0;  // between two steps, where the next one is not known ahead

  double step_us(const StepShape& shape) const;
  // Where on the curve of its kind a step is.
  static double curve_rows(const StepShape& shape);

  static Result<CostModel> parse(std::string_view json, std::string_view source);
  static Result<CostModel> read(const std::filesystem::path& file);
  std::string json() const;
};

}  // namespace sparrow
