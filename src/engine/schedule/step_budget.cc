// SPDX-License-Identifier: Apache-2.0
#include "engine/schedule/step_budget.h"

#include <algorithm>

namespace sparrow {
namespace {

// A machine of which nothing is known: a block at first.
constexpr double kFirstTokensPerSecond = 128 / StepBudget::kAloneSeconds;
// How far one step may move the rate: up slowly, because a short step may be one that found its experts
// cached, and down fast.
constexpr double kMostUp = 2.0, kMostDown = 0.25;
constexpr double kDecodeWeight = 0.25;  // of the last step in the average

}  // namespace

StepBudget::StepBudget(int max_step_tokens)
    : max_step_tokens_(max_step_tokens), tokens_per_second_(kFirstTokensPerSecond) {}

// Reading the weights may take longer than all of that. A step for prompts may then take twice as long as one
// without: shorter ones would do little but read weights.
double StepBudget::target_seconds(bool shared) const {
  return std::max(shared ? kSharedSeconds : kAloneSeconds, 2 * decode_seconds_);
}

int StepBudget::tokens(bool shared) const {
  const double tokens = std::min<double>(tokens_per_second_ * target_seconds(shared), max_step_tokens_);
  return std::max(static_cast<int>(tokens), std::min(kLeastTokens, max_step_tokens_));
}

void StepBudget::took(double seconds, int tokens, int budget, bool prompts) {
  if (seconds <= 0 || tokens <= 0) return;
  if (!prompts) {
    decode_seconds_ += kDecodeWeight * (seconds - decode_seconds_);
    return;
  }
  const double rate = tokens / seconds;
  // A step that had less to do than it might tells what it costs at least, not what more would.
  if (rate > tokens_per_second_ && 2 * tokens < budget) return;
  tokens_per_second_ = std::clamp(rate, kMostDown * tokens_per_second_, kMostUp * tokens_per_second_);
}

}  // namespace sparrow
