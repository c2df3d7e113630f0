// SPDX-License-Identifier: Apache-2.0
#include "server/metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <thread>

namespace sparrow {
namespace {

using testing::HasSubstr;

TEST(Metrics, WritesCountersAndGaugesWithHelpAndType) {
  Metrics metrics;
  metrics.counter("vllm:prompt_tokens_total", "Prompt tokens.", {{"model_name", "demo"}}).add(42);
  metrics.gauge("vllm:kv_cache_usage_perc", "Share of blocks in use.").set(0.25);
  EXPECT_EQ(metrics.exposition(),
            "# HELP vllm:prompt_tokens_total Prompt tokens.\n"
            "# TYPE vllm:prompt_tokens_total counter\n"
            "vllm:prompt_tokens_total{model_name=\"demo\"} 42\n"
            "# HELP vllm:kv_cache_usage_perc Share of blocks in use.\n"
            "# TYPE vllm:kv_cache_usage_perc gauge\n"
            "vllm:kv_cache_usage_perc 0.25\n");
}

TEST(Metrics, WritesHistogramsWithCumulativeBuckets) {
  Metrics metrics;
  Histogram& histogram = metrics.histogram("t_seconds", "Time.", {0.1, 1, 10}, {{"m", "x"}});
  for (const double value : {0.05, 0.1, 0.5, 10.0, 99.0}) histogram.observe(value);
  histogram.observe(NAN);
  EXPECT_THAT(metrics.exposition(), HasSubstr("# TYPE t_seconds histogram\n"
                                              "t_seconds_bucket{m=\"x\",le=\"0.1\"} 2\n"
                                              "t_seconds_bucket{m=\"x\",le=\"1\"} 3\n"
                                              "t_seconds_bucket{m=\"x\",le=\"10\"} 4\n"
                                              "t_seconds_bucket{m=\"x\",le=\"+Inf\"} 5\n"
                                              "t_seconds_sum{m=\"x\"} 109.65\n"
                                              "t_seconds_count{m=\"x\"} 5\n"));
}

TEST(Metrics, EscapesLabelsAndHelp) {
  Metrics metrics;
  metrics.counter("a", "one\ntwo \\ \"three\"", {{"l", "x\"y\\z\n{}"}}).add();
  EXPECT_EQ(metrics.exposition(),
            "# HELP a one\\ntwo \\\\ \"three\"\n# TYPE a counter\na{l=\"x\\\"y\\\\z\\n{}\"} 1\n");
}

TEST(Metrics, GivesTheSameMetricForTheSameNameAndLabels) {
  Metrics metrics;
  Counter& a = metrics.counter("c", "h", {{"reason", "stop"}});
  Counter& b = metrics.counter("c", "h", {{"reason", "length"}});
  EXPECT_NE(&a, &b);
  EXPECT_EQ(&a, &metrics.counter("c", "h", {{"reason", "stop"}}));
  a.add(2);
  // One HELP and one TYPE for both.
  EXPECT_EQ(metrics.exposition(),
            "# HELP c h\n# TYPE c counter\nc{reason=\"stop\"} 2\nc{reason=\"length\"} 0\n");
}

TEST(Metrics, ReadsFunctionsAtExposition) {
  Metrics metrics;
  double running = 1;
  metrics.gauge_from("g", "h", [&] { return running; });
  metrics.counter_from("c", "h", [&] { return running * 10; });
  running = 3;
  EXPECT_THAT(metrics.exposition(), HasSubstr("\ng 3\n"));
  EXPECT_THAT(metrics.exposition(), HasSubstr("\nc 30\n"));
}

TEST(Metrics, WritesNumbersThatPrometheusReads) {
  Metrics metrics;
  Gauge& gauge = metrics.gauge("g", "h");
  for (const auto& [value, text] : std::vector<std::pair<double, std::string>>{{0, "0"},
                                                                               {-1.5, "-1.5"},
                                                                               {1e300, "1e+300"},
                                                                               {NAN, "NaN"},
                                                                               {INFINITY, "+Inf"},
                                                                               {-INFINITY, "-Inf"}}) {
    gauge.set(value);
    EXPECT_THAT(metrics.exposition(), HasSubstr("\ng " + text + "\n"));
  }
  metrics.counter("big", "h").add(uint64_t{1} << 52);
  EXPECT_THAT(metrics.exposition(), HasSubstr("\nbig 4503599627370496\n"));
}

TEST(Metrics, LosesNothingUnderManyThreads) {
  Metrics metrics;
  Counter& counter = metrics.counter("c", "h");
  Histogram& histogram = metrics.histogram("t", "h", {1, 2});
  Gauge& gauge = metrics.gauge("g", "h");
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&] {
      for (int i = 0; i < 5000; ++i) {
        counter.add();
        gauge.add(1);
        histogram.observe(i % 3);
        if (i % 1000 == 0) metrics.exposition();
      }
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(counter.value(), 20000u);
  EXPECT_EQ(gauge.value(), 20000);
  EXPECT_EQ(histogram.counts(), (std::vector<uint64_t>{4 * 3334, 4 * 1666, 0}));
}

TEST(MetricsDeathTest, NamesThatPrometheusRefusesAreBugs) {
  Metrics metrics;
  EXPECT_DEATH(metrics.counter("1a", "h"), "is_name");
  EXPECT_DEATH(metrics.counter("a b", "h"), "is_name");
  EXPECT_DEATH(metrics.counter("a", "h", {{"l:m", "v"}}), "is_name");
  metrics.gauge("g", "h");
  EXPECT_DEATH(metrics.counter("g", "h"), "kind");
}

TEST(Metrics, AHistogramMayBeReadFromElsewhere) {
  Metrics metrics;
  metrics.histogram_from("h", "Steps.", {1, 8}, [] { return Metrics::Buckets{{3, 0, 2}, 41}; });
  EXPECT_EQ(metrics.exposition(),
            "# HELP h Steps.\n# TYPE h histogram\nh_bucket{le=\"1\"} 3\nh_bucket{le=\"8\"} 3\n"
            "h_bucket{le=\"+Inf\"} 5\nh_sum 41\nh_count 5\n");
}

}  // namespace
}  // namespace sparrow
