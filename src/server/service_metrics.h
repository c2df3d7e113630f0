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

  // A request, by the reasons why its outputs ended.
  void finished(const std::vector<std::string>& reasons, double seconds, int64_t prompt_tokens,
                int64_t completion_tokens);
  void rejected(const char* reason);

  Histogram& time_to_first_token;
  Histogram& inter_token_latency;

 private:
  Metrics& metrics_;
  const Metrics::Labels labels_;
  Histogram& request_seconds_;
  Histogram& request_prompt_tokens_;
  Histogram& request_generation_tokens_;
};

}  // namespace sparrow
