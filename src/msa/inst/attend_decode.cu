// SPDX-License-Identifier: Apache-2.0
#include "msa/sm90/attend/attend_decode.cuh"

namespace msa::sm90 {
namespace {

// bf16: K and V as [half of the channels, rows of all tiles, 128 bytes], a copy brings 16 whole keys or
// values. e4m3: as [tiles, rows, 128 bytes], a copy brings 16 keys and their values.
cudaError_t make_map(const AttendDecodeParams& p, bool fp8, CUtensorMap* map) {
  static const auto encode = [] {
    void* found = nullptr;
    cudaDriverEntryPointQueryResult result = cudaDriverEntryPointSymbolNotFound;
    cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, 12000, cudaEnableDefault, &result);
    return reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(found);
  }();
  if (encode == nullptr) return cudaErrorNotSupported;
  const cuuint64_t tiles = static_cast<cuuint64_t>(p.num_pages) * p.kv_heads * 2;
  const cuuint64_t bf16_extents[3] = {64, tiles * 128, 2}, fp8_extents[3] = {128, 128, tiles};
  const cuuint64_t bf16_strides[2] = {256, 128}, fp8_strides[2] = {128, 128 * 128};
  const cuuint32_t box[3] = {fp8 ? 128u : 64u, 16, 2}, steps[3] = {1, 1, 1};
  const CUresult result =
      encode(map, fp8 ? CU_TENSOR_MAP_DATA_TYPE_UINT8 : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 3,
             const_cast<void*>(p.kv_pages), fp8 ? fp8_extents : bf16_extents,
             fp8 ? fp8_strides : bf16_strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
             CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_NONE, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  return result == CUDA_SUCCESS ? cudaSuccess : cudaErrorInvalidValue;
}

template <KvType kType>
cudaError_t launch_type(const AttendDecodeParams& p, cudaStream_t stream) {
  CUtensorMap map;
  const cudaError_t error = make_map(p, kType == KvType::kE4M3, &map);
  if (error != cudaSuccess) return error;
  const int splits = attend_decode_splits(p.rows, p.kv_heads, p.num_requests);
  return launch_attend_decode_kernel<AttendDecodeTraits<kType>>(p, map, splits, stream);
}

}  // namespace

int attend_decode_splits(int rows, int kv_heads, int num_requests) {
  // Measured on an H200 (132 SMs): more CTAs than these cost more to start than they save. Behind the
  // selection of long extends, which takes whole SMs, single CTAs would pile up on those that are free first.
  constexpr int kManyCtas = 64, kSms = 132, kLongExtend = 33;
  const bool extends = num_requests > 0 && rows / num_requests >= kLongExtend;
  const int64_t units = int64_t{rows} * kv_heads;
  int splits = 16;
  while (splits > 2 && units * splits > kManyCtas) splits /= 2;
  return units * splits > (extends ? 2 * kSms : kSms) ? 1 : splits;
}

int64_t attend_decode_workspace_bytes(int, int) {
  return 0;
}

cudaError_t launch_attend_decode(const AttendDecodeParams& params, KvType kv_type, cudaStream_t stream) {
  if (params.rows == 0 || params.kv_heads == 0) return cudaSuccess;
  if (params.group < 1 || params.group > 16 || params.top_k < 1 || params.top_k > 16)
    return cudaErrorInvalidValue;
  if (kv_type == KvType::kE4M3) return launch_type<KvType::kE4M3>(params, stream);
  return launch_type<KvType::kBF16>(params, stream);
}

}  // namespace msa::sm90
