// SPDX-License-Identifier: Apache-2.0
#include "server/service_metrics.h"

#include <algorithm>

namespace sparrow {
namespace {

// vLLM's bounds: its dashboards compute quantiles from them.
const std::vector<double> kFirstTokenSeconds = {0.001, 0.005, 0.01, 0.02,  0.04,  0.06,  0.08, 0.1,
                                                0.25,  0.5,   0.75, 1.0,   2.5,   5.0,   7.5,  10.0,
                                                20.0,  40.0,  80.0, 160.0, 640.0, 2560.0};
const std::vector<double> kTokenSeconds = {0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2,  0.3,  0.4, 0.5,
                                           0.75, 1.0,   2.5,  5.0,   7.5, 10.0, 20.0, 40.0, 80.0};
const std::vector<double> kRequestSeconds = {0.3,  0.5,   0.8,   1.0,   1.5,   2.0,    2.5,
                                             5.0,  10.0,  15.0,  20.0,  30.0,  40.0,   50.0,
                                             60.0, 120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0};
const std::vector<double> kTokens = {1,    2,    5,     10,    20,    50,     100,    200,    500,    1000,
                                     2000, 5000, 10000, 20000, 50000, 100000, 200000, 500000, 1000000};

// What is observed of each request.
struct RequestHistogram {
  const char *name, *help;
  const std::vector<double>& bounds;
  double (*value)(const ServiceMetrics::Finished&);
};
using Finished = ServiceMetrics::Finished;
const std::vector<double> kChoices = {1, 2, 5, 10, 20};
const RequestHistogram kRequestHistograms[] = {
    {"vllm:e2e_request_latency_seconds", "Time from the request's first byte to the end of its answer.",
     kRequestSeconds, [](const Finished& r) { return r.seconds; }},
    {"vllm:request_queue_time_seconds", "Time that a request waited to start.", kRequestSeconds,
     [](const Finished& r) { return r.queue_seconds; }},
    {"vllm:request_prefill_time_seconds", "Time from a request's start to its first token.", kRequestSeconds,
     [](const Finished& r) { return r.prefill_seconds; }},
    {"vllm:request_decode_time_seconds", "Time from a request's first token to its last.", kRequestSeconds,
     [](const Finished& r) { return r.decode_seconds; }},
    {"vllm:request_inference_time_seconds", "Time from a request's start to its last token.", kRequestSeconds,
     [](const Finished& r) { return r.prefill_seconds + r.decode_seconds; }},
    {"vllm:request_prompt_tokens", "Prompt tokens of a request.", kTokens,
     [](const Finished& r) { return static_cast<double>(r.prompt_tokens); }},
    {"vllm:request_generation_tokens", "Generated tokens of a request.", kTokens,
     [](const Finished& r) { return static_cast<double>(r.completion_tokens); }},
    {"vllm:request_max_num_generation_tokens", "Tokens of a request's longest output.", kTokens,
     [](const Finished& r) { return static_cast<double>(r.longest_output); }},
    {"vllm:request_params_n", "n of a request.", kChoices,
     [](const Finished& r) { return static_cast<double>(r.n); }},
    {"vllm:request_params_max_tokens", "max_tokens of a request, or what the context left.", kTokens,
     [](const Finished& r) { return static_cast<double>(r.max_tokens); }},
};

double fraction(int64_t part, int64_t whole) {
  return whole == 0 ? 0.0 : static_cast<double>(part) / static_cast<double>(whole);
}

// vLLM labels everything with the data-parallel engine that it is of. With several of them, what belongs to
// all has no such label.
Metrics::Labels labels_of(const Engine& engine, const std::string& model_name) {
  Metrics::Labels labels = {{"model_name", model_name}};
  if (engine.stats().groups.size() == 1) labels.emplace_back("engine", "0");
  return labels;
}

// Of the ranks that run the model together.
void add_rank_metrics(Metrics& metrics, const Engine& engine, const Metrics::Labels& labels) {
  const int ranks = engine.info().num_ranks;
  // One that is lost ends the others.
  metrics.gauge_from(
      "sparrow:ranks_alive", "Ranks that run the model together.",
      [&engine, ranks] { return engine.failure() ? ranks - 1 : ranks; }, labels);
  for (int rank = 0; rank < ranks; ++rank) {
    Metrics::Labels of_rank = labels;
    of_rank.emplace_back("rank", std::to_string(rank));
    metrics.gauge_from(
        "sparrow:rank_step_seconds", "Time of the last step on a rank.",
        [&engine, rank] {
          const EngineStats stats = engine.stats();
          return stats.rank_times.empty() ? stats.last_step_seconds
                                          : stats.rank_times[static_cast<size_t>(rank)].step_seconds;
        },
        of_rank);
    if (ranks == 1 || engine.info().device != "cpu") continue;
    metrics.counter_from(
        "sparrow:peer_wait_seconds_total", "Time that a rank has waited for others in the middle of steps.",
        [&engine, rank] { return engine.stats().rank_times[static_cast<size_t>(rank)].peer_wait_seconds; },
        of_rank);
  }
  metrics.gauge_from(
      "sparrow:step_skew_seconds", "Between the slowest and the fastest rank in the last step.",
      [&engine] {
        const std::vector<RankTimes> times = engine.stats().rank_times;
        const auto [least, most] = std::ranges::minmax_element(times, {}, &RankTimes::step_seconds);
        return times.empty() ? 0.0 : most->step_seconds - least->step_seconds;
      },
      labels);
}

}  // namespace

ServiceMetrics::ServiceMetrics(Metrics& metrics, const Engine& engine, const std::string& model_name)
    : time_to_first_token(metrics.histogram("vllm:time_to_first_token_seconds",
                                            "Time from the request's first byte to its first token.",
                                            kFirstTokenSeconds, labels_of(engine, model_name))),
      inter_token_latency(metrics.histogram("vllm:inter_token_latency_seconds",
                                            "Time between two tokens of an output.", kTokenSeconds,
                                            labels_of(engine, model_name))),
      metrics_(metrics),
      labels_(labels_of(engine, model_name)) {
  for (const RequestHistogram& row : kRequestHistograms)
    of_requests_.push_back(&metrics.histogram(row.name, row.help, row.bounds, labels_));
  const auto gauge = [&](const char* name, const char* help, auto read) {
    metrics.gauge_from(
        name, help, [&engine, read] { return static_cast<double>(read(engine.stats())); }, labels_);
  };
  const auto counter = [&](const char* name, const char* help, auto read) {
    metrics.counter_from(
        name, help, [&engine, read] { return static_cast<double>(read(engine.stats())); }, labels_);
  };
  using Stats = const EngineStats&;
  // One series for each data-parallel group.
  const auto by_group = [&](const char* name, const char* help, auto add, auto read) {
    const size_t groups = engine.stats().groups.size();
    for (size_t group = 0; group < groups; ++group) {
      Metrics::Labels labels = labels_;
      if (groups > 1) labels.emplace_back("engine", std::to_string(group));
      const auto read_group = [&engine, group, read] {
        return static_cast<double>(read(engine.stats().groups[group]));
      };
      (metrics.*add)(name, help, read_group, labels);
    }
  };
  using Group = const GroupStats&;
  constexpr auto kGauge = &Metrics::gauge_from;
  constexpr auto kCounter = &Metrics::counter_from;
  by_group("vllm:num_requests_running", "Sequences in the running batch.", kGauge,
           [](Group g) { return g.running; });
  // A request that the engine has not looked at yet waits as well.
  gauge("vllm:num_requests_waiting", "Sequences waiting to run.",
        [](Stats s) { return std::max(s.waiting_sequences, s.queued_requests); });
  for (int i = 0; i < kNumWaitReasons; ++i) {
    Metrics::Labels labels = labels_;
    labels.emplace_back("reason", label_of(static_cast<WaitReason>(i)));
    metrics.gauge_from(
        "sparrow:requests_waiting", "Sequences waiting to run, by what they wait for.",
        [&engine, i] {
          return static_cast<double>(engine.stats().waiting_by_reason[static_cast<size_t>(i)]);
        },
        labels);
  }
  by_group("vllm:kv_cache_usage_perc", "Part of the cache's blocks in use, 1 is all.", kGauge,
           [](Group g) { return fraction(g.blocks_in_use, g.blocks_total); });
  by_group("vllm:prefix_cache_queries_total", "Prompt tokens looked for in the prefix cache.", kCounter,
           [](Group g) { return g.prefix_tokens_queried; });
  by_group("vllm:prefix_cache_hits_total", "Prompt tokens found in the prefix cache.", kCounter,
           [](Group g) { return g.prefix_tokens_hit; });
  by_group("vllm:num_preemptions_total", "Sequences that lost their blocks and were computed again.",
           kCounter, [](Group g) { return g.preemptions; });
  counter("vllm:prompt_tokens_total", "Prompt tokens of accepted requests.",
          [](Stats s) { return s.prompt_tokens; });
  counter("vllm:generation_tokens_total", "Tokens generated.", [](Stats s) { return s.generated_tokens; });
  counter("sparrow:computed_tokens_total", "Tokens run through the model.",
          [](Stats s) { return s.computed_tokens; });
  counter("sparrow:encoded_media_total", "Images, and pieces of videos, that went through the vision tower.",
          [](Stats s) { return s.encoded_segments; });
  counter("sparrow:encoded_patches_total", "Their patches.", [](Stats s) { return s.encoded_patches; });
  counter("sparrow:encode_seconds_total", "Time in the vision tower.",
          [](Stats s) { return s.encode_seconds; });
  counter("sparrow:steps_total", "Steps of the engine.", [](Stats s) { return s.steps; });
  counter("sparrow:step_seconds_total", "Time in steps.", [](Stats s) { return s.step_seconds; });
  by_group("sparrow:blocks_cached", "Blocks that nobody uses and whose prefix is known.", kGauge,
           [](Group g) { return g.blocks_cached; });
  by_group("sparrow:blocks_free", "Blocks with nothing in them.", kGauge,
           [](Group g) { return g.blocks_free; });
  metrics.histogram_from(
      "vllm:iteration_tokens_total", "Tokens in a step.",
      std::vector<double>(kStepTokenBounds.begin(), kStepTokenBounds.end()),
      [&engine] {
        const EngineStats stats = engine.stats();
        return Metrics::Buckets{{stats.steps_by_tokens.begin(), stats.steps_by_tokens.end()},
                                static_cast<double>(stats.computed_tokens)};
      },
      labels_);
  add_rank_metrics(metrics, engine, {{"model_name", model_name}});
  Metrics::Labels cache = labels_;
  cache.emplace_back("block_size", "128");
  cache.emplace_back("num_gpu_blocks", std::to_string(engine.stats().blocks_total));
  cache.emplace_back("cache_dtype", short_name_of(engine.info().kv_dtype));
  cache.emplace_back("index_cache_dtype", short_name_of(engine.info().index_dtype));
  metrics.gauge("vllm:cache_config_info", "The cache's configuration.", cache).set(1);
}

void ServiceMetrics::finished(const Finished& request) {
  for (const std::string& reason : request.reasons) {
    Metrics::Labels labels = labels_;
    labels.emplace_back("finished_reason", reason);
    metrics_.counter("vllm:request_success_total", "Outputs that were answered, by their end.", labels).add();
  }
  for (size_t i = 0; i < of_requests_.size(); ++i)
    of_requests_[i]->observe(kRequestHistograms[i].value(request));
}

void ServiceMetrics::rejected(const char* reason) {
  Metrics::Labels labels = labels_;
  labels.emplace_back("reason", reason);
  metrics_.counter("sparrow:requests_rejected_total", "Requests that were refused.", labels).add();
}

}  // namespace sparrow
