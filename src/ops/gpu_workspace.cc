// SPDX-License-Identifier: Apache-2.0
#include "ops/gpu_workspace.h"

#include <algorithm>

#include "base/math.h"

namespace sparrow::ops::cuda {
namespace {

constexpr int64_t kAlignment = 256, kBf16 = 2, kF32 = 4, kI32 = 4;

}  // namespace

int64_t router_few_logits(const RouterShape& shape, int rows) {
  return int64_t{std::min(rows, kRouterManyRows)} * router_parts(shape.hidden) * shape.num_experts;
}

int64_t router_workspace_bytes(const RouterShape& shape, int max_rows) {
  return kF32 * (router_few_logits(shape, max_rows) + int64_t{max_rows} * shape.num_experts);
}

MoeManyLayout::MoeManyLayout(const MoeShape& shape, int rows) {
  const int64_t pairs = int64_t{rows} * shape.top_k, places = pairs + rows;
  bytes = kMoeBarrierBytes;
  const auto take = [&](int64_t size) {
    const int64_t at = bytes;
    bytes = round_up(at + size, kAlignment);
    return at;
  };
  row_at = take(places * kI32);
  place_of = take(pairs * kI32);
  shares = take(max_moe_shares(rows, shape.num_experts, shape.top_k) * int64_t{sizeof(Share)});
  num_shares = take(kI32);
  hidden = take(places * shape.inter * kBf16);
  // A dense MLP's one expert has the result, unless it is one part of it (moe/moe_parts.h).
  parts = take(places * shape.hidden * kBf16);
}

int64_t moe_few_workspace_bytes(const MoeShape& shape, int rows) {
  const int pieces = (shape.inter + kHiddenPieceColumns - 1) / kHiddenPieceColumns;
  // Pieces are rounded up to whole cells.
  const int columns = shape.top_k == 0 ? shape.inter : shape.inter + pieces * (kColumnTile + kHiddenPieceGap);
  return kMoeBarrierBytes + int64_t{rows} * (shape.top_k + 1) * columns * kBf16;
}

int64_t moe_many_workspace_bytes(const MoeShape& shape, int rows) {
  return MoeManyLayout(shape, rows).bytes;
}

int64_t moe_workspace_bytes(const MoeShape& shape, int max_rows) {
  MoeShape s = shape;
  if (s.num_experts == 0) s.top_k = 0;  // a dense MLP has no slots
  return std::max(moe_few_workspace_bytes(s, max_rows), moe_many_workspace_bytes(s, max_rows));
}

}  // namespace sparrow::ops::cuda
