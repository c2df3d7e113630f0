// SPDX-License-Identifier: Apache-2.0
// Pump: one request between the engine and its client: takes the engine's events into the answer and counts
// the times between them.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <vector>

#include "engine/engine.h"
#include "server/auth.h"
#include "server/byte_budget.h"
#include "server/openai/generation.h"
#include "server/service_metrics.h"

namespace sparrow {

struct Pump {
  using Clock = std::chrono::steady_clock;

  std::unique_ptr<TokenStream> stream;
  std::unique_ptr<openai::Generation> generation;
  KeyTicket ticket;  // until all tokens are there: who has read an answer may ask again at once
  ByteBudget::Share memory;
  bool is_large = false;
  std::vector<Clock::time_point> last_token;  // of each output
  std::vector<int64_t> num_tokens;            // likewise
  std::optional<TokenEvent::Waited> waited;
  ServiceMetrics::Finished asked;  // what is known when it is submitted
  Clock::time_point submitted_at = Clock::now(), first_token;

  // Takes what has come, up to a limit; true: that is reached, and there may be more.
  bool take(ServiceMetrics& counts, Clock::time_point received_at);
  // What is known of it in the end.
  void count(ServiceMetrics& counts, Clock::time_point received_at) const;
};

}  // namespace sparrow
