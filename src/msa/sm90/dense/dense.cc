// SPDX-License-Identifier: Apache-2.0
#include "msa/sm90/dense/dense.h"

#include "msa/sm90/dense/dense_plan.h"
#include "sm90/tensor_map.h"

namespace msa::sm90 {
namespace dense {
cudaError_t make_kv_map(const DenseParams& p, int box_rows, bool swizzle, CUtensorMap* map) {
  const auto rows = static_cast<cuuint64_t>(p.num_pages) * p.kv_heads * 2 * kBlock;
  const auto box = static_cast<cuuint32_t>(box_rows);
  if (p.kv_type == hopper::Element::kBF16)
    return hopper::make_tensor_map(
        hopper::TensorView{p.kv_pages, p.kv_type, 3, {64, rows, 2}, {256, 128}, {64, box, 2}, swizzle}, map);
  return hopper::make_tensor_map(
      hopper::TensorView{p.kv_pages, p.kv_type, 3, {128, rows, 1}, {128, 128}, {128, box, 1}, swizzle}, map);
}

cudaError_t make_query_map(const DenseParams& p, CUtensorMap* map) {
  const cuuint64_t group = p.group, heads = p.kv_heads, queries = p.total_queries;
  const cuuint32_t box_heads = p.group, box_queries = kTileRows / p.group;
  return hopper::make_tensor_map(hopper::TensorView{p.q,
                                                    hopper::Element::kBF16,
                                                    5,
                                                    {64, group, queries, 2, heads},
                                                    {256, heads * group * 256, 128, group * 256},
                                                    {64, box_heads, box_queries, 2, 1},
                                                    true},
                                 map);
}

cudaError_t multiprocessors(int* count) {
  int device = 0;
  const cudaError_t error = cudaGetDevice(&device);
  if (error != cudaSuccess) return error;
  return cudaDeviceGetAttribute(count, cudaDevAttrMultiProcessorCount, device);
}

}  // namespace dense

cudaError_t launch_dense(const DenseParams& p, cudaStream_t stream) {
  if (p.total_queries == 0 || p.kv_heads == 0) return cudaSuccess;
  if (p.group != 4 && p.group != 8 && p.group != 16) return cudaErrorInvalidValue;
  if (!p.batch_invariant && p.max_queries_per_request * p.group <= dense::kStreamRows)
    return dense::launch_stream(p, dense::stream_workspace(), stream);
  return dense::launch_tiles(
      p, dense::tile_workspace(p.total_queries, p.num_requests, p.max_blocks, p.kv_heads, p.group), stream);
}

}  // namespace msa::sm90
