// SPDX-License-Identifier: Apache-2.0
// What the service counts, under vLLM's names, so that dashboards, autoscalers and gateways made for vLLM
// work; our own begin with "sparrow:".
#pragma once

#include <string>
#include <vector>

#include "engine/engine.h"
#include "server/metrics.h"

namespace sparrow {

class ServiceMetrics {
 public:
  // Both must outlive this.
  ServiceMetrics(Metrics& metrics, const Engine& engine, const std::string& model_name);

  // A request that was answered.
  struct Finished {
    std::vector<std::string> reasons;  // why its outputs ended
    int64_t prompt_tokens = 0, completion_tokens = 0, longest_output = 0;
    int64_t n = 1, max_tokens = 0;  // as asked
    // All of its way; until it started, from there to its first token, from there to its last.
    double seconds = 0, queue_seconds = 0, prefill_seconds = 0, decode_seconds = 0;
  };
  void finished(const Finished& request);
  void rejected(const char* reason);

  Histogram& time_to_first_token;
  Histogram& inter_token_latency;

 private:
  Metrics& metrics_;
  const Metrics::Labels labels_;
  std::vector<Histogram*> of_requests_;
};

}  // namespace sparrow
