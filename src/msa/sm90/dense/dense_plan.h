// SPDX-License-Identifier: Apache-2.0
// What the dense kernels share on the host: their launches and the views of their tensors.
#pragma once

#include "msa/layout/dense_layout.h"
#include "msa/sm90/dense/dense.h"

namespace msa::sm90::dense {

cudaError_t launch_tiles(const DenseParams& params, const TileWorkspace& ws, cudaStream_t stream);
cudaError_t launch_stream(const DenseParams& params, const StreamWorkspace& ws, cudaStream_t stream);

// K and V as [half of the channels, rows of all pages, 128 bytes] with the 128-byte swizzle: one copy brings
// `box_rows` whole keys. e4m3 rows are 128 bytes, so there is one half.
cudaError_t make_kv_map(const DenseParams& params, int box_rows, bool swizzle, CUtensorMap* map);
// Q as [KV head, half of the channels, query, head of the group, 64 channels]: one copy brings the rows of a
// tile.
cudaError_t make_query_map(const DenseParams& params, CUtensorMap* map);

cudaError_t multiprocessors(int* count);

}  // namespace msa::sm90::dense
