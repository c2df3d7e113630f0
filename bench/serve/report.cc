// SPDX-License-Identifier: Apache-2.0
#include "report.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

#include "base/check.h"
#include "base/strf.h"

namespace sparrow::load {
namespace {

const char* verdict(const Row& row) {
  if (row.kind == Row::Kind::kFact) return "";
  if (row.ok) return "ok";
  return row.kind == Row::Kind::kCheck ? "FAILED" : "missed";
}

std::string shown(double value) {
  const double size = std::abs(value);
  if (value == std::floor(value) && size < 1e12) return strf("{:.0f}", value);
  return size >= 100 ? strf("{:.0f}", value) : size >= 1 ? strf("{:.2f}", value) : strf("{:.4f}", value);
}

// Ranks from 0; equal values share the mean of theirs.
std::vector<double> ranks(std::span<const double> values) {
  std::vector<size_t> order(values.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::sort(order.begin(), order.end(), [&](size_t i, size_t j) { return values[i] < values[j]; });
  std::vector<double> out(values.size());
  for (size_t first = 0; first < order.size();) {
    size_t end = first + 1;
    while (end < order.size() && values[order[end]] == values[order[first]]) ++end;
    for (size_t i = first; i < end; ++i) out[order[i]] = static_cast<double>(first + end - 1) / 2;
    first = end;
  }
  return out;
}

}  // namespace

void Report::fact(std::string name, double value, std::string unit) {
  rows_.push_back({std::move(name), value, std::move(unit), "", Row::Kind::kFact, true});
}

void Report::check(std::string name, bool ok, double value, std::string unit, std::string wanted) {
  rows_.push_back({std::move(name), value, std::move(unit), std::move(wanted), Row::Kind::kCheck, ok});
}

void Report::goal(std::string name, bool ok, double value, std::string unit, std::string wanted) {
  rows_.push_back({std::move(name), value, std::move(unit), std::move(wanted), Row::Kind::kGoal, ok});
}

void Report::memory(std::string name, double mb, double most_mb) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  constexpr Row::Kind kKind = Row::Kind::kGoal;
#else
  constexpr Row::Kind kKind = Row::Kind::kCheck;
#endif
  rows_.push_back({std::move(name), mb, "MB", strf("< {:.0f}", most_mb), kKind, mb < most_mb});
}

bool Report::ok(bool with_goals) const {
  return std::all_of(rows_.begin(), rows_.end(),
                     [&](const Row& row) { return row.ok || (row.kind == Row::Kind::kGoal && !with_goals); });
}

std::string Report::table() const {
  std::string out = scenario_ + '\n';
  for (const Row& row : rows_)
    out += strf("  {:<52} {:>10} {:<10} {:<16} {}\n", row.name, shown(row.value), row.unit, row.wanted,
                verdict(row));
  return out;
}

void Report::write(JsonWriter& json) const {
  json.begin_object().key("scenario").string(scenario_).key("rows").begin_array();
  for (const Row& row : rows_) {
    json.begin_object().key("name").string(row.name).key("value").number(row.value);
    if (!row.unit.empty()) json.key("unit").string(row.unit);
    if (row.kind != Row::Kind::kFact) json.key("wanted").string(row.wanted).key("ok").boolean(row.ok);
    json.end_object();
  }
  json.end_array().end_object();
}

double quantile(std::vector<double>& values, double q) {
  SPARROW_CHECK(!values.empty());
  std::sort(values.begin(), values.end());
  return values[static_cast<size_t>(std::lround(q * static_cast<double>(values.size() - 1)))];
}

double slope(std::span<const double> x, std::span<const double> y) {
  SPARROW_CHECK(x.size() == y.size() && x.size() >= 2);
  const auto n = static_cast<double>(x.size());
  const double mean_x = std::accumulate(x.begin(), x.end(), 0.0) / n;
  const double mean_y = std::accumulate(y.begin(), y.end(), 0.0) / n;
  double xx = 0, xy = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    xx += (x[i] - mean_x) * (x[i] - mean_x);
    xy += (x[i] - mean_x) * (y[i] - mean_y);
  }
  return xx > 0 ? xy / xx : 0;
}

double permutation_p(std::span<const double> a, std::span<const double> b, int rounds, uint64_t seed) {
  std::vector<double> all(a.begin(), a.end());
  all.insert(all.end(), b.begin(), b.end());
  std::vector<double> rank = ranks(all);
  const double expected = static_cast<double>(a.size()) * static_cast<double>(all.size() - 1) / 2;
  const auto distance = [&] {
    return std::abs(std::accumulate(rank.begin(), rank.begin() + static_cast<ptrdiff_t>(a.size()), 0.0) -
                    expected);
  };
  const double seen = distance();
  std::mt19937_64 random(seed);
  int as_far = 0;
  for (int i = 0; i < rounds; ++i) {
    std::shuffle(rank.begin(), rank.end(), random);
    as_far += distance() >= seen;
  }
  return (as_far + 1.0) / (rounds + 1.0);
}

}  // namespace sparrow::load
