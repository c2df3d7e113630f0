// SPDX-License-Identifier: Apache-2.0
#include "ops/cuda/moe/families.h"

#include <algorithm>

#include "ops/cuda/moe/launch.cuh"
#include "ops/cuda/moe/many/combine.cuh"
#include "ops/cuda/moe/many/products.h"
#include "ops/cuda/moe/many/route_many.cuh"
#include "sm90/launch.cuh"

namespace sparrow::ops::cuda {
namespace {

// Tokens of an expert on average. Up to kFewTokens the weights take longer to come than to be multiplied.
// Holding the tokens pays where arithmetic is the limit; where memory is, it has too few weights in flight.
// Of cells it has more.
constexpr int kFewTokens = 40, kHeldTokens = 160, kHeldTokensOfCells = 112;

Tokens tokens_of(const MoeShape& shape, const MoeArgs& args) {
  const int64_t pairs = int64_t{args.rows} * std::max(shape.top_k, 1);
  const int64_t tokens = pairs / std::max(shape.num_experts, 1);
  if (tokens < kFewTokens) return Tokens::kFew;
  return tokens < (is_mx(args.down.format) ? kHeldTokensOfCells : kHeldTokens) ? Tokens::kMany
                                                                               : Tokens::kHeld;
}

template <bool kFirst>
void launch(MatrixFormat format, const TileParams& p, Tokens tokens, int max_shares, cudaStream_t stream) {
  if (format == MatrixFormat::kMxfp8)
    launch_product<MatrixFormat::kMxfp8, kFirst>(p, tokens, max_shares, stream);
  else if (format == MatrixFormat::kMxfp4)
    launch_product<MatrixFormat::kMxfp4, kFirst>(p, tokens, max_shares, stream);
  else
    launch_product<MatrixFormat::kBF16, kFirst>(p, tokens, max_shares, stream);
}

// Brings boxes of 128 rows by 64 columns, cells as they lie.
CUtensorMap weight_map(const DeviceMatrix& w) {
  constexpr int kBoxRows = 128;
  if (!is_mx(w.format)) return tile_map(w.bf16(), w.rows, w.cols, kBoxRows);
  const int words = cell_bytes(w.format) / 8;
  CUtensorMap map;
  SPARROW_CUDA(hopper::make_tensor_map(hopper::MatrixView{.data = w.cells(),
                                                          .element = hopper::Element::kU64,
                                                          .rows = w.rows / kCellRows,
                                                          .columns = w.cols / kCellColumns * words,
                                                          .box_rows = kBoxRows / kCellRows,
                                                          .box_columns = words,
                                                          .swizzle = false},
                                       &map));
  return map;
}

}  // namespace

void moe_many(const MoeShape& shape, const MoeArgs& args, cudaStream_t stream, unsigned parts) {
  const Tokens tokens = tokens_of(shape, args);
  const bool rounds = args.rounded.codes != nullptr;
  const MoeManyLayout at(shape, args.rows);
  auto* base = static_cast<uint8_t*>(args.workspace);
  auto* hidden = reinterpret_cast<__nv_bfloat16*>(base + at.hidden);
  // A dense MLP has one part, and that is the result.
  auto* expert_rows = shape.num_experts == 0 ? args.out : reinterpret_cast<__nv_bfloat16*>(base + at.parts);
  const RouteManyParams route{
      .ids = args.ids,
      .row_at = reinterpret_cast<int32_t*>(base + at.row_at),
      .place_of = reinterpret_cast<int32_t*>(base + at.place_of),
      .shares = reinterpret_cast<Share*>(base + at.shares),
      .num_shares = reinterpret_cast<int32_t*>(base + at.num_shares),
      .rows = args.rows,
      .num_experts = shape.num_experts,
      .top_k = shape.top_k,
      .share_tokens = std::min(rounds ? kE4m3ShareTokens : share_tokens(args.gate_up.format, tokens),
                               share_tokens(args.down.format, tokens)),
      .shared = args.shared == nullptr};
  if (parts & kMoeRoute)
    SPARROW_CUDA(hopper::launch_dependent(route_many_kernel, {dim3(RouteMany::kCluster), RouteMany::kThreads},
                                          stream, route));

  const int64_t places = int64_t{args.rows} * (shape.top_k + 1);
  const int max_shares = max_moe_shares(args.rows, shape.num_experts, shape.top_k);
  TileParams p{.w = weight_map(args.gate_up),
               .tokens = tile_map(hidden, places, shape.inter, RouteMany::kStep),
               .x = args.x,
               .row_at = route.row_at,
               .shares = route.shares,
               .num_shares = route.num_shares,
               .out = hidden,
               .columns = shape.hidden,
               .out_rows = 2 * shape.inter,
               .out_columns = shape.inter,
               .next_may_start = tokens != Tokens::kHeld,
               .alpha = args.alpha,
               .limit = args.limit,
               .beta = args.beta};
  if ((parts & kMoeGateUp) && rounds)
    launch_e4m3_product({p, args.rounded}, max_shares, stream);
  else if (parts & kMoeGateUp)
    launch<true>(args.gate_up.format, p, tokens, max_shares, stream);
  p.w = weight_map(args.down);
  p.out = expert_rows, p.columns = shape.inter, p.out_rows = shape.hidden, p.out_columns = shape.hidden;
  if (parts & kMoeDown) launch<false>(args.down.format, p, tokens, max_shares, stream);
  const __nv_bfloat16* const shared = expert_rows + int64_t{args.rows} * shape.top_k * shape.hidden;
  if ((parts & kMoeCombine) && shape.num_experts > 0)
    SPARROW_CUDA(
        hopper::launch_dependent(combine_kernel, {dim3(args.rows), Combine::kThreads}, stream,
                                 CombineParams{.parts = expert_rows,
                                               .shared = args.shared != nullptr ? args.shared : shared,
                                               .weights = args.weights,
                                               .place_of = route.place_of,
                                               .out = args.out,
                                               .rows = args.rows,
                                               .hidden = shape.hidden,
                                               .top_k = shape.top_k,
                                               .scaling = args.scaling}));
}

}  // namespace sparrow::ops::cuda
