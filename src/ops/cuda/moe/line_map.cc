// SPDX-License-Identifier: Apache-2.0
#include "ops/cuda/moe/line_map.h"

#include "device/cuda/check.h"

namespace sparrow::ops::cuda {
namespace {

using Encode = decltype(&cuTensorMapEncodeTiled);

// Through the runtime, so that programs link without the driver's library and start on machines that have
// none.
Encode find_encode() {
  void* entry = nullptr;
  cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
  SPARROW_CUDA(
      cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &entry, 12000, cudaEnableDefault, &found));
  SPARROW_CUDA(found == cudaDriverEntryPointSuccess ? cudaSuccess : cudaErrorNotSupported);
  return reinterpret_cast<Encode>(entry);
}

}  // namespace

CUtensorMap line_map(const __nv_bfloat16* data, int64_t rows, int columns, int box_rows, int box_lines) {
  static const Encode encode = find_encode();
  const cuuint64_t extents[3] = {64, static_cast<cuuint64_t>(rows), static_cast<cuuint64_t>(columns / 64)};
  const cuuint64_t strides[2] = {static_cast<cuuint64_t>(columns) * 2, 128};
  const cuuint32_t box[3] = {64, static_cast<cuuint32_t>(box_rows), static_cast<cuuint32_t>(box_lines)};
  const cuuint32_t steps[3] = {1, 1, 1};
  CUtensorMap map;
  const CUresult result =
      encode(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 3, const_cast<__nv_bfloat16*>(data), extents, strides,
             box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_NONE,
             CU_TENSOR_MAP_L2_PROMOTION_NONE, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  SPARROW_CUDA(result == CUDA_SUCCESS ? cudaSuccess : cudaErrorInvalidValue);
  return map;
}

}  // namespace sparrow::ops::cuda
