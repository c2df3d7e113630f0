// SPDX-License-Identifier: Apache-2.0
#include "ops/cuda/comm/row_sums.h"

#include <algorithm>
#include <climits>

#include "base/math.h"
#include "device/cuda/arguments.h"
#include "device/cuda/check.h"
#include "ops/cuda/comm/sums.cuh"
#include "ops/cuda/limits.h"
#include "sm90/launch.cuh"
#include "sm90/ptx.cuh"

namespace sparrow::ops::cuda {
namespace {

constexpr int kMaxThreads = kMaxHidden / kVector, kThreads = 256;
constexpr int kSms = 132;  // of an H200

// Of the numbers from `at` on in [rows, hidden].
template <typename T, int kSources>
__device__ __forceinline__ Floats sum_at(const PartRowsOf& p, int64_t at) {
  return tree_sum<0, kSources>([&](int s) {
    const T* const from = static_cast<const T*>(p.parts) + int64_t{s} * p.rows * p.hidden + at;
    PartialVector<T> part;
#pragma unroll
    for (int q = 0; q < PartialVector<T>::kQuads; ++q) part.quad[q] = reinterpret_cast<const uint4*>(from)[q];
    return floats_of(part);
  });
}

template <typename T, int kSources>
__global__ void __launch_bounds__(kThreads) sum_kernel(const __grid_constant__ SumRowsArgs p) {
  hopper::wait_for_previous_kernel();
  hopper::let_next_kernel_start();
  const int64_t vectors = int64_t{p.from.rows} * p.from.hidden / kVector;
  for (int64_t v = int64_t{blockIdx.x} * kThreads + threadIdx.x; v < vectors;
       v += int64_t{gridDim.x} * kThreads) {
    const Floats sum = sum_at<T, kSources>(p.from, v * kVector);
    auto* const to = reinterpret_cast<float4*>(p.sums + v * kVector);
    to[0] = {sum.x[0], sum.x[1], sum.x[2], sum.x[3]};
    to[1] = {sum.x[4], sum.x[5], sum.x[6], sum.x[7]};
  }
}

// A CTA for each row.
template <typename T, int kSources>
__global__ void __launch_bounds__(kMaxThreads) norm_kernel(const __grid_constant__ SumRowsNormArgs p) {
  __shared__ double in_cta[32];
  const int v = threadIdx.x, hidden = p.from.hidden;
  const bool there = v < hidden / kVector;
  const int64_t at = int64_t{blockIdx.x} * hidden + v * kVector;
  Vector weight{}, residual{}, x{};
  if (there) weight = load_vector(p.weight + v * kVector);
  hopper::wait_for_previous_kernel();
  hopper::let_next_kernel_start();
  double squares = 0;
  if (there) {
    if (p.residual != nullptr) residual = load_vector(p.residual + at);
    x = add_residual(sum_at<T, kSources>(p.from, at), residual);
    if (p.residual_out != nullptr) store_vector(p.residual_out + at, x);
    add_squares(x, squares);
  }
  const float scale = norm_scale(cta_sum(squares, in_cta), hidden, p.eps);
  scale_vector(x, scale, weight);
  if (there) store_vector(p.out + at, x);
}

// Calls `launch.operator()<T, kSources>()`.
template <typename Launch>
void for_parts(const PartRowsOf& from, const Launch& launch) {
  const auto for_sources = [&]<typename T>() {
    switch (from.sources) {
      case 1:
        return launch.template operator()<T, 1>();
      case 2:
        return launch.template operator()<T, 2>();
      case 4:
        return launch.template operator()<T, 4>();
      default:
        return launch.template operator()<T, 8>();
    }
  };
  from.is_f32 ? for_sources.template operator()<float>() : for_sources.template operator()<__nv_bfloat16>();
}

Arguments check(const char* launcher, const PartRowsOf& from) {
  const int sources = from.sources;
  return Arguments(launcher)
      .range("rows", from.rows, 1, INT_MAX)
      .range("hidden", from.hidden, kColumnTile, kMaxHidden)
      .multiple("hidden", from.hidden, kColumnTile)
      .require("sources", sources == 1 || sources == 2 || sources == 4 || sources == 8,
               "must be 1, 2, 4 or 8")
      .pointer("parts", from.parts);
}

}  // namespace

void sum_rows(const SumRowsArgs& args, cudaStream_t stream) {
  if (args.from.rows == 0) return;
  check("sum_rows", args.from).pointer("sums", args.sums);
  const int64_t vectors = int64_t{args.from.rows} * args.from.hidden / kVector;
  const auto ctas = static_cast<unsigned>(std::min<int64_t>(ceil_div(vectors, kThreads), 8 * kSms));
  for_parts(args.from, [&]<typename T, int kSources>() {
    SPARROW_CUDA(hopper::launch_dependent(sum_kernel<T, kSources>, {dim3(ctas), kThreads}, stream, args));
  });
}

void sum_rows_norm(const SumRowsNormArgs& args, cudaStream_t stream) {
  if (args.from.rows == 0) return;
  check("sum_rows_norm", args.from).pointer("weight", args.weight).pointer("out", args.out);
  const int threads = round_up(args.from.hidden / kVector, 32);
  for_parts(args.from, [&]<typename T, int kSources>() {
    SPARROW_CUDA(
        hopper::launch_dependent(norm_kernel<T, kSources>, {dim3(args.from.rows), threads}, stream, args));
  });
}

}  // namespace sparrow::ops::cuda
