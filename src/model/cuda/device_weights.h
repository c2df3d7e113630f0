// SPDX-License-Identifier: Apache-2.0
// DeviceWeights: one rank's part of the text model in GPU memory, in the layout the kernels read. One
// allocation; every tensor starts at a multiple of 256 bytes.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>
#include <vector>

#include "base/progress.h"
#include "base/result.h"
#include "checkpoint/weights.h"
#include "config/config.h"
#include "device/cuda/memory.h"
#include "model/load/file_walk.h"
#include "model/sharding.h"
#include "ops/cuda/device_matrix.h"

namespace sparrow {

// What products multiply with knows its format; vectors, the embedding and the router have one format each.
struct DeviceLayer {
  const __nv_bfloat16 *input_norm, *post_attention_norm;  // [hidden]
  const __nv_bfloat16 *q_norm, *k_norm;                   // [head_dim]
  const __nv_bfloat16 *index_q_norm, *index_k_norm;  // [head_dim]; nullptr without block-sparse attention
  // Rows of q | k | v, and on sparse layers | index_k | index_q. Each KV head's group of query heads is
  // filled up with zero rows to 4, 8 or 16 heads.
  ops::cuda::DeviceMatrix qkv;  // [qkv_rows, hidden]
  int qkv_rows, other_index_rows;
  // The same with index_q of other ranks behind it, for steps that share the index.
  ops::cuda::DeviceMatrix all_qkv;  // [qkv_rows + other_index_rows, hidden]
  ops::cuda::DeviceMatrix o;        // [hidden, query_heads * head_dim]: zero columns where q has zero rows

  const float *router, *router_bias;  // [all experts, hidden], [all experts]; nullptr: dense feed-forward
  int num_experts;                    // routed ones that are here; 0: dense
  int inter;                 // channels of each expert on this rank, a multiple of 64 (zeros fill it up)
  int64_t expanded_numbers;  // of qkv and o, the larger one, where they are cells; 0: they are not
  // Expert by expert; the shared one, or the dense feed-forward, comes last. Rows of gate and up alternate by
  // eights (packed row 16 g + i is gate's row 8 g + i, packed row 16 g + 8 + i is up's), so that a thread of
  // an MMA holds both of a channel.
  ops::cuda::DeviceMatrix gate_up;  // [(num_experts + 1) * 2 * inter, hidden]
  ops::cuda::DeviceMatrix down;     // [(num_experts + 1) * hidden, inter]
  // Expert-parallel ranks have whole experts and a part of the shared one, which then is not among them.
  int shared_inter;                        // 0: it is the last of the above
  ops::cuda::DeviceMatrix shared_gate_up;  // [2 * shared_inter, hidden]
  ops::cuda::DeviceMatrix shared_down;     // [hidden, shared_inter]
};

// Of matrices whose rows were folded (ops/cuda/mx/fold.h).
struct FoldedCodes {
  int64_t codes = 0, changed = 0;  // of all, those whose number is another now; of random weights 0
};

struct DeviceWeights {
  const __nv_bfloat16* embed;       // [vocab_rows, hidden]
  const __nv_bfloat16* final_norm;  // [hidden]
  ops::cuda::DeviceMatrix head;     // [vocab_rows, hidden]
  int first_vocab_row, vocab_rows;  // of this rank
  int query_heads, kv_heads;        // of this rank, zero heads included
  ExpertRange experts;              // routed ones that are here
  std::vector<DeviceLayer> layers;
  FoldedCodes folded;
  DeviceBuffer memory;
};

// How tensors travel from the page cache through page-locked buffers to the GPU.
struct DeviceLoadOptions {
  int threads = 0;  // 0: as many as the machine has, at most max_load_threads()
  // Smaller ones leave gaps on the link, and larger ones fall out of the processor's cache before they are
  // sent (two each of 2, 4, 8 and 16 MiB: 42, 46, 46 and 38 of its 55 GB/s).
  size_t buffer_bytes = size_t{4} << 20;
  int buffers_per_thread = 2;
  LoadOrder order;         // of the files, and how ranks of a node stay together in it
  bool fold_rows = false;  // MXFP8 matrices of products that round: lossy
};

// Reads this rank's part of every tensor once, in the order it lies in the files, straight to its place;
// files that have no part of it are left alone. Blocks until the weights are on the GPU. Progress counts
// bytes read from the checkpoint.
Result<DeviceWeights> load_device_weights(const ModelConfig& config, const Grid& grid, const Weights& mapped,
                                          const ProgressFn& progress = {},
                                          const DeviceLoadOptions& options = {});

// Random weights with which activations stay of order 1. All ranks hold parts of the same model.
Result<DeviceWeights> dummy_device_weights(const ModelConfig& config, const Grid& grid, uint64_t seed,
                                           bool fold_rows = false);

}  // namespace sparrow
