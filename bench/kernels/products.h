// SPDX-License-Identifier: Apache-2.0
// Gemm for files that nvcc compiles, which cannot read the headers of Result.
#pragma once

#include <memory>
#include <span>

#include "ops/cuda/device_matrix.h"

namespace sparrow::ops::cuda {
class Gemm;
}

namespace bench {

class Products {
 public:
  // Of kProductWorkspaceBytes, and of the largest matrix as bf16.
  Products(void* workspace, __nv_bfloat16* expanded);
  ~Products();

  void tune(std::span<const sparrow::ops::cuda::DeviceMatrix> weights, int rows, const __nv_bfloat16* x,
            __nv_bfloat16* out, cudaStream_t stream);
  void run(const sparrow::ops::cuda::DeviceMatrix& w, int rows, const __nv_bfloat16* x, __nv_bfloat16* out,
           cudaStream_t stream);

 private:
  std::unique_ptr<sparrow::ops::cuda::Gemm> gemm_;
};

}  // namespace bench
