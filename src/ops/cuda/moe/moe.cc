// SPDX-License-Identifier: Apache-2.0
#include "ops/cuda/moe/moe.h"

#include <algorithm>

#include "ops/cuda/linear_small.h"
#include "ops/cuda/moe/families.h"

namespace sparrow::ops::cuda {

namespace {

// A dense MLP has no slots.
MoeShape without_slots(MoeShape shape) {
  if (shape.num_experts == 0) shape.top_k = 0;
  return shape;
}

}  // namespace

int64_t moe_workspace_bytes(const MoeShape& shape, int max_rows) {
  const MoeShape s = without_slots(shape);
  return std::max(moe_few_workspace_bytes(s, max_rows), moe_many_workspace_bytes(s, max_rows));
}

void moe(const MoeShape& shape, const MoeArgs& args, cudaStream_t stream) {
  if (args.rows == 0) return;
  const MoeShape s = without_slots(shape);
  if (args.batch_invariant)
    moe_many(s, args, stream);
  else if (s.num_experts == 0 && args.rows <= kLinearSmallRows)
    mlp_few(s, args, stream);
  else if (s.num_experts > 0 && moe_few_fits(s, args.rows))
    moe_few(s, args, stream);
  else
    moe_many(s, args, stream);
}

}  // namespace sparrow::ops::cuda
