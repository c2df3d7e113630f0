// SPDX-License-Identifier: Apache-2.0
#include "msa/sm90/attend/attend_prefill.cuh"
#include "msa/sm90/attend/combine.cuh"

namespace msa::sm90 {
namespace {

int64_t align_up(int64_t bytes) {
  return (bytes + 255) / 256 * 256;
}

// Longer windows give each block more queries per load of K and V, shorter ones more CTAs to invert the
// selection: these were measured at 64, 256, 1024 and 8192 blocks.
int window_for(int max_blocks) {
  if (max_blocks <= 128) return 512;
  if (max_blocks <= 512) return 1024;
  return max_blocks <= 2048 ? 2048 : 4096;
}

// Longer items load K and V less often, shorter ones let the CTAs finish together.
int item_tiles_for(int window) {
  return window == 512 ? 8 : window == 1024 ? 32 : 16;
}

CUresult encode(CUtensorMap* map, const void* data, int rank, const cuuint64_t* extents,
                const cuuint64_t* strides, const cuuint32_t* box) {
  static const auto entry = [] {
    void* found = nullptr;
    cudaDriverEntryPointQueryResult result = cudaDriverEntryPointSymbolNotFound;
    cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, 12000, cudaEnableDefault, &result);
    return reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(found);
  }();
  if (entry == nullptr) return CUDA_ERROR_NOT_SUPPORTED;
  const cuuint32_t steps[4] = {1, 1, 1, 1};
  return entry(map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, rank, const_cast<void*>(data), extents, strides, box,
               steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
               CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
}

cudaError_t make_maps(const AttendPrefillParams& p, PrefillMaps* maps) {
  const cuuint32_t rows = p.group < 8 ? p.group : 8;
  const cuuint64_t total_rows = static_cast<cuuint64_t>(p.total_queries) * p.kv_heads * p.group;
  const cuuint64_t q_extents[4] = {64, rows, 2, total_rows / rows}, q_strides[3] = {256, 128, rows * 256};
  const cuuint32_t q_box[4] = {64, rows, p.group < 8 ? 1u : 2u, p.group / rows};
  const cuuint64_t kv_extents[3] = {64, static_cast<cuuint64_t>(p.num_pages) * p.kv_heads * 256, 2};
  const cuuint64_t kv_strides[2] = {256, 128};
  const cuuint32_t kv_box[3] = {64, 128, 2};
  if (encode(&maps->q, p.q, 4, q_extents, q_strides, q_box) != CUDA_SUCCESS) return cudaErrorInvalidValue;
  if (encode(&maps->kv, p.kv_pages, 3, kv_extents, kv_strides, kv_box) != CUDA_SUCCESS)
    return cudaErrorInvalidValue;
  return cudaSuccess;
}

// Launches a kernel that may start while the one before it ends; it waits for that one before it reads.
template <typename... Params, typename... Args>
cudaError_t launch_next(void (*kernel)(Params...), dim3 grid, int threads, int shared_bytes,
                        cudaStream_t stream, const Args&... args) {
  const cudaError_t error =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes);
  if (error != cudaSuccess) return error;
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = dim3(threads);
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = 1;
  return cudaLaunchKernelEx(&config, kernel, args...);
}

template <int kGroup>
cudaError_t launch_group(const AttendPrefillParams& p, const AttendPrefillWorkspace& ws,
                         cudaStream_t stream) {
  using Traits = AttendPrefillTraits<kGroup>;
  using Combine = CombineTraits<kGroup>;
  PrefillMaps maps;
  cudaError_t error = make_maps(p, &maps);
  if (error != cudaSuccess) return error;
  int device = 0, sms = 0;
  if ((error = cudaGetDevice(&device)) != cudaSuccess) return error;
  if ((error = cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, device)) != cudaSuccess)
    return error;

  const int invert_bytes = p.max_blocks * static_cast<int>(sizeof(int32_t));
  const int item_queries = item_tiles_for(ws.window) * Traits::kTileQueries;
  constexpr int kTileQueries = Traits::kTileQueries;
  error = launch_next(invert_kernel<InvertTraits>, dim3(ws.num_windows, p.kv_heads), InvertTraits::kThreads,
                      invert_bytes, stream, p, ws, kTileQueries, item_queries);
  if (error != cudaSuccess) return error;
  constexpr int kBytes = static_cast<int>(sizeof(AttendPrefillShared<Traits>));
  error =
      launch_next(attend_prefill_kernel<Traits>, dim3(sms), Traits::kThreads, kBytes, stream, p, ws, maps);
  if (error != cudaSuccess) return error;
  const int64_t units = int64_t{p.total_queries} * p.kv_heads;
  const auto ctas = static_cast<unsigned>((units + Combine::kUnitsPerCta - 1) / Combine::kUnitsPerCta);
  return launch_next(combine_kernel<Combine>, dim3(ctas), Combine::kThreads, 0, stream, p, ws);
}

}  // namespace

AttendPrefillWorkspace attend_prefill_workspace(int total_queries, int kv_heads, int group, int top_k,
                                                int max_blocks) {
  AttendPrefillWorkspace ws;
  ws.window = window_for(max_blocks);
  ws.num_windows = (total_queries + ws.window - 1) / ws.window;
  const int64_t units = int64_t{ws.num_windows} * kv_heads, pairs = units * ws.window * top_k;
  const int64_t rows = int64_t{total_queries} * kv_heads * top_k * group;
  ws.num_items = 0;
  ws.next_item = align_up(ws.num_items + units * 4);
  ws.items = align_up(ws.next_item + units * 4);
  ws.entries = align_up(ws.items + pairs * static_cast<int64_t>(sizeof(PrefillItem)));
  ws.counts = align_up(ws.entries + pairs * 4);
  ws.sums = align_up(ws.counts + int64_t{total_queries} * kv_heads * 4);
  ws.partial = align_up(ws.sums + rows * 8);
  ws.bytes = align_up(ws.partial + rows * 256);
  return ws;
}

int64_t attend_prefill_workspace_bytes(int total_queries, int kv_heads, int group, int top_k,
                                       int max_blocks) {
  return attend_prefill_workspace(total_queries, kv_heads, group, top_k, max_blocks).bytes;
}

cudaError_t launch_attend_prefill(const AttendPrefillParams& p, cudaStream_t stream) {
  if (p.total_queries == 0 || p.kv_heads == 0) return cudaSuccess;
  if (p.top_k < 1 || p.top_k > 16 || p.max_blocks > 56 * 1024) return cudaErrorInvalidValue;
  if (p.total_queries >= 1 << 24) return cudaErrorInvalidValue;
  const auto ws = attend_prefill_workspace(p.total_queries, p.kv_heads, p.group, p.top_k, p.max_blocks);
  switch (p.group) {
    case 4:
      return launch_group<4>(p, ws, stream);
    case 8:
      return launch_group<8>(p, ws, stream);
    case 16:
      return launch_group<16>(p, ws, stream);
    default:
      return cudaErrorInvalidValue;
  }
}

}  // namespace msa::sm90
