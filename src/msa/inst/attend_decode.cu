// SPDX-License-Identifier: Apache-2.0
#include "msa/sm90/attend/attend_decode.cuh"

#include <algorithm>

namespace msa::sm90 {
namespace {

// K and V as [half of the channels, rows of all pages, 128 bytes]: one copy brings 64 whole keys.
cudaError_t make_map(const AttendDecodeParams& p, bool fp8, CUtensorMap* map) {
  static const auto encode = [] {
    void* found = nullptr;
    cudaDriverEntryPointQueryResult result = cudaDriverEntryPointSymbolNotFound;
    cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, 12000, cudaEnableDefault, &result);
    return reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(found);
  }();
  if (encode == nullptr) return cudaErrorNotSupported;
  const cuuint64_t rows = static_cast<cuuint64_t>(p.num_pages) * p.kv_heads * 256;
  const cuuint64_t extents[3] = {fp8 ? 128u : 64u, rows, fp8 ? 1u : 2u};
  const cuuint64_t strides[2] = {fp8 ? 128u : 256u, 128};
  const cuuint32_t box[3] = {fp8 ? 128u : 64u, 64, fp8 ? 1u : 2u}, steps[3] = {1, 1, 1};
  const CUresult result = encode(map, fp8 ? CU_TENSOR_MAP_DATA_TYPE_UINT8 : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
                                 3, const_cast<void*>(p.kv_pages), extents, strides, box, steps,
                                 CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                                 CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  return result == CUDA_SUCCESS ? cudaSuccess : cudaErrorInvalidValue;
}

template <KvType kType>
cudaError_t launch_type(const AttendDecodeParams& p, cudaStream_t stream) {
  CUtensorMap map;
  cudaError_t error = make_map(p, kType == KvType::kE4M3, &map);
  if (error != cudaSuccess) return error;
  int device = 0, sms = 0;
  if ((error = cudaGetDevice(&device)) != cudaSuccess) return error;
  if ((error = cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, device)) != cudaSuccess)
    return error;
  const int splits = attend_decode_splits(p.rows, p.kv_heads);
  return launch_attend_decode_kernel<AttendDecodeTraits<kType>>(p, map, splits, sms, stream);
}

}  // namespace

int attend_decode_splits(int rows, int kv_heads) {
  constexpr int kSms = 132;
  constexpr double kItemCost = 1.5;  // start and merge of an item, in blocks
  if (int64_t{rows} * kv_heads > kMaxSplitUnits) return 1;
  int best = 1;
  double best_cost = 0;
  for (int splits = 1; splits <= 16; splits *= 2) {
    const int64_t waves = (int64_t{rows} * kv_heads * splits + kSms - 1) / kSms;
    const double cost = static_cast<double>(waves) * (16.0 / splits + kItemCost);
    if (splits == 1 || cost < best_cost) best = splits, best_cost = cost;
  }
  return best;
}

int64_t attend_decode_workspace_bytes(int max_rows, int kv_heads) {
  int64_t items = 0;  // fewer rows may have more splits
  for (int rows = 1; rows <= std::min(max_rows, kMaxSplitUnits); ++rows) {
    const int splits = attend_decode_splits(rows, kv_heads);
    if (splits > 1) items = std::max(items, int64_t{rows} * kv_heads * splits);
  }
  return kDecodePartialsOffset + items * static_cast<int64_t>(sizeof(DecodePartial));
}

cudaError_t launch_attend_decode(const AttendDecodeParams& params, KvType kv_type, cudaStream_t stream) {
  if (params.rows == 0 || params.kv_heads == 0) return cudaSuccess;
  if (params.group < 1 || params.group > 16 || params.top_k < 1 || params.top_k > 16)
    return cudaErrorInvalidValue;
  if (kv_type == KvType::kE4M3) return launch_type<KvType::kE4M3>(params, stream);
  return launch_type<KvType::kBF16>(params, stream);
}

}  // namespace msa::sm90
