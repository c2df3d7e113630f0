// SPDX-License-Identifier: Apache-2.0
// The sum of a row's experts of one part of their channels.
#include "device/cuda/check.h"
#include "ops/cuda/moe/many/combine.cuh"
#include "sm90/launch.cuh"

namespace sparrow::ops::cuda {
namespace {

// The next part's product may start when this one has waited: it reads the routing at once.
__global__ void __launch_bounds__(Combine::kThreads)
    combine_part_kernel(const __grid_constant__ CombineParams p, const __grid_constant__ PartPlace place) {
  __shared__ int32_t places[Combine::kMaxTopK];
  __shared__ float factors[Combine::kMaxTopK];
  const int64_t row = blockIdx.x;
  load_experts(p, row, places, factors);
  hopper::wait_for_previous_kernel();
  hopper::let_next_kernel_start();
  __syncthreads();
  for (int c = threadIdx.x * 8; c < p.hidden; c += Combine::kThreads * 8) {
    float sum[8] = {};
    sum_experts(p, row, c, places, factors, sum);
    add_to_tree(place, row * p.hidden + c, sum);
  }
}

}  // namespace

void launch_combine_part(const CombineParams& p, const PartPlace& place, cudaStream_t stream) {
  SPARROW_CUDA(
      hopper::launch_dependent(combine_part_kernel, {dim3(p.rows), Combine::kThreads}, stream, p, place));
}

}  // namespace sparrow::ops::cuda
