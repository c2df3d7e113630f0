// SPDX-License-Identifier: Apache-2.0
#include "cuda/comm/together.h"

#include <algorithm>

#include "base/math.h"
#include "device/cuda/check.h"
#include "ops/cuda/comm/exchange_few.cuh"
#include "ops/cuda/comm/exchange_many.cuh"
#include "sm90/launch.cuh"

namespace sparrow::test {
namespace {

using namespace ops::cuda;

template <typename T, int kSize>
__global__ void __launch_bounds__(192, 1) all_few(const ExchangeArgs* ranks) {
  exchange_few<T, kSize>(ranks[blockIdx.y], hopper::cluster_cta(), hopper::cluster_ctas());
}
template <typename T, int kSize>
__global__ void __launch_bounds__(1024) all_many(const ExchangeArgs* ranks) {
  exchange_many<T, kSize>(ranks[blockIdx.y]);
}

__global__ void next_partials(const ExchangeArgs* ranks) {
  const ExchangeArgs& p = ranks[blockIdx.x];
  auto* const partial = static_cast<__nv_bfloat16*>(const_cast<void*>(p.partial));
  for (int i = threadIdx.x; i < p.rows * p.hidden; i += blockDim.x)
    partial[i] = __float2bfloat16(__bfloat162float(p.out[i]) * (blockIdx.x % 2 ? 0.5f : -0.25f));
}

template <int kSize>
void launch(const ExchangeArgs* ranks, const ExchangeArgs& first, cudaStream_t stream) {
  const int vectors = first.hidden / kVector, cluster = vectors >= 768 ? 8 : 1;
  if (first.many) {
    const unsigned ctas = std::min(ceil_div(first.rows, kSize), 128 / kSize);
    const hopper::Launch shape{.grid = dim3(ctas, kSize), .threads = round_up(vectors, 32)};
    SPARROW_CUDA(hopper::launch_dependent(all_many<__nv_bfloat16, kSize>, shape, stream, ranks));
  } else {
    const hopper::Launch shape{.grid = dim3(first.rows * cluster, kSize),
                               .threads = round_up(ceil_div(vectors, cluster), 32),
                               .cluster = cluster};
    SPARROW_CUDA(hopper::launch_dependent(all_few<__nv_bfloat16, kSize>, shape, stream, ranks));
  }
}

}  // namespace

void exchange_together(const ExchangeArgs* ranks, const ExchangeArgs& first, cudaStream_t stream) {
  switch (first.peers.size) {
    case 2:
      return launch<2>(ranks, first, stream);
    case 4:
      return launch<4>(ranks, first, stream);
    default:
      return launch<8>(ranks, first, stream);
  }
}

void make_next_partials(const ExchangeArgs* ranks, const ExchangeArgs& first, cudaStream_t stream) {
  next_partials<<<first.peers.size, 512, 0, stream>>>(ranks);
}

}  // namespace sparrow::test
