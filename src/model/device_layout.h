// SPDX-License-Identifier: Apache-2.0
// DeviceLayout: where each of a rank's tensors lies in GPU memory, and how each tensor of the checkpoint is
// laid down there. Host arithmetic only: the plan of a model's memory needs no GPU.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "base/result.h"
#include "config/config.h"
#include "model/sharding.h"

namespace sparrow {

inline constexpr size_t kDeviceAlignment = 256;  // bytes; what cudaMalloc and TMA descriptors like best

// Bytes from the start of the memory; a tensor that the layer does not have stays at kAbsent.
struct DeviceLayerLayout {
  static constexpr size_t kAbsent = SIZE_MAX;

  size_t input_norm = kAbsent, post_attention_norm = kAbsent, q_norm = kAbsent, k_norm = kAbsent;
  size_t index_q_norm = kAbsent, index_k_norm = kAbsent;
  size_t qkv = kAbsent, o = kAbsent;
  size_t router = kAbsent, router_bias = kAbsent;
  size_t gate_up = kAbsent, down = kAbsent;
  int qkv_rows = 0;
  int num_experts = 0;  // routed ones; 0: dense feed-forward
  int inter = 0;        // channels of each expert, zero channels included
};

struct DeviceLayout {
  int query_heads = 0, kv_heads = 0;  // zero heads included
  int first_vocab_row = 0, vocab_rows = 0;
  size_t embed = 0, final_norm = 0, lm_head = 0;
  std::vector<DeviceLayerLayout> layers;
  size_t bytes = 0;
};

// Error: the model cannot be cut that way, or has a shape that the kernels do not take.
Result<DeviceLayout> make_device_layout(const ModelConfig& config, const ParallelConfig& parallel);

// What the weights of one rank take on a GPU, exactly.
Result<size_t> device_weight_bytes(const ModelConfig& config, const ParallelConfig& parallel);

// The tensors of a checkpoint. Gate, up and down belong to an expert: a routed one, or the one after the
// last.
enum class TensorRole : uint8_t {
  kEmbed,
  kFinalNorm,
  kLmHead,
  kInputNorm,
  kPostAttentionNorm,
  kQNorm,
  kKNorm,
  kIndexQNorm,
  kIndexKNorm,
  kQ,
  kK,
  kV,
  kIndexQ,
  kIndexK,
  kO,
  kRouter,
  kRouterBias,
  kGate,
  kUp,
  kDown,
};

// Runs of `size` rows (or columns) that follow each other in the checkpoint, `stride` apart in device memory.
struct DeviceRuns {
  int64_t size = INT64_MAX, stride = 0;

  int64_t place(int64_t i) const { return i / size * stride + i % size; }
};

// A rank's part of one tensor. Its element [r, c], counted from the part's first row and column, goes to
// element rows.place(r) * row_stride + columns.place(c) from `offset` on. Vectors are matrices of one row.
struct DevicePart {
  std::string name;  // in the spelling of the released checkpoints
  TensorRole role = TensorRole::kEmbed;
  int layer = -1, expert = -1;             // -1: belongs to none
  int64_t whole_rows = 0, whole_cols = 0;  // of the tensor in the checkpoint
  int64_t first_row = 0, num_rows = 0;
  int64_t first_col = 0, num_cols = 0;

  DType dtype = DType::kBF16;  // in device memory: BF16, or F32 for the router
  size_t offset = 0;           // bytes
  int64_t row_stride = 0;      // elements
  DeviceRuns rows, columns;
};

// Every part, in the order of the checkpoint's layers. Memory that no part covers must be zero.
std::vector<DevicePart> device_parts(const ModelConfig& config, const ParallelConfig& parallel,
                                     const DeviceLayout& layout);

}  // namespace sparrow
