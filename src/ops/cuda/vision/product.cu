// SPDX-License-Identifier: Apache-2.0
#include "ops/cuda/vision/product.cuh"

#include <algorithm>
#include <climits>

#include "base/math.h"
#include "device/cuda/arguments.h"
#include "device/cuda/check.h"
#include "sm90/launch.cuh"
#include "sm90/tensor_map.h"

namespace sparrow::ops::cuda {
namespace {

constexpr int kSms = 132;  // of an H200

template <int kN, TowerEnd kEnd>
void launch(const TowerProductArgs& args, cudaStream_t stream) {
  using T = ProductTraits<kN, kEnd>;
  ProductMaps maps;
  const auto map = [&](const void* data, int rows, int box_rows, CUtensorMap* to) {
    SPARROW_CUDA(hopper::make_tensor_map(
        hopper::MatrixView{
            .data = data, .rows = rows, .columns = args.k, .box_rows = box_rows, .box_columns = T::kDepth},
        to));
  };
  map(args.x, args.rows, T::kM, &maps.x);
  map(args.w, args.n, T::kN, &maps.w);
  const int tiles = ceil_div(args.rows, T::kM) * ceil_div(args.n, T::kN);
  SPARROW_CUDA(hopper::launch_dependent(
      product_kernel<T>, {dim3(std::min(tiles, kSms)), T::kThreads, T::kSmemBytes}, stream, args, maps));
}

// Columns that all tiles together have on the busiest SM: wide tiles move fewer bytes, narrow ones leave
// fewer SMs without work at the end. The width changes no bit.
template <TowerEnd kEnd>
void launch_width(const TowerProductArgs& args, cudaStream_t stream) {
  const auto rounds = [&](int width) {
    return ceil_div(ceil_div(args.rows, 128) * ceil_div(args.n, width), kSms) * width;
  };
  if (rounds(256) < rounds(192)) return launch<256, kEnd>(args, stream);
  launch<192, kEnd>(args, stream);
}

}  // namespace

void tower_product(const TowerProductArgs& args, cudaStream_t stream) {
  if (args.rows == 0) return;
  const Arguments arguments("tower_product");
  arguments.range("rows", args.rows, 1, INT_MAX)
      .range("n", args.n, 8, INT_MAX)
      .range("k", args.k, 8, INT_MAX)
      .multiple("n", args.n, 8)
      .multiple("k", args.k, 8)
      .pointer("x", args.x)
      .pointer("w", args.w)
      .pointer("bias", args.bias)
      .pointer("out", args.out);
  switch (args.end) {
    case TowerEnd::kBias:
      return launch_width<TowerEnd::kBias>(args, stream);
    case TowerEnd::kGelu:
      return launch_width<TowerEnd::kGelu>(args, stream);
    case TowerEnd::kResidual:
      arguments.pointer("residual", args.residual);
      return launch_width<TowerEnd::kResidual>(args, stream);
    case TowerEnd::kHeads:
      arguments.pointer("rotary", args.rotary, 8)
          .multiple("rows", args.rows, 4)
          .multiple("n", args.n, 3 * kTowerHeadDim);
      return launch_width<TowerEnd::kHeads>(args, stream);
  }
}

}  // namespace sparrow::ops::cuda
