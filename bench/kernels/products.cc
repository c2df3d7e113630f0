// SPDX-License-Identifier: Apache-2.0
#include "products.h"

#include "ops/cuda/gemm.h"

namespace bench {

using sparrow::ops::cuda::DeviceMatrix;
using sparrow::ops::cuda::Gemm;

Products::Products(void* workspace, __nv_bfloat16* expanded) : gemm_(Gemm::create().value()) {
  gemm_->set_workspace(workspace, expanded);
}
Products::~Products() = default;

void Products::tune(std::span<const DeviceMatrix> weights, int rows, const __nv_bfloat16* x,
                    __nv_bfloat16* out, cudaStream_t stream) {
  gemm_->tune(weights, rows, x, out, stream);
}

void Products::run(const DeviceMatrix& w, int rows, const __nv_bfloat16* x, __nv_bfloat16* out,
                   cudaStream_t stream) {
  gemm_->run(w, rows, x, out, stream);
}

}  // namespace bench
