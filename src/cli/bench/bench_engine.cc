// SPDX-License-Identifier: Apache-2.0
// `sparrow bench engine`: throughput and latency of the engine over a synthetic mix of requests.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <random>

#include "base/json/json_writer.h"
#include "base/progress.h"
#include "cli/commands.h"
#include "cli/load_model.h"
#include "cli/run/stream_set.h"

namespace sparrow::cli {
namespace {

using Clock = std::chrono::steady_clock;

double seconds(Clock::duration duration) {
  return std::chrono::duration<double>(duration).count();
}

struct Sample {
  Clock::time_point submitted, first, last;
  int64_t output_tokens = 0, cached_tokens = 0;
};

struct Percentiles {
  double p50 = 0, p90 = 0, p99 = 0;
};

Percentiles percentiles(std::vector<double> values) {
  if (values.empty()) return {};
  std::sort(values.begin(), values.end());
  const auto at = [&](double share) {  // the smallest value that this share of them does not exceed
    const auto rank = static_cast<size_t>(std::ceil(share * static_cast<double>(values.size())));
    return values[std::max<size_t>(rank, 1) - 1];
  };
  return {at(0.50), at(0.90), at(0.99)};
}

// The same seed gives the same prompts and the same times.
class Workload {
 public:
  Workload(const BenchEngineOptions& options, int vocab_size) : options_(options), random_(options.seed) {
    std::uniform_int_distribution<int32_t> id(0, vocab_size - 1);
    std::vector<int32_t> shared(options.shared_prefix);
    for (int32_t& value : shared) value = id(random_);
    std::exponential_distribution<double> gap(options.arrival_rate > 0 ? options.arrival_rate : 1.0);
    double time = 0;
    for (int i = 0; i < options.num_prompts; ++i) {
      std::vector<int32_t> prompt = shared;
      prompt.resize(options.input_len);
      for (int t = options.shared_prefix; t < options.input_len; ++t) prompt[t] = id(random_);
      prompts_.push_back(std::move(prompt));
      arrivals_.push_back(time);
      if (options.arrival_rate > 0) time += gap(random_);
    }
  }

  Request request(size_t i) const {
    return {.prompts = {prompts_[i]},
            .sampling = {.temperature = 0},
            .max_tokens = options_.output_len,
            .ignore_eos = true};
  }
  double arrival(size_t i) const { return arrivals_[i]; }
  size_t size() const { return prompts_.size(); }

 private:
  const BenchEngineOptions& options_;
  std::mt19937_64 random_;
  std::vector<std::vector<int32_t>> prompts_;
  std::vector<double> arrivals_;  // seconds after the start
};

struct Measured {
  std::vector<Sample> samples;
  double wall_seconds = 0;
  EngineStats stats;
};

Result<Measured> measure(Engine& engine, const BenchEngineOptions& options, const Workload& workload) {
  Measured result;
  result.samples.resize(workload.size());
  const size_t limit = options.concurrency > 0 ? options.concurrency : workload.size();
  StreamSet streams;
  ProgressBar bar("requests", ProgressBar::Unit::kItems);
  const Clock::time_point start = Clock::now();
  std::string error;
  size_t next = 0, done = 0;
  while (done < workload.size() && error.empty()) {
    while (next < workload.size() && streams.size() < limit &&
           seconds(Clock::now() - start) >= workload.arrival(next)) {
      Request request = workload.request(next);
      result.samples[next].submitted = Clock::now();
      streams.add(next++, SPARROW_TRY(engine.submit(std::move(request))));
    }
    // Short enough that an arrival is late by little against any step.
    streams.take(std::chrono::milliseconds(2), [&](size_t tag, const TokenEvent& event) {
      Sample& sample = result.samples[tag];
      sample.last = Clock::now();
      sample.cached_tokens = event.cached_tokens;
      if (event.id && sample.output_tokens++ == 0) sample.first = sample.last;
      if (event.finish) ++done;
      if (!event.error.empty()) error = event.error;
    });
    bar.update(done, workload.size());
  }
  if (!error.empty()) return Error{Errc::kCorrupt, error};
  result.wall_seconds = seconds(Clock::now() - start);
  result.stats = engine.stats();
  return result;
}

struct Summary {
  int64_t tokens_in = 0, tokens_out = 0;
  double in_per_second = 0, out_per_second = 0;
  Percentiles first_token, per_token;  // seconds
  double mean_batch = 0, hit_rate = 0;
};

Summary summarise(const Measured& measured, const BenchEngineOptions& options) {
  Summary summary;
  std::vector<double> first_token, per_token;
  for (const Sample& sample : measured.samples) {
    summary.tokens_out += sample.output_tokens;
    first_token.push_back(seconds(sample.first - sample.submitted));
    if (sample.output_tokens > 1)
      per_token.push_back(seconds(sample.last - sample.first) /
                          static_cast<double>(sample.output_tokens - 1));
  }
  const EngineStats& stats = measured.stats;
  summary.tokens_in = int64_t{options.num_prompts} * options.input_len;
  summary.in_per_second = static_cast<double>(summary.tokens_in) / measured.wall_seconds;
  summary.out_per_second = static_cast<double>(summary.tokens_out) / measured.wall_seconds;
  summary.first_token = percentiles(std::move(first_token));
  summary.per_token = percentiles(std::move(per_token));
  if (stats.steps > 0)
    summary.mean_batch = static_cast<double>(stats.step_sequences) / static_cast<double>(stats.steps);
  if (stats.prefix_tokens_queried > 0)
    summary.hit_rate =
        static_cast<double>(stats.prefix_tokens_hit) / static_cast<double>(stats.prefix_tokens_queried);
  return summary;
}

void print_table(const Measured& measured, const Summary& s) {
  const EngineStats& stats = measured.stats;
  const auto row = [](const char* name, const std::string& value) {
    std::fputs(strf("{:<28}{}\n", name, value).c_str(), stdout);
  };
  const auto latencies = [](const Percentiles& p) {
    return strf("{:>10.2f} {:>10.2f} {:>10.2f}", 1e3 * p.p50, 1e3 * p.p90, 1e3 * p.p99);
  };
  const auto tokens = [&](int64_t n, double per_second) {
    const bool rated = has_rate(static_cast<double>(n), measured.wall_seconds);
    return strf("{:>10}{}", n, rated ? strf(" {:>10.1f} tokens/s", per_second) : "");
  };
  row("requests", strf("{:>10} in {:.2f} s", measured.samples.size(), measured.wall_seconds));
  row("tokens in", tokens(s.tokens_in, s.in_per_second));
  row("tokens out", tokens(s.tokens_out, s.out_per_second));
  row("tokens run by the model", strf("{:>10}", stats.computed_tokens));
  row("", strf("{:>10} {:>10} {:>10}", "p50", "p90", "p99"));
  row("time to first token, ms", latencies(s.first_token));
  row("time for each token, ms", latencies(s.per_token));
  row("sequences in a step", strf("{:>10.1f} mean {:>6} most", s.mean_batch, stats.largest_step_sequences));
  row("steps", strf("{:>10} {:>10.2f} ms mean", stats.steps,
                    stats.steps > 0 ? 1e3 * stats.step_seconds / static_cast<double>(stats.steps) : 0.0));
  row("cache hit rate", strf("{:>9.1f}% of {} prompt tokens", 100 * s.hit_rate, stats.prefix_tokens_queried));
  row("preemptions", strf("{:>10}", stats.preemptions));
}

void print_json(const Measured& measured, const Summary& s, const BenchEngineOptions& options,
                const EngineInfo& info) {
  const EngineStats& stats = measured.stats;
  JsonWriter json(JsonWriter::Style::kSpaced);
  const auto latencies = [&](const char* name, const Percentiles& p) {
    json.key(name).begin_object().key("p50").number(1e3 * p.p50).key("p90").number(1e3 * p.p90);
    json.key("p99").number(1e3 * p.p99).end_object();
  };
  json.begin_object().key("device").string(info.device).key("kernels").string(info.kernels);
  json.key("threads").integer(info.threads).key("num_prompts").integer(options.num_prompts);
  json.key("input_len").integer(options.input_len).key("output_len").integer(options.output_len);
  json.key("shared_prefix").integer(options.shared_prefix).key("arrival_rate").number(options.arrival_rate);
  json.key("concurrency").integer(options.concurrency).key("seconds").number(measured.wall_seconds);
  json.key("tokens_in_per_s").number(s.in_per_second).key("tokens_out_per_s").number(s.out_per_second);
  json.key("computed_tokens").integer(stats.computed_tokens);
  latencies("first_token_ms", s.first_token);
  latencies("per_token_ms", s.per_token);
  json.key("mean_step_sequences").number(s.mean_batch);
  json.key("max_step_sequences").integer(stats.largest_step_sequences).key("steps").integer(stats.steps);
  json.key("hit_rate").number(s.hit_rate).key("preemptions").integer(stats.preemptions).end_object();
  std::puts(json.text().c_str());
}

}  // namespace

Status run_bench_engine(const BenchEngineOptions& options) {
  if (options.shared_prefix > options.input_len)
    return Error{Errc::kInvalidArgument, strf("--shared-prefix {} is longer than --input-len {}",
                                              options.shared_prefix, options.input_len)};
  if (options.max_step_tokens < options.max_step_sequences)
    return Error{Errc::kInvalidArgument, strf("--max-batch-tokens {} is less than --max-sequences {}",
                                              options.max_step_tokens, options.max_step_sequences)};
  const ModelConfig config = SPARROW_TRY(load_config(options.model, options.load.hf_overrides));
  const int64_t tokens = int64_t{options.input_len} + options.output_len;
  if (tokens > config.max_positions)
    return Error{Errc::kInvalidArgument,
                 strf("--input-len {} and --output-len {} exceed the model's {} positions", options.input_len,
                      options.output_len, config.max_positions)};
  const Checkpoint checkpoint = SPARROW_TRY(load_checkpoint(options.model, options.load));
  const Workload workload(options, config.vocab_size);
  EngineOptions engine_options{.cache_tokens = options.cache_tokens,
                               .cpu = {.threads = options.threads},
                               .max_step_tokens = options.max_step_tokens,
                               .max_step_sequences = options.max_step_sequences,
                               .prefix_caching = options.prefix_caching,
                               .max_queued_requests = options.num_prompts};
  if (engine_options.cache_tokens == 0) {
    const int64_t together = options.concurrency > 0 ? options.concurrency : options.num_prompts;
    engine_options.cache_tokens = blocks_for_tokens(tokens) * kBlockTokens * together;
  }
  const auto engine = SPARROW_TRY(start_engine(checkpoint, engine_options, options.load));
  const Measured measured = SPARROW_TRY(measure(*engine, options, workload));
  const Summary summary = summarise(measured, options);
  if (options.json)
    print_json(measured, summary, options, engine->info());
  else
    print_table(measured, summary);
  return Ok{};
}

}  // namespace sparrow::cli
