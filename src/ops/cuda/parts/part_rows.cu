// SPDX-License-Identifier: Apache-2.0
#include "ops/cuda/parts/part_rows.h"

#include <algorithm>
#include <climits>

#include "base/math.h"
#include "device/cuda/arguments.h"
#include "device/cuda/check.h"
#include "ops/cuda/comm/sums.cuh"
#include "ops/cuda/embedding.cuh"
#include "ops/cuda/limits.h"
#include "ops/cuda/parts/part_sums.cuh"
#include "sm90/launch.cuh"
#include "sm90/ptx.cuh"

namespace sparrow::ops::cuda {
namespace {

constexpr int kMaxThreads = kMaxHidden / kVector, kThreads = 256;
constexpr int kSms = 132;  // of an H200

struct MergeParams {
  PartPlace place;
  const float* leaf = nullptr;
  int64_t numbers = 0;
};

__global__ void __launch_bounds__(kThreads) merge_kernel(const __grid_constant__ MergeParams p) {
  hopper::wait_for_previous_kernel();
  hopper::let_next_kernel_start();
  for (int64_t i = (int64_t{blockIdx.x} * kThreads + threadIdx.x) * 4; i < p.numbers;
       i += int64_t{gridDim.x} * kThreads * 4) {
    const float4 leaf = *reinterpret_cast<const float4*>(p.leaf + i);
    float sum[4] = {leaf.x, leaf.y, leaf.z, leaf.w};
    add_to_tree(p.place, i, sum);
  }
}

__global__ void __launch_bounds__(kMaxThreads) embed_part_kernel(const __grid_constant__ EmbedPartArgs p) {
  hopper::wait_for_previous_kernel();
  hopper::let_next_kernel_start();
  const int v = threadIdx.x;
  if (v >= p.hidden / kVector) return;
  for (int row = blockIdx.x; row < p.rows; row += gridDim.x) {
    Vector x{};
    if (const __nv_bfloat16* const from = embedding_of(p, row)) x = load_vector(from + v * kVector);
    float* const to = p.out + int64_t{row} * p.hidden + v * kVector;
#pragma unroll
    for (int e = 0; e < kVector / 2; ++e) reinterpret_cast<float2*>(to)[e] = __bfloat1622float2(x.pair[e]);
  }
}

__global__ void __launch_bounds__(kMaxThreads) sum_norm_kernel(const __grid_constant__ SumNormArgs p) {
  __shared__ double in_cta[32];
  hopper::wait_for_previous_kernel();
  hopper::let_next_kernel_start();
  const int i = blockIdx.x, v = threadIdx.x, row = p.row_list == nullptr ? i : p.row_list[i];
  const bool there = v < p.hidden / kVector;
  const int64_t at = int64_t{row} * p.hidden + v * kVector;
  Vector weight{}, x{};
  double squares = 0;
  if (there) weight = load_vector(p.weight + v * kVector);
  if (there && row >= 0) {
    PartialVector<float> sums;
    sums.load(p.sums + at);
    x = add_residual(floats_of(sums), load_vector(p.residual + at));
    if (p.residual_out != nullptr) store_vector(p.residual_out + at, x);
    add_squares(x, squares);
  }
  const float scale = norm_scale(cta_sum(squares, in_cta), p.hidden, p.eps);
  scale_vector(x, scale, weight);
  if (there) store_vector(p.out + int64_t{i} * p.hidden + v * kVector, x);
}

Arguments check_rows(const char* launcher, int rows, int hidden) {
  return Arguments(launcher)
      .range("rows", rows, 1, INT_MAX)
      .range("hidden", hidden, kColumnTile, kMaxHidden)
      .multiple("hidden", hidden, kColumnTile);
}

int threads_of(int hidden) {
  return round_up(hidden / kVector, 32);
}

}  // namespace

void merge_part(const PartTree& tree, int part, int64_t numbers, cudaStream_t stream) {
  const PartStep step = part_step(part);
  if (step.merges == 0 || numbers == 0) return;
  const Arguments arguments("merge_part");
  arguments.require("tree.parts", is_part_count(tree.parts), "must be 1, 2, 4 or 8")
      .range("part", part, 0, tree.parts - 1)
      .multiple("numbers", numbers, 4);
  for (int s = 0; s <= step.slot; ++s) arguments.pointer("tree.slots", tree.slots[s]);
  const int64_t ctas = std::min<int64_t>(ceil_div(numbers, int64_t{4} * kThreads), 8 * kSms);
  SPARROW_CUDA(hopper::launch_dependent(
      merge_kernel, {dim3(static_cast<unsigned>(ctas)), kThreads}, stream,
      MergeParams{.place = place_of(tree, part), .leaf = tree.slots[step.slot], .numbers = numbers}));
}

void embed_part(const EmbedPartArgs& args, cudaStream_t stream) {
  if (args.rows == 0) return;
  check_rows("embed_part", args.rows, args.hidden)
      .pointer("ids", args.ids, alignof(int32_t))
      .pointer("table", args.table)
      .pointer("out", args.out)
      .range("first_vocab_row", args.first_vocab_row, 0, INT_MAX)
      .range("vocab_rows", args.vocab_rows, 1, INT_MAX);
  SPARROW_CUDA(hopper::launch_dependent(
      embed_part_kernel, {dim3(std::min(args.rows, 32 * kSms)), threads_of(args.hidden)}, stream, args));
}

void sum_norm(const SumNormArgs& args, cudaStream_t stream) {
  if (args.rows == 0) return;
  const Arguments arguments = check_rows("sum_norm", args.rows, args.hidden);
  arguments.pointer("sums", args.sums)
      .pointer("residual", args.residual)
      .pointer("weight", args.weight)
      .pointer("out", args.out);
  if (args.row_list != nullptr) arguments.pointer("row_list", args.row_list, alignof(int32_t));
  SPARROW_CUDA(
      hopper::launch_dependent(sum_norm_kernel, {dim3(args.rows), threads_of(args.hidden)}, stream, args));
}

}  // namespace sparrow::ops::cuda
