// SPDX-License-Identifier: Apache-2.0
#include "ops/cuda/moe/moe.h"

#include <algorithm>
#include <climits>

#include "device/cuda/arguments.h"
#include "ops/cuda/linear_small.h"
#include "ops/cuda/moe/families.h"
#include "ops/cuda/moe/moe_parts.h"

namespace sparrow::ops::cuda {

namespace {

// A dense MLP has no slots.
MoeShape without_slots(MoeShape shape) {
  if (shape.num_experts == 0) shape.top_k = 0;
  return shape;
}

// Up to 64 rows streams are as fast as tiles or faster, but for wide experts in bf16: streams and tiles at 64
// rows, us: 384 channels 376 and 373, 768 744 and 721, 1,536 1,485 and 1,437, 3,072 2,947 and 2,855; MXFP8
// 203 and 210, 403 and 401, 772 and 791, 1,544 and 1,556; MXFP4 120 and 159, 257 and 294, 472 and 579, 984
// and 1,154.
bool streams_pay(const MoeShape& shape, const MoeArgs& args) {
  constexpr int kWide = 768, kManyRows = 32;
  return is_mx(args.gate_up.format) || shape.inter < kWide || args.rows <= kManyRows;
}

Arguments check(const char* launcher, const MoeShape& shape, const MoeArgs& args) {
  Arguments arguments(launcher);
  arguments.range("hidden", shape.hidden, kColumnTile, INT_MAX)
      .multiple("hidden", shape.hidden, kColumnTile)
      .range("inter", shape.inter, kColumnTile, INT_MAX)
      .multiple("inter", shape.inter, kColumnTile)
      .range("num_experts", shape.num_experts, 0, kMaxExperts)
      .range("rows", args.rows, 1, INT_MAX / (kMaxExpertsPerToken + 1))
      .pointer("x", args.x)
      .pointer("workspace", args.workspace, kMoeBarrierBytes);
  if (shape.num_experts > 0)
    // Of whole experts that lie on several ranks there may be fewer here than a row picks.
    arguments
        .range(
            "top_k", shape.top_k, 1,
            args.shared != nullptr ? kMaxExpertsPerToken : std::min(kMaxExpertsPerToken, shape.num_experts))
        .pointer("ids", args.ids, alignof(int32_t))
        .pointer("weights", args.weights, alignof(float));
  if (args.shared != nullptr)
    arguments.pointer("shared", args.shared).range("num_experts", shape.num_experts, 1, kMaxExperts);
  const int64_t experts = shape.num_experts + (args.shared == nullptr ? 1 : 0);
  check_matrix(arguments, "gate_up", args.gate_up, experts * 2 * shape.inter, shape.hidden);
  check_matrix(arguments, "down", args.down, experts * shape.hidden, shape.inter);
  if (args.rounded.codes != nullptr)
    arguments.require("gate_up", args.gate_up.format == MatrixFormat::kMxfp8, "must be MXFP8")
        .pointer("codes", args.rounded.codes)
        .pointer("scales", args.rounded.scales, alignof(float))
        .multiple("hidden", shape.hidden, kE4m3Columns);
  return arguments;
}

}  // namespace

void moe(const MoeShape& shape, const MoeArgs& args, cudaStream_t stream) {
  if (args.rows == 0) return;
  check("moe", shape, args).pointer("out", args.out);
  const MoeShape s = without_slots(shape);
  if (args.batch_invariant || args.rounded.codes != nullptr || args.shared != nullptr)
    moe_many(s, args, stream);
  else if (s.num_experts == 0 && args.rows <= kLinearSmallRows)
    mlp_few(s, args, stream);
  else if (s.num_experts > 0 && moe_few_fits(s, args.rows) && streams_pay(s, args))
    moe_few(s, args, stream);
  else
    moe_many(s, args, stream);
}

void moe_in_parts(const MoeShape& shape, const MoeArgs& args, const PartTree& sums, cudaStream_t stream) {
  if (args.rows == 0) return;
  const Arguments arguments = check("moe_in_parts", shape, args);
  arguments.require("sums.parts", is_part_count(sums.parts), "must be 1, 2, 4 or 8")
      .multiple("inter", shape.inter, sums.parts * kColumnTile)
      .require("rounded", args.rounded.codes == nullptr, "must not be there");
  for (int s = 0; s < tree_slots(sums.parts); ++s) arguments.pointer("sums.slots", sums.slots[s]);
  moe_many_in_parts(without_slots(shape), args, sums, stream);
}

}  // namespace sparrow::ops::cuda
