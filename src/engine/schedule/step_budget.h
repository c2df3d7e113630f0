// SPDX-License-Identifier: Apache-2.0
// StepBudget: how many tokens a step may have so that it does not take too long: whoever comes during a step
// waits for its end, and whoever runs gets one token from it. Results do not depend on it: how a prompt is
// cut never changes a bit. Engine thread only; it sees the times it is told.
#pragma once

namespace sparrow {

class StepBudget {
 public:
  // Kernels work on groups of 16 rows: fewer cost the same.
  static constexpr int kLeastTokens = 16;
  // A few steps lie between a short question and its answer, and three seconds are as long as people wait.
  static constexpr double kSharedSeconds = 0.2;
  // Of a step that only serves one: who comes next waits for its end once. Longer chunks read weights less
  // often.
  static constexpr double kAloneSeconds = 0.75;

  explicit StepBudget(int max_step_tokens);

  // For the next step. `shared`: more than one sequence wants to run.
  int tokens(bool shared) const;

  // What a step took: `budget` is what it was given. `prompts`: it had tokens of prompts.
  void took(double seconds, int tokens, int budget, bool prompts);

 private:
  double target_seconds(bool shared) const;

  const int max_step_tokens_;
  double tokens_per_second_;
  double decode_seconds_ = 0;  // of a step without prompts, lately
};

}  // namespace sparrow
