// SPDX-License-Identifier: Apache-2.0
// Report: what a scenario found, as rows of a table; and the statistics that scenarios share.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/json/json_writer.h"

namespace sparrow::load {

struct Row {
  enum class Kind {
    kFact,   // measured, not judged
    kCheck,  // must hold on any machine under any load
    kGoal,   // about speed: judged on full runs only
  };
  std::string name;
  double value;
  std::string unit, wanted;
  Kind kind;
  bool ok;
};

class Report {
 public:
  explicit Report(std::string scenario) : scenario_(std::move(scenario)) {}

  void fact(std::string name, double value, std::string unit = "");
  void check(std::string name, bool ok, double value, std::string unit, std::string wanted);
  void goal(std::string name, bool ok, double value, std::string unit, std::string wanted);
  // A check of memory; a goal where a sanitizer keeps what was freed.
  void memory(std::string name, double mb, double most_mb);

  const std::string& scenario() const { return scenario_; }
  const std::vector<Row>& rows() const { return rows_; }
  bool ok(bool with_goals) const;
  std::string table() const;
  void write(JsonWriter& json) const;

 private:
  std::string scenario_;
  std::vector<Row> rows_;
};

// Of any sample, which is sorted on the way. `q` in [0, 1]; the sample is not empty.
double quantile(std::vector<double>& values, double q);

// The slope of the least-squares line through (x, y).
double slope(std::span<const double> x, std::span<const double> y);

// How often a random relabelling of two samples puts their ranks at least as far apart as they are: near 0 if
// they differ, anything in [0, 1] if they do not.
double permutation_p(std::span<const double> a, std::span<const double> b, int rounds, uint64_t seed);

}  // namespace sparrow::load
