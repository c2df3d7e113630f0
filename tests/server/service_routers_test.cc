// SPDX-License-Identifier: Apache-2.0
// What routers read of a server: names, kinds and labels as they have them, and documents that they ask for.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sstream>

#include "support/server/service_fixture.h"

namespace sparrow {
namespace {

using namespace test;
using testing::HasSubstr;
using testing::Not;

// The first series of that name, as llm-d and the Gateway API's extension take it: labels and value. Empty:
// there is none.
std::string series(const std::string& exposition, const std::string& name) {
  std::istringstream lines(exposition);
  for (std::string line; std::getline(lines, line);)
    if (line.starts_with(name + "{")) return line.substr(name.size());
  return "";
}

struct RouterMetric {
  const char *name, *kind, *read_by;
};
constexpr const char* kScorers = "scorers of the Gateway API's inference extension and llm-d";
constexpr RouterMetric kRouterMetrics[] = {
    {"vllm:num_requests_waiting", "gauge", kScorers},
    {"vllm:num_requests_running", "gauge", kScorers},
    {"vllm:kv_cache_usage_perc", "gauge", kScorers},
    {"vllm:cache_config_info", "gauge", kScorers},
    {"vllm:prefix_cache_hits_total", "counter", "dashboards of llm-d and of vLLM's production stack"},
    {"vllm:prefix_cache_queries_total", "counter", "the same"},
    {"vllm:prompt_tokens_total", "counter", "autoscaling of vLLM's production stack"},
    {"vllm:generation_tokens_total", "counter", "the same"},
    {"vllm:time_to_first_token_seconds", "histogram", "llm-d's latency predictor, autoscaling"},
    {"vllm:inter_token_latency_seconds", "histogram", "the same"},
    {"sparrow:ranks_alive", "gauge", "operators"},
    {"sparrow:rank_step_seconds", "gauge", "operators"},
    {"sparrow:step_skew_seconds", "gauge", "operators"},
};

TEST_F(ServiceTest, RoutersFindTheirMetrics) {
  start();
  chat(R"(,"max_tokens":3)");
  const std::string text = ask(get_request("/metrics")).body;
  for (const RouterMetric& metric : kRouterMetrics) {
    EXPECT_THAT(text, HasSubstr(std::string("# TYPE ") + metric.name + " " + metric.kind + "\n"))
        << metric.read_by;
    const bool is_histogram = std::string_view(metric.kind) == "histogram";
    const std::string found = series(text, std::string(metric.name) + (is_histogram ? "_count" : ""));
    EXPECT_THAT(found, HasSubstr("model_name=\"m3\"")) << metric.name;
    const bool is_of_ranks = std::string_view(metric.name).starts_with("sparrow:");
    EXPECT_EQ(found.find("engine=\"0\"") != found.npos, !is_of_ranks) << metric.name;
  }
  // Scorers of prefixes take the sizes of the cache from these labels, as decimal numbers.
  EXPECT_THAT(series(text, "vllm:cache_config_info"), HasSubstr("block_size=\"128\",num_gpu_blocks=\"96\""));
  // There are no adapters: a router must be told not to ask for them.
  EXPECT_THAT(text, Not(HasSubstr("lora_requests_info")));
}

TEST_F(ServiceTest, LoadIsWhatIsUnderWay) {
  start();
  const auto load = [this] { return ask(get_request("/load")).body; };
  EXPECT_EQ(load(), R"({"server_load":0})");
  // Until an answer is slow enough to be met on its way.
  bool met = false;
  for (int i = 0; i < 1000 && !met; ++i) {
    RawClient client(server_->port());
    client.send(json_post("/v1/completions", R"({"prompt":"the fox","max_tokens":1500,"ignore_eos":true,)"
                                             R"("stream":true})"));
    client.read_bytes(200);
    met = load() == R"({"server_load":1})";
  }
  EXPECT_TRUE(met);
  EXPECT_TRUE(is_quiet_within(kPatience));
}

}  // namespace
}  // namespace sparrow
