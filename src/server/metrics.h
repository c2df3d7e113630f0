// SPDX-License-Identifier: Apache-2.0
// Metrics in Prometheus' text format. Counting is an atomic addition on any thread; only registration and
// exposition take a lock.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace sparrow {

class Counter {
 public:
  void add(uint64_t n = 1) { value_.fetch_add(n, std::memory_order_relaxed); }
  uint64_t value() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<uint64_t> value_{0};
};

class Gauge {
 public:
  void set(double value) { value_.store(value, std::memory_order_relaxed); }
  void add(double delta) { value_.fetch_add(delta, std::memory_order_relaxed); }
  double value() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<double> value_{0};
};

class Histogram {
 public:
  // Upper bounds in ascending order; the last bucket, +Inf, is there without being named.
  explicit Histogram(std::vector<double> bounds);

  // A value on a bound belongs to the bucket of that bound. NaN is left out.
  void observe(double value);

  const std::vector<double>& bounds() const { return bounds_; }
  std::vector<uint64_t> counts() const;  // of each bucket alone, +Inf last
  double sum() const { return sum_.load(std::memory_order_relaxed); }

 private:
  std::vector<double> bounds_;
  std::unique_ptr<std::atomic<uint64_t>[]> counts_;
  std::atomic<double> sum_{0};
};

class Metrics {
 public:
  using Labels = std::vector<std::pair<std::string, std::string>>;
  static constexpr std::string_view kContentType = "text/plain; version=0.0.4; charset=utf-8";

  // The metric of that name and these labels, made on the first call; it lives as long as this object. A name
  // has one kind, one help text and, for histograms, one list of bounds.
  Counter& counter(std::string_view name, std::string_view help, const Labels& labels = {});
  Gauge& gauge(std::string_view name, std::string_view help, const Labels& labels = {});
  Histogram& histogram(std::string_view name, std::string_view help, const std::vector<double>& bounds,
                       const Labels& labels = {});
  // Asked for its value at each exposition. What the functions read must outlive this object.
  void counter_from(std::string_view name, std::string_view help, std::function<double()> read,
                    const Labels& labels = {});
  void gauge_from(std::string_view name, std::string_view help, std::function<double()> read,
                  const Labels& labels = {});
  struct Buckets {
    std::vector<uint64_t> counts;  // of each bucket alone, +Inf last
    double sum = 0;
  };
  void histogram_from(std::string_view name, std::string_view help, const std::vector<double>& bounds,
                      std::function<Buckets()> read, const Labels& labels = {});

  std::string exposition() const;

 private:
  enum class Kind { kCounter, kGauge, kHistogram };
  struct Series {
    std::string labels;  // as they are written, without braces
    std::unique_ptr<Counter> counter;
    std::unique_ptr<Gauge> gauge;
    std::unique_ptr<Histogram> histogram;
    std::function<double()> read;
    std::function<Buckets()> read_buckets;
  };
  struct Family {
    std::string name, help;
    Kind kind;
    std::vector<std::unique_ptr<Series>> series;
  };

  Series& series(std::string_view name, std::string_view help, Kind kind, const Labels& labels);
  static void append(std::string& out, const Family& family, const Series& series);
  static void append_histogram(std::string& out, const std::string& name, const Series& series);

  mutable std::mutex mutex_;
  std::vector<std::unique_ptr<Family>> families_;
};

}  // namespace sparrow
