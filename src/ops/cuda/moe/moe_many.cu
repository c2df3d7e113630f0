// SPDX-License-Identifier: Apache-2.0
#include "ops/cuda/moe/families.h"

#include <algorithm>

#include "ops/cuda/moe/launch.cuh"
#include "ops/cuda/moe/many/combine.cuh"
#include "ops/cuda/moe/many/tile_held.cuh"
#include "sm90/launch.cuh"

namespace sparrow::ops::cuda {
namespace {

template <bool kFirst>
void launch_tiles(const TileParams& p, int max_shares, cudaStream_t stream) {
  using T = TileTraits<kFirst>;
  const int max_items = 2 * max_shares * ((p.out_rows + T::kRows - 1) / T::kRows);
  SPARROW_CUDA(hopper::launch_dependent(
      tile_kernel<T>, {dim3(std::min(num_sms(), max_items)), T::kThreads, T::kSmemBytes}, stream, p));
}

// Holding the tokens pays where arithmetic is the limit; where memory is, it has too few weights in flight.
constexpr int kHeldTokens = 160;  // of an expert, on average

bool holds_tokens(const MoeShape& shape, int rows) {
  const int64_t pairs = int64_t{rows} * std::max(shape.top_k, 1);
  return shape.inter <= HeldTraits::kMaxColumns && pairs >= kHeldTokens * std::max(shape.num_experts, 1);
}

}  // namespace

void moe_many(const MoeShape& shape, const MoeArgs& args, cudaStream_t stream, unsigned parts) {
  using First = TileTraits<true>;
  const MoeManyLayout at(shape, args.rows);
  auto* base = static_cast<uint8_t*>(args.workspace);
  auto* hidden = reinterpret_cast<__nv_bfloat16*>(base + at.hidden);
  // A dense MLP has one part, and that is the result.
  auto* expert_rows = shape.num_experts == 0 ? args.out : reinterpret_cast<__nv_bfloat16*>(base + at.parts);
  const RouteManyParams route{.ids = args.ids,
                              .row_at = reinterpret_cast<int32_t*>(base + at.row_at),
                              .place_of = reinterpret_cast<int32_t*>(base + at.place_of),
                              .shares = reinterpret_cast<Share*>(base + at.shares),
                              .num_shares = reinterpret_cast<int32_t*>(base + at.num_shares),
                              .rows = args.rows,
                              .num_experts = shape.num_experts,
                              .top_k = shape.top_k};
  if (parts & kMoeRoute)
    SPARROW_CUDA(hopper::launch_dependent(route_many_kernel, {dim3(RouteMany::kCluster), RouteMany::kThreads},
                                          stream, route));

  const int64_t places = int64_t{args.rows} * (shape.top_k + 1);
  const int max_shares = max_moe_shares(args.rows, shape.num_experts, shape.top_k);
  TileParams p{.w = tile_map(args.gate_up.bf16(), args.gate_up.rows, shape.hidden, First::kHalf),
               .tokens = tile_map(hidden, places, shape.inter, First::kStep),
               .x = args.x,
               .row_at = route.row_at,
               .shares = route.shares,
               .num_shares = route.num_shares,
               .out = hidden,
               .columns = shape.hidden,
               .out_rows = 2 * shape.inter,
               .out_columns = shape.inter,
               .alpha = args.alpha,
               .limit = args.limit,
               .beta = args.beta};
  if (parts & kMoeGateUp) launch_tiles<true>(p, max_shares, stream);
  p.w = tile_map(args.down.bf16(), args.down.rows, shape.inter, First::kHalf);
  p.out = expert_rows, p.columns = shape.inter, p.out_rows = shape.hidden, p.out_columns = shape.hidden;
  if ((parts & kMoeDown) && holds_tokens(shape, args.rows))
    SPARROW_CUDA(hopper::launch_dependent(
        held_kernel, {dim3(num_sms()), HeldTraits::kThreads, HeldTraits::kSmemBytes}, stream, p));
  else if (parts & kMoeDown)
    launch_tiles<false>(p, max_shares, stream);
  if ((parts & kMoeCombine) && shape.num_experts > 0)
    SPARROW_CUDA(hopper::launch_dependent(combine_kernel, {dim3(args.rows), Combine::kThreads}, stream,
                                          CombineParams{.parts = expert_rows,
                                                        .weights = args.weights,
                                                        .place_of = route.place_of,
                                                        .out = args.out,
                                                        .rows = args.rows,
                                                        .hidden = shape.hidden,
                                                        .top_k = shape.top_k,
                                                        .scaling = args.scaling}));
}

}  // namespace sparrow::ops::cuda
