// SPDX-License-Identifier: Apache-2.0
#include "server/api/pump.h"

#include <algorithm>
#include <utility>

namespace sparrow {
namespace {

// Events that are taken at a time: a stream whose reader lagged may have thousands.
constexpr int kEventsAtATime = 256;

}  // namespace

bool Pump::take(ServiceMetrics& counts, Clock::time_point received_at) {
  for (int taken = 0; taken < kEventsAtATime; ++taken) {
    auto event = stream->try_next();
    if (!event) return false;
    if (event->waited) waited = event->waited;
    if (event->id) {
      const Clock::time_point now = Clock::now();
      Clock::time_point& last = last_token[static_cast<size_t>(event->output)];
      const double seconds = std::chrono::duration<double>(now - std::max(last, received_at)).count();
      (last == Clock::time_point{} ? counts.time_to_first_token : counts.inter_token_latency)
          .observe(seconds);
      last = now;
      if (first_token == Clock::time_point{}) first_token = now;
      ++num_tokens[static_cast<size_t>(event->output)];
    }
    const int output = event->output;
    const bool ended = event->finish.has_value();
    if (generation->take(std::move(*event)) || ended) continue;
    // A stop string ended it, which the engine cannot know.
    stream->cancel(output);
    if (generation->finished()) return false;
  }
  return true;
}

void Pump::count(ServiceMetrics& counts, Clock::time_point received_at) const {
  if (!generation->finished()) return counts.rejected("abandoned");
  const Usage usage = generation->usage();
  const auto seconds = [](Clock::duration time) { return std::chrono::duration<double>(time).count(); };
  ServiceMetrics::Finished finished = asked;
  finished.reasons = generation->finish_reasons();
  finished.prompt_tokens = usage.prompt_tokens;
  finished.completion_tokens = usage.completion_tokens;
  finished.longest_output = std::ranges::max(num_tokens);
  finished.seconds = seconds(Clock::now() - received_at);
  if (waited) finished.queue_seconds = waited->seconds;
  if (first_token != Clock::time_point{}) {
    finished.prefill_seconds = std::max(seconds(first_token - submitted_at) - finished.queue_seconds, 0.0);
    finished.decode_seconds = seconds(std::ranges::max(last_token) - first_token);
  }
  counts.finished(finished);
}

}  // namespace sparrow
