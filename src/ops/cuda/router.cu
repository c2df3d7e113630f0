// SPDX-License-Identifier: Apache-2.0
#include "ops/cuda/router.h"

#include <algorithm>
#include <climits>

#include "base/math.h"
#include "device/cuda/arguments.h"
#include "device/cuda/check.h"
#include "ops/cuda/router/router_few.cuh"
#include "ops/cuda/router/router_many.cuh"
#include "ops/cuda/router/router_one.cuh"
#include "ops/cuda/router/router_select.cuh"
#include "sm90/launch.cuh"
#include "sm90/ptx.cuh"
#include "sm90/tensor_map.h"

namespace sparrow::ops::cuda {
namespace {

__global__ void __launch_bounds__(256)
    split_router_kernel(const float* router, __nv_bfloat16* parts, int64_t count) {
  for (int64_t i = (blockIdx.x * int64_t{256} + threadIdx.x) * 2; i < count; i += int64_t{gridDim.x} * 512) {
    const float2 f = *reinterpret_cast<const float2*>(router + i);
    uint32_t terms[3];
    split_pair(f.x, f.y, terms);
    for (int t = 0; t < 3; ++t) *reinterpret_cast<uint32_t*>(parts + t * count + i) = terms[t];
  }
}

constexpr int kSelectWarps = 8;

template <int kPerLane>
__global__ void __launch_bounds__(32 * kSelectWarps)
    select_kernel(const __grid_constant__ Selection p, const float* logits) {
  float logit[kPerLane] = {}, bias[kPerLane];
  load_bias(p, bias);
  hopper::wait_for_previous_kernel();
  hopper::let_next_kernel_start();
  const int row = blockIdx.x * kSelectWarps + threadIdx.x / 32, lane = threadIdx.x % 32;
  if (row >= p.rows) return;
#pragma unroll
  for (int i = 0; i < kPerLane; ++i)
    if (32 * i + lane < p.num_experts) logit[i] = logits[int64_t{row} * p.num_experts + 32 * i + lane];
  select_experts(p, row, logit, bias);
}

// ---- launches ----

constexpr int kManyExperts = 128;

void route_many(const RouterShape& shape, const RouterArgs& args, const Selection& selection, float* logits,
                cudaStream_t stream) {
  RouterManyParams p{
      .logits = logits, .rows = args.rows, .num_experts = shape.num_experts, .hidden = shape.hidden};
  using Traits = RouterManyTraits;
  SPARROW_CUDA(hopper::make_tensor_map({.data = args.x,
                                        .rows = args.rows,
                                        .columns = shape.hidden,
                                        .box_rows = Traits::kRows,
                                        .box_columns = Traits::kColumns},
                                       &p.x));
  SPARROW_CUDA(hopper::make_tensor_map({.data = args.parts,
                                        .rows = Traits::kTerms * shape.num_experts,
                                        .columns = shape.hidden,
                                        .box_rows = Traits::kRouterBox,
                                        .box_columns = Traits::kColumns},
                                       &p.parts));
  const dim3 grid(ceil_div(args.rows, Traits::kCluster * Traits::kRows) * Traits::kCluster,
                  ceil_div(shape.num_experts, Traits::kExperts));
  SPARROW_CUDA(
      hopper::launch_dependent(router_many_kernel, {grid, Traits::kThreads, Traits::kSmemBytes}, stream, p));
  SPARROW_CUDA(hopper::launch_dependent(select_kernel<kManyExperts / 32>,
                                        {dim3(ceil_div(args.rows, kSelectWarps)), 32 * kSelectWarps}, stream,
                                        selection, static_cast<const float*>(logits)));
}

// The rows from `first` on of a call.
FewParams few_params(const RouterShape& shape, const RouterArgs& args, int first) {
  return {.x = args.x,
          .router = args.router,
          .logits = static_cast<float*>(args.workspace),
          .selection = {.bias = args.bias,
                        .ids = args.ids + int64_t{first} * shape.top_k,
                        .weights = args.weights + int64_t{first} * shape.top_k,
                        .rows = args.rows,
                        .num_experts = shape.num_experts,
                        .top_k = shape.top_k,
                        .real = args.real,
                        .wanted = args.wanted,
                        .first_row = first},
          .hidden = shape.hidden};
}

template <int kPerLane>
void launch_few(const FewParams& p, cudaStream_t stream) {
  const Selection& s = p.selection;
  using Fewest = FewestTraits<kPerLane>;
  if (s.rows <= Fewest::kRows) {
    const dim3 grid(router_parts(p.hidden), ceil_div(s.num_experts, Fewest::kExperts));
    SPARROW_CUDA(hopper::launch_dependent(fewest_kernel<Fewest>, {grid, Fewest::kThreads}, stream, p));
    return;
  }
  const dim3 grid(router_parts(p.hidden) * FewTraits::kCluster, ceil_div(s.num_experts, FewTraits::kExperts),
                  ceil_div(s.rows, FewTraits::kRows));
  const auto kernel = s.rows <= 32 ? few_kernel<2, kPerLane> : few_kernel<4, kPerLane>;
  SPARROW_CUDA(hopper::launch_dependent(kernel, {grid, FewTraits::kThreads}, stream, p));
}

template <int kVectors>
void launch_norm_route(const NormRouteParams& p, cudaStream_t stream) {
  const int experts = p.selection.num_experts;
  const auto kernel = experts <= kManyExperts
                          ? norm_route_kernel<NormRouteTraits<kVectors, kManyExperts / 32>>
                          : norm_route_kernel<NormRouteTraits<kVectors, kMaxExperts / 32>>;
  SPARROW_CUDA(
      hopper::launch_dependent(kernel, {dim3(experts), NormRouteTraits<kVectors, 1>::kThreads}, stream, p));
}

void check_shape(const Arguments& arguments, const RouterShape& shape) {
  arguments.range("hidden", shape.hidden, kColumnTile, kMaxHidden)
      .multiple("hidden", shape.hidden, kColumnTile)
      .range("num_experts", shape.num_experts, 1, kMaxExperts)
      .range("top_k", shape.top_k, 1, std::min(kMaxTopK, shape.num_experts));
}

}  // namespace

void split_router(const float* router, __nv_bfloat16* parts, int64_t count, cudaStream_t stream) {
  if (count == 0) return;
  Arguments("split_router")
      .pointer("router", router)
      .pointer("parts", parts)
      .range("count", count, 1, INT64_MAX)
      .multiple("count", count, kColumnTile);
  split_router_kernel<<<1024, 256, 0, stream>>>(router, parts, count);
  SPARROW_CUDA(cudaGetLastError());
}

void route(const RouterShape& shape, const RouterArgs& args, cudaStream_t stream) {
  if (args.rows == 0) return;
  const Arguments arguments("route");
  check_shape(arguments, shape);
  arguments.range("rows", args.rows, 1, INT_MAX)
      .pointer("x", args.x)
      .pointer("router", args.router)
      .pointer("bias", args.bias, alignof(float))
      .pointer("ids", args.ids, alignof(int32_t))
      .pointer("weights", args.weights, alignof(float))
      .pointer("workspace", args.workspace);
  auto* const workspace = static_cast<float*>(args.workspace);
  const bool many = !args.batch_invariant && args.rows > kRouterManyRows && shape.num_experts <= kManyExperts;
  if (many) arguments.pointer("parts", args.parts);
  const int step = many ? args.rows : kRouterManyRows;
  for (int first = 0; first < args.rows; first += step) {
    RouterArgs part = args;
    part.rows = std::min(step, args.rows - first);
    part.x += int64_t{first} * shape.hidden;
    const FewParams few = few_params(shape, part, first);
    const Selection& selection = few.selection;
    if (many)
      route_many(shape, part, selection, workspace + router_few_logits(shape, kRouterManyRows), stream);
    else if (shape.num_experts <= kManyExperts)
      launch_few<kManyExperts / 32>(few, stream);
    else
      launch_few<kMaxExperts / 32>(few, stream);
  }
}

void norm_route(const RouterShape& shape, const NormRouterArgs& args, cudaStream_t stream) {
  const Arguments arguments("norm_route");
  check_shape(arguments, shape);
  arguments.pointer("residual", args.residual)
      .pointer("delta", args.delta)
      .pointer("norm_weight", args.norm_weight)
      .pointer("residual_out", args.residual_out)
      .pointer("x", args.x)
      .pointer("router", args.router)
      .pointer("bias", args.bias, alignof(float))
      .pointer("ids", args.ids, alignof(int32_t))
      .pointer("weights", args.weights, alignof(float))
      .pointer("workspace", args.workspace)
      .require("residual_out",
               args.residual_out != args.residual && args.residual_out != args.delta &&
                   args.residual_out != args.x,
               "must be none of the other arrays");
  const NormRouteParams p{.normed = {.residual = args.residual,
                                     .delta = args.delta,
                                     .weight = args.norm_weight,
                                     .residual_out = args.residual_out,
                                     .hidden = shape.hidden,
                                     .eps = args.eps},
                          .x = args.x,
                          .router = args.router,
                          .logits = static_cast<float*>(args.workspace),
                          .selection = {.bias = args.bias,
                                        .ids = args.ids,
                                        .weights = args.weights,
                                        .rows = 1,
                                        .num_experts = shape.num_experts,
                                        .top_k = shape.top_k,
                                        .real = args.real}};
  if (shape.hidden <= NormRouteTraits<1, 1>::kMaxHidden)
    launch_norm_route<1>(p, stream);
  else if (shape.hidden <= NormRouteTraits<3, 1>::kMaxHidden)
    launch_norm_route<3>(p, stream);
  else
    launch_norm_route<4>(p, stream);
}

}  // namespace sparrow::ops::cuda
