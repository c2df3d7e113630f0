// SPDX-License-Identifier: Apache-2.0
#include "server/metrics.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "base/check.h"

namespace sparrow {

namespace {

bool is_name(std::string_view name, bool colon_allowed) {
  const auto fits = [&](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || (colon_allowed && c == ':');
  };
  return !name.empty() && fits(name[0]) &&
         std::all_of(name.begin(), name.end(), [&](char c) { return fits(c) || (c >= '0' && c <= '9'); });
}

void append_escaped(std::string& out, std::string_view text, bool quotes) {
  for (const char c : text) {
    if (c == '\\')
      out += "\\\\";
    else if (c == '\n')
      out += "\\n";
    else if (c == '"' && quotes)
      out += "\\\"";
    else
      out += c;
  }
}

std::string written_labels(const Metrics::Labels& labels) {
  std::string out;
  for (const auto& [name, value] : labels) {
    SPARROW_CHECK(is_name(name, /*colon_allowed=*/false));
    if (!out.empty()) out += ',';
    out += name;
    out += "=\"";
    append_escaped(out, value, /*quotes=*/true);
    out += '"';
  }
  return out;
}

void append_number(std::string& out, double value) {
  if (std::isnan(value)) {
    out += "NaN";
  } else if (std::isinf(value)) {
    out += value > 0 ? "+Inf" : "-Inf";
  } else {
    char digits[32];
    out.append(digits, std::to_chars(digits, digits + sizeof(digits), value).ptr);
  }
}

void append_sample(std::string& out, std::string_view name, std::string_view suffix, std::string_view labels,
                   double value) {
  out.append(name).append(suffix);
  if (!labels.empty()) out.append("{").append(labels).append("}");
  out += ' ';
  append_number(out, value);
  out += '\n';
}

}  // namespace

Histogram::Histogram(std::vector<double> bounds)
    : bounds_(std::move(bounds)), counts_(new std::atomic<uint64_t>[bounds_.size() + 1] {}) {
  SPARROW_CHECK(std::is_sorted(bounds_.begin(), bounds_.end(), std::less_equal<>()));
}

void Histogram::observe(double value) {
  if (std::isnan(value)) return;
  const auto bucket = std::lower_bound(bounds_.begin(), bounds_.end(), value) - bounds_.begin();
  counts_[static_cast<size_t>(bucket)].fetch_add(1, std::memory_order_relaxed);
  sum_.fetch_add(value, std::memory_order_relaxed);
}

std::vector<uint64_t> Histogram::counts() const {
  std::vector<uint64_t> counts;
  for (size_t i = 0; i <= bounds_.size(); ++i) counts.push_back(counts_[i].load(std::memory_order_relaxed));
  return counts;
}

Metrics::Series& Metrics::series(std::string_view name, std::string_view help, Kind kind,
                                 const Labels& labels) {
  SPARROW_CHECK(is_name(name, /*colon_allowed=*/true));
  const std::string written = written_labels(labels);
  const auto same_name = [&](const auto& family) { return family->name == name; };
  auto found = std::find_if(families_.begin(), families_.end(), same_name);
  if (found == families_.end()) {
    families_.push_back(std::make_unique<Family>(Family{std::string(name), std::string(help), kind, {}}));
    found = families_.end() - 1;
  }
  Family& family = **found;
  SPARROW_CHECK(family.kind == kind);
  for (const auto& series : family.series)
    if (series->labels == written) return *series;
  family.series.push_back(std::make_unique<Series>());
  family.series.back()->labels = written;
  return *family.series.back();
}

Counter& Metrics::counter(std::string_view name, std::string_view help, const Labels& labels) {
  const std::lock_guard lock(mutex_);
  Series& made = series(name, help, Kind::kCounter, labels);
  if (!made.counter) made.counter = std::make_unique<Counter>();
  return *made.counter;
}

Gauge& Metrics::gauge(std::string_view name, std::string_view help, const Labels& labels) {
  const std::lock_guard lock(mutex_);
  Series& made = series(name, help, Kind::kGauge, labels);
  if (!made.gauge) made.gauge = std::make_unique<Gauge>();
  return *made.gauge;
}

Histogram& Metrics::histogram(std::string_view name, std::string_view help, const std::vector<double>& bounds,
                              const Labels& labels) {
  const std::lock_guard lock(mutex_);
  Series& made = series(name, help, Kind::kHistogram, labels);
  if (!made.histogram) made.histogram = std::make_unique<Histogram>(bounds);
  SPARROW_CHECK(made.histogram->bounds() == bounds);
  return *made.histogram;
}

void Metrics::counter_from(std::string_view name, std::string_view help, std::function<double()> read,
                           const Labels& labels) {
  const std::lock_guard lock(mutex_);
  series(name, help, Kind::kCounter, labels).read = std::move(read);
}

void Metrics::gauge_from(std::string_view name, std::string_view help, std::function<double()> read,
                         const Labels& labels) {
  const std::lock_guard lock(mutex_);
  series(name, help, Kind::kGauge, labels).read = std::move(read);
}

void Metrics::histogram_from(std::string_view name, std::string_view help, const std::vector<double>& bounds,
                             std::function<Buckets()> read, const Labels& labels) {
  histogram(name, help, bounds, labels);
  const std::lock_guard lock(mutex_);
  series(name, help, Kind::kHistogram, labels).read_buckets = std::move(read);
}

void Metrics::append_histogram(std::string& out, const std::string& name, const Series& series) {
  const auto [counts, sum] = series.read_buckets
                                 ? series.read_buckets()
                                 : Buckets{series.histogram->counts(), series.histogram->sum()};
  const std::vector<double>& bounds = series.histogram->bounds();
  const std::string separator = series.labels.empty() ? "" : ",";
  uint64_t total = 0;
  for (size_t i = 0; i < counts.size(); ++i) {
    total += counts[i];
    std::string labels = series.labels + separator + "le=\"";
    append_number(labels, i < bounds.size() ? bounds[i] : INFINITY);
    append_sample(out, name, "_bucket", labels + '"', static_cast<double>(total));
  }
  append_sample(out, name, "_sum", series.labels, sum);
  // Not a counter of its own: it must equal the last bucket, whatever is observed meanwhile.
  append_sample(out, name, "_count", series.labels, static_cast<double>(total));
}

void Metrics::append(std::string& out, const Family& family, const Series& series) {
  if (series.histogram) return append_histogram(out, family.name, series);
  double value = 0;
  if (series.read)
    value = series.read();
  else
    value = series.counter ? static_cast<double>(series.counter->value()) : series.gauge->value();
  append_sample(out, family.name, "", series.labels, value);
}

std::string Metrics::exposition() const {
  static constexpr const char* kKinds[] = {"counter", "gauge", "histogram"};
  std::string out;
  const std::lock_guard lock(mutex_);
  for (const auto& family : families_) {
    out.append("# HELP ").append(family->name).append(" ");
    append_escaped(out, family->help, /*quotes=*/false);
    out.append("\n# TYPE ").append(family->name).append(" ");
    out.append(kKinds[static_cast<int>(family->kind)]).append("\n");
    for (const auto& series : family->series) append(out, *family, *series);
  }
  return out;
}

}  // namespace sparrow
