// SPDX-License-Identifier: Apache-2.0
#include "msa/sm90/attend/attend_decode.cuh"
#include "sm90/tensor_map.h"

namespace msa::sm90 {
namespace {

// bf16: K and V as [half of the channels, rows of all tiles, 128 bytes], a copy brings 16 whole keys or
// values. e4m3: as [tiles, rows, 128 bytes], a copy brings 16 keys and their values.
cudaError_t make_map(const AttendDecodeParams& p, bool fp8, CUtensorMap* map) {
  const cuuint64_t tiles = static_cast<cuuint64_t>(p.num_pages) * p.kv_heads * 2;
  if (fp8)
    return hopper::make_tensor_map(
        hopper::TensorView{
            p.kv_pages, hopper::Element::kE4M3, 3, {128, 128, tiles}, {128, 128 * 128}, {128, 16, 2}},
        map);
  return hopper::make_tensor_map(
      hopper::TensorView{
          p.kv_pages, hopper::Element::kBF16, 3, {64, tiles * 128, 2}, {256, 128}, {64, 16, 2}},
      map);
}

template <KvType kType>
cudaError_t launch_type(const AttendDecodeParams& p, cudaStream_t stream) {
  CUtensorMap map;
  const cudaError_t error = make_map(p, kType == KvType::kE4M3, &map);
  if (error != cudaSuccess) return error;
  const int splits = p.splits > 0 ? p.splits : attend_decode_splits(p.rows, p.kv_heads, p.num_requests);
  if (p.select.scores == nullptr)
    return launch_attend_decode_kernel<AttendDecodeTraits<kType, 0>>(p, map, splits, stream);
  if (p.max_blocks > attend_select_blocks() || p.cu_seqlens_q != nullptr) return cudaErrorInvalidValue;
  return p.select.units_per_block == 4
             ? launch_attend_decode_kernel<AttendDecodeTraits<kType, 4>>(p, map, splits, stream)
             : launch_attend_decode_kernel<AttendDecodeTraits<kType, 2>>(p, map, splits, stream);
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

int attend_select_blocks() {
  return AttendDecodeTraits<KvType::kBF16, 4>::kSelectBlocks;
}

cudaError_t launch_attend_decode(const AttendDecodeParams& params, KvType kv_type, cudaStream_t stream) {
  if (params.rows == 0 || params.kv_heads == 0) return cudaSuccess;
  if (params.group < 1 || params.group > 16 || params.top_k < 1 || params.top_k > 16)
    return cudaErrorInvalidValue;
  if (kv_type == KvType::kE4M3) return launch_type<KvType::kE4M3>(params, stream);
  return launch_type<KvType::kBF16>(params, stream);
}

}  // namespace msa::sm90
