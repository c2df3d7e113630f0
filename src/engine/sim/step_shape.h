// SPDX-License-Identifier: Apache-2.0
// StepShape: what of a step its time depends on, summed over its sequences. Plain data.
#pragma once

#include <algorithm>
#include <cstdint>

namespace sparrow {

struct StepShape {
  // Tokens that a row of a sparse layer attends to, at most: M3's 16 blocks.
  static constexpr int64_t kSelectedTokens = 2048;

  int64_t rows = 0;           // new tokens
  int64_t logit_rows = 0;     // of which logits are wanted
  int64_t sequences = 0;      // with one new token
  int64_t prompts = 0;        // with more
  double context = 0;         // tokens in the cache after the step, of sequences with one new token
  double prompt_context = 0;  // of those with more
  double selected = 0;        // of `context`, those that sparse layers attend to
  double pairs = 0;           // of a prompt's new token with one that it sees
  double selected_pairs = 0;  // the same in sparse layers

  // A sequence with so many new tokens, and so many in the cache after the step.
  void add(int64_t new_tokens, int64_t in_cache, int64_t with_logits) {
    rows += new_tokens;
    logit_rows += with_logits;
    const auto tokens = static_cast<double>(in_cache);
    if (new_tokens == 1) {
      ++sequences;
      context += tokens;
      selected += static_cast<double>(std::min(in_cache, kSelectedTokens));
      return;
    }
    ++prompts;
    prompt_context += tokens;
    pairs += sum_to(in_cache) - sum_to(in_cache - new_tokens);
    selected_pairs += selected_to(in_cache) - selected_to(in_cache - new_tokens);
  }

 private:
  static double sum_to(int64_t last) {
    return 0.5 * static_cast<double>(last) * static_cast<double>(last + 1);
  }
  static double selected_to(int64_t last) {
    const int64_t full = std::min(last, kSelectedTokens);
    return sum_to(full) + static_cast<double>(last - full) * static_cast<double>(kSelectedTokens);
  }
};

}  // namespace sparrow
