// SPDX-License-Identifier: Apache-2.0
// What the launches of this folder ask the device for, and the tensor maps that they bring.
#pragma once

#include <cuda_bf16.h>

#include "device/cuda/check.h"
#include "sm90/tensor_map.h"

namespace sparrow::ops::cuda {

inline int num_sms() {
  int device = 0, count = 0;
  SPARROW_CUDA(cudaGetDevice(&device));
  SPARROW_CUDA(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device));
  return count;
}

// CTAs of a kernel that an SM holds at once.
template <typename Params>
int resident_ctas(void (*kernel)(Params), int threads, int smem_bytes) {
  int ctas = 0;
  SPARROW_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, smem_bytes));
  SPARROW_CUDA(
      cudaOccupancyMaxActiveBlocksPerMultiprocessor(&ctas, kernel, threads, static_cast<size_t>(smem_bytes)));
  return ctas;
}

// Brings boxes of 64 columns, swizzled as wgmma wants them.
inline CUtensorMap tile_map(const void* data, int64_t rows, int columns, int box_rows) {
  CUtensorMap map;
  SPARROW_CUDA(hopper::make_tensor_map(
      hopper::MatrixView{
          .data = data, .rows = rows, .columns = columns, .box_rows = box_rows, .box_columns = 64},
      &map));
  return map;
}

// Brings a block of rows as lines of 64 columns: [line][row][64] in shared memory, one copy for a whole
// stage; swizzled, chunks of 16 bytes lie as for wgmma. `data` is [rows, columns], columns a multiple of 64;
// reads past its end give zeros.
inline CUtensorMap line_map(const __nv_bfloat16* data, int64_t rows, int columns, int box_rows, int box_lines,
                            bool swizzle = false) {
  CUtensorMap map;
  SPARROW_CUDA(hopper::make_tensor_map(
      hopper::TensorView{
          .data = data,
          .rank = 3,
          .extents = {64, static_cast<cuuint64_t>(rows), static_cast<cuuint64_t>(columns / 64)},
          .strides = {static_cast<cuuint64_t>(columns) * 2, 128},
          .box = {64, static_cast<cuuint32_t>(box_rows), static_cast<cuuint32_t>(box_lines)},
          .swizzle = swizzle},
      &map));
  return map;
}

}  // namespace sparrow::ops::cuda
