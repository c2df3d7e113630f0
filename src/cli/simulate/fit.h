// SPDX-License-Identifier: Apache-2.0
// Cost models from measured steps: what `bench step --json` printed, line by line.
#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "engine/sim/cost_model.h"

namespace sparrow::cli {

// A measured step. Its ranks did not exchange anything.
struct StepRecord {
  StepShape shape;
  std::string what;  // "decode 8 x 2048"
  double us = 0;
};

// Lines without a step are passed over: a file begins with one that says what was measured.
Result<std::vector<StepRecord>> read_step_records(std::span<const std::filesystem::path> files);

// What sums over so many ranks took, from bench/results' exchange records.
Result<Curve> read_exchange(const std::filesystem::path& file, int ranks);

// The curve over rows and the terms that come nearest to all records, each weighed by its own time; none is
// negative. Rank exchange, name and so on are left as they are.
void fit(CostModel& model, std::span<const StepRecord> records);

// The model's step without exchange, as a part of the measured one: 1 is exact.
double ratio(const CostModel& model, const StepRecord& record);
std::string validation_table(const CostModel& model, std::span<const StepRecord> records);

}  // namespace sparrow::cli
