// SPDX-License-Identifier: Apache-2.0
#include "sm90/tensor_map.h"

namespace hopper {
namespace {

using Encode = decltype(&cuTensorMapEncodeTiled);

// Through the runtime, so that programs link without the driver's library and start on machines that have
// none.
Encode find_encode() {
  void* entry = nullptr;
  cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
  const cudaError_t error =
      cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &entry, 12000, cudaEnableDefault, &found);
  return error == cudaSuccess && found == cudaDriverEntryPointSuccess ? reinterpret_cast<Encode>(entry)
                                                                      : nullptr;
}

CUtensorMapDataType data_type(Element element) {
  switch (element) {
    case Element::kBF16:
      return CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
    case Element::kU64:
      return CU_TENSOR_MAP_DATA_TYPE_UINT64;
    default:
      return CU_TENSOR_MAP_DATA_TYPE_UINT8;
  }
}

}  // namespace

cudaError_t make_tensor_map(const TensorView& view, CUtensorMap* map) {
  static const Encode encode = find_encode();
  if (encode == nullptr) return cudaErrorNotSupported;
  const cuuint32_t steps[5] = {1, 1, 1, 1, 1};
  // Promotion makes the L2 fetch more than was asked for; a stream of whole boxes lost 10% of its bandwidth
  // to it (H200).
  const CUresult result = encode(map, data_type(view.element), view.rank, const_cast<void*>(view.data),
                                 view.extents, view.strides, view.box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
                                 view.swizzle ? CU_TENSOR_MAP_SWIZZLE_128B : CU_TENSOR_MAP_SWIZZLE_NONE,
                                 CU_TENSOR_MAP_L2_PROMOTION_NONE, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  return result == CUDA_SUCCESS ? cudaSuccess : cudaErrorInvalidValue;
}

cudaError_t make_tensor_map(const MatrixView& view, CUtensorMap* map) {
  const auto row_bytes = static_cast<cuuint64_t>(
      view.row_bytes != 0 ? view.row_bytes : int64_t{view.columns} * element_bytes(view.element));
  return make_tensor_map(
      TensorView{.data = view.data,
                 .element = view.element,
                 .rank = 2,
                 .extents = {static_cast<cuuint64_t>(view.columns), static_cast<cuuint64_t>(view.rows)},
                 .strides = {row_bytes},
                 .box = {static_cast<cuuint32_t>(view.box_columns), static_cast<cuuint32_t>(view.box_rows)},
                 .swizzle = view.swizzle},
      map);
}

}  // namespace hopper
