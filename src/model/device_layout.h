// SPDX-License-Identifier: Apache-2.0
// DeviceLayout: where each of a rank's tensors lies in GPU memory, and how each tensor of the checkpoint is
// laid down there. Host arithmetic only: the plan of a model's memory needs no GPU.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/result.h"
#include "checkpoint/tensor_row.h"
#include "config/config.h"
#include "model/sharding.h"
#include "ops/cuda/mx/cell.h"

namespace sparrow {

inline constexpr size_t kDeviceAlignment = 256;  // bytes; what cudaMalloc and TMA descriptors like best

// A matrix or vector in GPU memory; vectors have one row. MXFP8 and MXFP4 lie in cells.
struct DeviceTensorLayout {
  static constexpr size_t kAbsent = SIZE_MAX;

  size_t offset = kAbsent;  // bytes from the start of the memory
  int64_t rows = 0, cols = 0;
  MatrixFormat format = MatrixFormat::kBF16;

  size_t bytes() const {
    if (is_mx(format)) return static_cast<size_t>(ops::cuda::cell_matrix_bytes(format, rows, cols));
    return static_cast<size_t>(rows * cols) * size_of(dtype_of(format));
  }
};

// Those of a layer, or those of the model that belong to no layer; the others stay absent.
struct DeviceTensors {
  std::array<DeviceTensorLayout, kNumDeviceTensors> all;

  DeviceTensorLayout& operator[](DeviceTensor tensor) { return all[static_cast<size_t>(tensor)]; }
  const DeviceTensorLayout& operator[](DeviceTensor tensor) const { return all[static_cast<size_t>(tensor)]; }
};

struct DeviceLayerLayout {
  DeviceTensors tensors;
  int qkv_rows = 0;          // of q, k, v, index k and index q, in this order
  int other_index_rows = 0;  // behind them: index q of other ranks, by ascending head
  int num_experts = 0;       // routed ones that are here; 0: dense feed-forward
  int inter = 0;             // channels of each expert, zero channels included
  int shared_inter = 0;  // of the shared expert where it has matrices of its own; 0: it is the last expert
  // Numbers of the larger of q/k/v and output matrix, where those are cells: products of many rows expand
  // them.
  int64_t expanded_numbers = 0;
};

// Runs of `size` rows (or columns) that follow each other in the checkpoint, `stride` apart in device memory.
struct DeviceRuns {
  int64_t size = INT64_MAX, stride = 0;

  int64_t place(int64_t i) const { return i / size * stride + i % size; }
};

// A rank's part of one tensor. Its element [r, c], counted from the part's first row and column, is element
// [matrix_row + rows.place(r), columns.place(c)] of a matrix. Vectors are matrices of one row.
struct DevicePart {
  TensorRow tensor;                        // named as the released checkpoints do; its device.format is the
                                           // matrix's, which is bf16 where its tensors differ
  int64_t whole_rows = 0, whole_cols = 0;  // of the tensor in the checkpoint, in numbers
  int64_t first_row = 0, num_rows = 0;
  int64_t first_col = 0, num_cols = 0;

  size_t offset = 0;           // of the matrix, in bytes
  int64_t matrix_columns = 0;  // of the matrix
  int64_t matrix_row = 0;
  DeviceRuns rows, columns;
};

struct DeviceLayout {
  int query_heads = 0, kv_heads = 0;  // zero heads included
  int first_vocab_row = 0, vocab_rows = 0;
  ExpertRange experts;  // of each layer with a router, which knows all of them
  DeviceTensors model;
  std::vector<DeviceLayerLayout> layers;
  std::vector<DevicePart> parts;  // in the order of the table; memory that no part covers must be zero
  size_t bytes = 0;
};

// `rows` are those of the table. Error: the model cannot be cut that way, has a shape that the kernels do not
// take, or a tensor would lie there in a format that they do not read.
Result<DeviceLayout> make_device_layout(const ModelConfig& config, const Grid& grid,
                                        std::span<const TensorRow> rows);
Result<DeviceLayout> make_device_layout(const ModelConfig& config, const Grid& grid);

// What the weights of one rank take on a GPU, exactly.
Result<size_t> device_weight_bytes(const ModelConfig& config, const Grid& grid);

}  // namespace sparrow
