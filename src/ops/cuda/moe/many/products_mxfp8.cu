// SPDX-License-Identifier: Apache-2.0
#include "ops/cuda/moe/many/products.cuh"

namespace sparrow::ops::cuda {

template void launch_product<MatrixFormat::kMxfp8, true>(const TileParams&, Tokens, int, cudaStream_t);
template void launch_product<MatrixFormat::kMxfp8, false>(const TileParams&, Tokens, int, cudaStream_t);

}  // namespace sparrow::ops::cuda
