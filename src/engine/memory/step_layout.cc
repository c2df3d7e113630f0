// SPDX-License-Identifier: Apache-2.0
#include "engine/memory/step_layout.h"

#include <cstdint>
#include <utility>

#include "base/math.h"

namespace sparrow {

constexpr size_t kAlignment = 16;

int StepShape::all_logits() const {
  int all = 0;
  for (int g = 0; g < num_groups(); ++g) all += group(g).logits;
  return all;
}

StepLayout::StepLayout(const StepShape& shape) {
  size_t used = 0;
  const auto take = [&](int count, size_t size) {
    return std::exchange(used, round_up(used + static_cast<size_t>(count) * size, kAlignment));
  };
  ids = take(shape.tokens(), sizeof(int32_t));
  drawn_by = take(shape.tokens(), sizeof(int32_t));
  feature_rows = take(shape.tokens(), sizeof(int32_t));
  positions = take(shape.tokens(), sizeof(int32_t));
  slots = take(shape.tokens(), sizeof(int64_t));
  seq_lens = take(shape.sequences(), sizeof(int32_t));
  cu_seqlens = take(shape.prefills + 1, sizeof(int32_t));
  logit_rows = take(shape.all_logits(), sizeof(int32_t));
  num_rows = take(shape.num_groups(), sizeof(int32_t));
  bytes = used;
}

StepUploadBytes::StepUploadBytes(int max_step_tokens, int max_step_sequences, int max_columns, int groups) {
  // Sequences of one token count as decodes in one step and as prefills in another: room for either.
  StepShape most{.decodes = max_step_tokens, .prefills = max_step_sequences, .logits = max_step_tokens};
  if (groups > 1) most.groups.assign(static_cast<size_t>(groups), {max_step_tokens, max_step_tokens});
  metadata = StepLayout(most).bytes + 64;
  table = sizeof(int32_t) * static_cast<size_t>(max_step_sequences) * static_cast<size_t>(max_columns);
}

}  // namespace sparrow
