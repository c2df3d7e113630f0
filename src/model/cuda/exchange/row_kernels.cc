// SPDX-License-Identifier: Apache-2.0
#include "model/cuda/exchange/row_kernels.h"

#include "device/cuda/check.h"
#include "ops/cuda/comm/row_sums.h"
#include "ops/cuda/rows.h"

namespace sparrow {
namespace {

using Bf16 = __nv_bfloat16;

ops::cuda::PartRowsOf part_rows(const PartRows& parts, int hidden) {
  return {.parts = parts.parts,
          .is_f32 = parts.is_f32,
          .sources = parts.sources,
          .rows = parts.rows,
          .hidden = hidden};
}

}  // namespace

void CudaRowKernels::sum(const PartRows& parts, float* sums) {
  ops::cuda::sum_rows({.from = part_rows(parts, hidden_), .sums = sums}, stream_);
}

void CudaRowKernels::norm(const PartRows& parts, const Norm& norm) {
  ops::cuda::sum_rows_norm({.from = part_rows(parts, hidden_),
                            .residual = static_cast<const Bf16*>(norm.residual),
                            .residual_out = static_cast<Bf16*>(norm.residual_out),
                            .weight = static_cast<const Bf16*>(norm.weight),
                            .out = static_cast<Bf16*>(norm.out),
                            .eps = eps_},
                           stream_);
}

// Rows by their numbers are what an embedding is.
void CudaRowKernels::pick(const void* rows, int num_rows, const int32_t* list, int count, void* out) {
  ops::cuda::embed({.ids = list,
                    .table = static_cast<const Bf16*>(rows),
                    .out = static_cast<Bf16*>(out),
                    .rows = count,
                    .hidden = hidden_,
                    .first_vocab_row = 0,
                    .vocab_rows = num_rows},
                   stream_);
}

void CudaRowKernels::copy(void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width,
                          int rows) {
  if (rows == 0) return;
  SPARROW_CUDA(cudaMemcpy2DAsync(to, to_pitch, from, from_pitch, width, static_cast<size_t>(rows),
                                 cudaMemcpyDeviceToDevice, stream_));
}

}  // namespace sparrow
