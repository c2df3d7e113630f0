// SPDX-License-Identifier: Apache-2.0
// DrawBuffer: where the draws of a step lie in the memory of the device sampler, which holds the largest
// step. Host arithmetic only: no CUDA.
#pragma once

#include <cstddef>

namespace sparrow {

struct DrawLimits {
  int max_draws = 0;   // of a step
  int max_logits = 0;  // rows of logits at a time
  int vocab_size = 0;
  int num_end_ids = 0;  // of the model, which a request's stop ids come on top of
};

// In bytes.
struct DrawLayout {
  size_t wanted = 0, batch = 0;                                          // sent
  size_t ids = 0, status = 0;                                            // come back: of the draws
  size_t logprob = 0, rank = 0, top_ids = 0, top_logprobs = 0, end = 0;  // of what is wanted
};

inline constexpr int kDrawRuns = 2;  // steps whose draws may be under way, each with a buffer of its own

struct DrawBuffer {
  DrawBuffer() = default;
  explicit DrawBuffer(const DrawLimits& limits);

  DrawLayout lay_out(int draws, int wanted, int top_stride) const;

  // Packed draws that can be sent at a time; no single one is larger. What a step has more goes in turns.
  size_t batch_bytes = 0;
  size_t results = 0;  // what comes back lies from here on
  size_t bytes = 0;
};

}  // namespace sparrow
