// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "ops/cuda/moe/launch.cuh"
#include "ops/cuda/moe/many/tile_e4m3.cuh"
#include "sm90/launch.cuh"

namespace sparrow::ops::cuda {

void launch_e4m3_product(const E4m3TileParams& p, int max_shares, cudaStream_t stream) {
  // What the compiler takes without giving up on overlapping products.
  using T = E4m3Traits<32, 64, 96, 112, 128, 144>;
  static_assert(T::kTokens == kE4m3ShareTokens);
  const int max_items = max_shares * ((p.out_rows + T::kRows - 1) / T::kRows);
  SPARROW_CUDA(hopper::launch_dependent(
      e4m3_tile_kernel<T>, {dim3(std::min(num_sms(), max_items)), T::kThreads, T::kSmemBytes}, stream, p));
}

}  // namespace sparrow::ops::cuda
