// SPDX-License-Identifier: Apache-2.0
#include "msa/sm90/attend/attend_prefill.cuh"
#include "msa/sm90/attend/attend_union.cuh"
#include "msa/sm90/attend/combine.cuh"
#include "sm90/launch.cuh"
#include "sm90/tensor_map.h"

namespace msa::sm90 {
namespace {

// Longer items load K and V less often, shorter ones let the CTAs finish together.
int item_tiles_for(int window) {
  return window == 512 ? 8 : window == 1024 ? 32 : 16;
}

cudaError_t make_maps(const AttendPrefillParams& p, PrefillMaps* maps) {
  const cuuint32_t rows = p.group < 8 ? p.group : 8;
  const cuuint64_t groups = static_cast<cuuint64_t>(p.total_queries) * p.kv_heads * p.group / rows;
  hopper::TensorView q = {p.q,
                          hopper::Element::kBF16,
                          4,
                          {64, rows, 2, groups},
                          {256, 128, rows * 256},
                          {64, rows, p.group < 8 ? 1u : 2u, p.group / rows}};
  cudaError_t error = hopper::make_tensor_map(q, &maps->q);
  if (error != cudaSuccess) return error;
  q.data = p.out;
  error = hopper::make_tensor_map(q, &maps->out);
  if (error != cudaSuccess) return error;
  const auto kv_rows = static_cast<cuuint64_t>(p.num_pages) * p.kv_heads * 256;
  if (p.kv_type == hopper::Element::kE4M3)
    return hopper::make_tensor_map(
        hopper::TensorView{p.kv_pages, hopper::Element::kE4M3, 2, {128, kv_rows}, {128}, {128, 128}, false},
        &maps->kv);
  return hopper::make_tensor_map(
      hopper::TensorView{p.kv_pages, hopper::Element::kBF16, 3, {64, kv_rows, 2}, {256, 128}, {64, 128, 2}},
      &maps->kv);
}

template <int kGroup, hopper::Element kKvType>
cudaError_t launch_group(const AttendPrefillParams& p, const AttendPrefillWorkspace& ws,
                         cudaStream_t stream) {
  using Traits = AttendPrefillTraits<kGroup, kKvType>;
  using Union = AttendUnionTraits<kGroup, kKvType>;
  using Combine = CombineTraits<kGroup>;
  static_assert(Union::kTileQueries == Traits::kTileQueries && Union::kCtaQueries * kGroup == kUnionRows);
  PrefillMaps maps;
  cudaError_t error = make_maps(p, &maps);
  if (error != cudaSuccess) return error;
  int device = 0, sms = 0;
  if ((error = cudaGetDevice(&device)) != cudaSuccess) return error;
  if ((error = cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, device)) != cudaSuccess)
    return error;

  const int units = ws.num_tiles * p.kv_heads;
  const int plan_bytes = PlanTraits::kWarps * 4 * plan_warp_words(p.max_blocks, ws.tile_queries * p.top_k);
  const int plan_ctas = (units + PlanTraits::kWarps - 1) / PlanTraits::kWarps;
  constexpr int kTileQueries = Traits::kTileQueries;
  error = hopper::launch_dependent(plan_tiles_kernel<PlanTraits>,
                                   {dim3(plan_ctas), PlanTraits::kThreads, plan_bytes}, stream, p, ws,
                                   kTileQueries);
  if (error != cudaSuccess) return error;
  const int invert_bytes = p.max_blocks * static_cast<int>(sizeof(int32_t));
  const int item_queries = item_tiles_for(ws.window) * kTileQueries;
  error =
      hopper::launch_dependent(invert_kernel<InvertTraits>,
                               {dim3(1 + ws.num_windows, p.kv_heads), InvertTraits::kThreads, invert_bytes},
                               stream, p, ws, kTileQueries, item_queries);
  if (error != cudaSuccess) return error;
  constexpr int kUnionBytes = static_cast<int>(sizeof(AttendUnionShared<Union>));
  error = hopper::launch_dependent(attend_union_kernel<Union>, {dim3(sms), Union::kThreads, kUnionBytes},
                                   stream, p, ws, maps);
  if (error != cudaSuccess) return error;
  constexpr int kBytes = static_cast<int>(sizeof(AttendPrefillShared<Traits>));
  error = hopper::launch_dependent(attend_prefill_kernel<Traits>, {dim3(sms), Traits::kThreads, kBytes},
                                   stream, p, ws, maps);
  if (error != cudaSuccess) return error;
  return hopper::launch_dependent(combine_kernel<Combine>,
                                  {dim3(units * Combine::kCtasPerTile), Combine::kThreads}, stream, p, ws);
}

template <hopper::Element kKvType>
cudaError_t launch_type(const AttendPrefillParams& p, const AttendPrefillWorkspace& ws, cudaStream_t stream) {
  switch (p.group) {
    case 4:
      return launch_group<4, kKvType>(p, ws, stream);
    case 8:
      return launch_group<8, kKvType>(p, ws, stream);
    default:
      return launch_group<16, kKvType>(p, ws, stream);
  }
}

}  // namespace

cudaError_t launch_attend_prefill(const AttendPrefillParams& p, cudaStream_t stream) {
  if (p.total_queries == 0 || p.kv_heads == 0) return cudaSuccess;
  if (p.top_k < 1 || p.top_k > 16 || p.max_blocks > 56 * 1024) return cudaErrorInvalidValue;
  if (p.total_queries >= 1 << 24) return cudaErrorInvalidValue;
  if (p.group != 4 && p.group != 8 && p.group != 16) return cudaErrorInvalidValue;
  const auto ws =
      attend_prefill_workspace(p.total_queries, p.num_requests, p.kv_heads, p.group, p.top_k, p.max_blocks);
  return p.kv_type == hopper::Element::kBF16 ? launch_type<hopper::Element::kBF16>(p, ws, stream)
                                             : launch_type<hopper::Element::kE4M3>(p, ws, stream);
}

}  // namespace msa::sm90
