// SPDX-License-Identifier: Apache-2.0
// RankShape: what the buffers of a rank on a GPU depend on. Free of CUDA: a plan counts with it.
#pragma once

#include <cstdint>
#include <vector>

#include "comm/grid.h"
#include "config/config.h"
#include "ops/gpu_workspace.h"

namespace sparrow {

// What of a rank's weights its buffers depend on.
struct RankShape {
  struct Layer {
    int qkv_rows = 0;              // index heads of other ranks included
    int num_experts = 0;           // routed ones that are here; 0: dense feed-forward
    int inter = 0;                 // channels of each expert
    int shared_inter = 0;          // of the shared one, where it is apart
    int64_t expanded_numbers = 0;  // of its largest matrix that products expand to bf16
  };
  int query_heads = 0, kv_heads = 0, vocab_rows = 0;
  std::vector<Layer> layers;
  int ranks = 1;                // of the grid: of more than one some rows lie in memory that they share
  int groups = 1;               // of the grid: experts run the rows of all
  msa::IndexShare index_share;  // of the scoring of blocks

  int index_heads(const ModelConfig& config) const {
    return index_share.count > 1 ? config.num_kv_heads : kv_heads;
  }
};

// `Rank` is a DeviceLayout, or the DeviceWeights that lie there.
template <typename Rank>
RankShape rank_shape(const Rank& rank, const Grid& grid = {}) {
  RankShape shape{rank.query_heads, rank.kv_heads, rank.vocab_rows, {}, grid.world(), grid.dp, {}};
  for (const auto& layer : rank.layers) {
    if (layer.other_index_rows > 0) shape.index_share = {grid.tp_rank(), grid.tp};
    shape.layers.push_back({layer.qkv_rows + layer.other_index_rows, layer.num_experts, layer.inter,
                            layer.shared_inter, layer.expanded_numbers});
  }
  return shape;
}

}  // namespace sparrow
