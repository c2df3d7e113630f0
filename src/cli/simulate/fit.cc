// SPDX-License-Identifier: Apache-2.0
#include "cli/simulate/fit.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <map>
#include <set>
#include <utility>

#include "base/files/mapped_file.h"
#include "base/json/json.h"
#include "base/strf.h"

namespace sparrow::cli {
namespace {

constexpr int64_t kMost = int64_t{1} << 30;  // tokens
constexpr int64_t kMostSequences = 1 << 16;

Result<StepRecord> record_of(const Json& row) {
  const int64_t batch = SPARROW_TRY(SPARROW_TRY(row.at("batch")).as_int(1, kMostSequences));
  const int64_t queries = SPARROW_TRY(SPARROW_TRY(row.at("queries")).as_int(1, kMost));
  const int64_t context = SPARROW_TRY(SPARROW_TRY(row.at("context")).as_int(queries, kMost));
  const Json us = SPARROW_TRY(row.at("step_us"));
  StepRecord record{.us = SPARROW_TRY(us.as_number())};
  if (!(record.us > 0)) return us.error("must be above 0");
  for (int64_t i = 0; i < batch; ++i) record.shape.add(queries, context, 1);
  record.what = queries == 1 ? strf("decode {} x {}", batch, context)
                             : strf("prefill {} x {} of {}", batch, queries, context);
  const int64_t chunk = SPARROW_TRY(row.int_or("prompt_queries", 0, 1, kMost));
  if (chunk == 0) return record;
  const int64_t prompt = SPARROW_TRY(SPARROW_TRY(row.at("prompt_context")).as_int(chunk, kMost));
  record.shape.add(chunk, prompt, 1);
  record.what = strf("mixed {} x {} and {} of {}", batch, context, chunk, prompt);
  return record;
}

// Points of the curve over rows of steps with prompts, or without: powers of two, but for those between which
// nothing was measured.
std::vector<double> knots_of(std::span<const StepRecord> records, bool prompts) {
  std::set<double> measured;
  for (const StepRecord& record : records)
    if ((record.shape.prompts > 0) == prompts) measured.insert(CostModel::curve_rows(record.shape));
  if (measured.empty()) return {};
  std::vector<double> knots = {1};
  for (double knot = 2; knot <= *measured.rbegin(); knot *= 2)
    if (const auto above = measured.upper_bound(knots.back()); above != measured.end() && *above <= knot)
      knots.push_back(knot);
  return knots;
}

// One line of the equations: each curve's first value and its rises, which are of the other kind of steps or
// of this one, then the terms.
std::vector<double> line_of(const StepShape& shape, const CostModel& model) {
  std::vector<double> line;
  for (const Curve* curve : {&model.rows, &model.prompt_rows}) {
    const std::vector<double>& knots = curve->at;
    const bool is_its = (shape.prompts > 0) == (curve == &model.prompt_rows);
    for (size_t i = 0; i < knots.size(); ++i) {
      const double share =
          i == 0 ? 1 : (CostModel::curve_rows(shape) - knots[i - 1]) / (knots[i] - knots[i - 1]);
      line.push_back(is_its ? std::clamp(share, 0.0, i + 1 < knots.size() ? 1.0 : HUGE_VAL) : 0);
    }
  }
  for (const double term : CostModel::terms_of(shape)) line.push_back(term);
  return line;
}

// The least squares of lines * x = 1 with no x below 0: one unknown after the other until nothing moves.
std::vector<double> solve(const std::vector<std::vector<double>>& lines) {
  const size_t n = lines.front().size();
  std::vector<double> scale(n, 0), sums(n, 0), x(n, 0);
  for (const auto& line : lines)
    for (size_t j = 0; j < n; ++j) scale[j] = std::max(scale[j], line[j]);
  std::vector<std::vector<double>> products(n, std::vector<double>(n, 0));
  for (const auto& line : lines)
    for (size_t j = 0; j < n; ++j) {
      if (scale[j] == 0) continue;
      sums[j] += line[j] / scale[j];
      for (size_t k = 0; k < n; ++k)
        if (scale[k] > 0) products[j][k] += line[j] / scale[j] * line[k] / scale[k];
    }
  constexpr int kRounds = 50'000;
  double moved = 1;
  for (int round = 0; round < kRounds && moved > 1e-12; ++round) {
    moved = 0;
    for (size_t j = 0; j < n; ++j) {
      if (products[j][j] == 0) continue;
      double rest = sums[j];
      for (size_t k = 0; k < n; ++k) rest -= products[j][k] * x[k];
      const double next = std::max(0.0, x[j] + rest / products[j][j]);
      moved = std::max(moved, std::abs(next - x[j]));
      x[j] = next;
    }
  }
  for (size_t j = 0; j < n; ++j) x[j] = scale[j] == 0 ? 0 : x[j] / scale[j];
  return x;
}

}  // namespace

Result<std::vector<StepRecord>> read_step_records(std::span<const std::filesystem::path> files) {
  std::vector<StepRecord> records;
  for (const std::filesystem::path& file : files) {
    std::ifstream in(file);
    if (!in) return Error{Errc::kNotFound, strf("{} cannot be read", quoted(file))};
    std::string line;
    for (int64_t number = 1; std::getline(in, line); ++number) {
      const std::string source = strf("{}:{}", file.string(), number);
      const JsonDocument document = SPARROW_TRY(JsonDocument::parse(line, source));
      if (document.root().find("step_us")) records.push_back(SPARROW_TRY(record_of(document.root(source))));
    }
  }
  if (records.empty())
    return Error{Errc::kInvalidArgument, strf("no records of `bench step --json` in {}{}",
                                              files.empty() ? "no file" : quoted(files[0]),
                                              files.size() > 1 ? " and the others" : "")};
  return records;
}

Result<Curve> read_exchange(const std::filesystem::path& file, int ranks) {
  const MappedFile mapped = SPARROW_TRY(MappedFile::open(file));
  const auto bytes = mapped.bytes();
  const JsonDocument document = SPARROW_TRY(
      JsonDocument::parse({reinterpret_cast<const char*>(bytes.data()), bytes.size()}, file.string()));
  const Json rows = SPARROW_TRY(document.root(file.string()).at("one_launch"));
  SPARROW_TRY(rows.expect_array());
  std::map<int64_t, double> best;
  for (size_t i = 0; i < rows.size(); ++i) {
    const Json row = rows.element(i);
    if (SPARROW_TRY(row.int_or("ranks", 0, 0, kMost)) != ranks) continue;
    const int64_t count = SPARROW_TRY(SPARROW_TRY(row.at("rows")).as_int(1, kMost));
    const double us = SPARROW_TRY(SPARROW_TRY(row.at("us")).as_number());
    const auto at = best.try_emplace(count, us).first;
    at->second = std::min(at->second, us);
  }
  if (best.empty())
    return Error{Errc::kInvalidArgument, strf("{} has no exchange of {} ranks", quoted(file), ranks)};
  Curve curve;
  for (const auto& [count, us] : best) {
    curve.at.push_back(static_cast<double>(count));
    curve.us.push_back(us);
  }
  return curve;
}

void fit(CostModel& model, std::span<const StepRecord> records) {
  model.rows = {.at = knots_of(records, false), .us = {}};
  model.prompt_rows = {.at = knots_of(records, true), .us = {}};
  std::vector<std::vector<double>> lines;
  for (const StepRecord& record : records) {
    lines.push_back(line_of(record.shape, model));
    for (double& value : lines.back()) value /= record.us;
  }
  const std::vector<double> x = solve(lines);
  auto next = x.begin();
  for (Curve* curve : {&model.rows, &model.prompt_rows}) {
    double us = 0;
    for (size_t i = 0; i < curve->at.size(); ++i) curve->us.push_back(us += *next++);
  }
  std::copy(next, x.end(), model.us_of.begin());
  // Where one kind was not measured, steps are as those of the other.
  if (model.rows.at.empty()) model.rows = std::exchange(model.prompt_rows, {});
}

double ratio(const CostModel& model, const StepRecord& record) {
  CostModel alone = model;
  alone.exchange = {};
  return alone.step_us(record.shape) / record.us;
}

std::string validation_table(const CostModel& model, std::span<const StepRecord> records) {
  std::string table = strf("{:<36}{:>12}{:>12}{:>9}\n", "step", "measured ms", "model ms", "error");
  std::vector<double> errors;
  for (const StepRecord& record : records) {
    const double of_measured = ratio(model, record);
    errors.push_back(std::abs(of_measured - 1));
    table += strf("{:<36}{:>12.3f}{:>12.3f}{:>+8.1f}%\n", record.what, record.us / 1e3,
                  record.us * of_measured / 1e3, 100 * (of_measured - 1));
  }
  std::sort(errors.begin(), errors.end());
  const auto within = std::upper_bound(errors.begin(), errors.end(), 0.1) - errors.begin();
  return table + strf("{} steps: {:.1f}% within 10%, median error {:.1f}%, largest {:.1f}%\n", errors.size(),
                      100.0 * static_cast<double>(within) / static_cast<double>(errors.size()),
                      100 * errors[errors.size() / 2], 100 * errors.back());
}

}  // namespace sparrow::cli
