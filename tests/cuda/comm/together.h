// SPDX-License-Identifier: Apache-2.0
// Ranks that exchange at the same time on one GPU: all in one launch, each on CTAs of its own. For tests and
// measurements.
#pragma once

#include <cuda_runtime_api.h>

#include "ops/cuda/comm/exchange.h"

namespace sparrow::test {

// `ranks`: their arguments, on the device; `first`: those of the first, on the host. All CTAs must fit onto
// the GPU.
void exchange_together(const ops::cuda::ExchangeArgs* ranks, const ops::cuda::ExchangeArgs& first,
                       cudaStream_t stream);

// partial = out / 2 or - out / 4, by rank: each exchange builds on the one before. bf16.
void make_next_partials(const ops::cuda::ExchangeArgs* ranks, const ops::cuda::ExchangeArgs& first,
                        cudaStream_t stream);

}  // namespace sparrow::test
