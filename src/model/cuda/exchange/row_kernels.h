// SPDX-License-Identifier: Apache-2.0
// CudaRowKernels: what NcclRows has a GPU do with rows that came.
#pragma once

#include <cuda_runtime_api.h>

#include "model/exchange/nccl_rows.h"

namespace sparrow {

class CudaRowKernels final : public RowKernels {
 public:
  CudaRowKernels(int hidden, float eps, cudaStream_t stream) : hidden_(hidden), eps_(eps), stream_(stream) {}

  void sum(const PartRows& parts, float* sums) override;
  void norm(const PartRows& parts, const Norm& norm) override;
  void pick(const void* rows, int num_rows, const int32_t* list, int count, void* out) override;
  void copy(void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width, int rows) override;

 private:
  const int hidden_;
  const float eps_;
  const cudaStream_t stream_;
};

}  // namespace sparrow
