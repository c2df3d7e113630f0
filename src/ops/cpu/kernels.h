// SPDX-License-Identifier: Apache-2.0
// What an instruction set must provide: plain tables of functions. The threading and the order of work above
// them are shared by all sets, so the rule "a row's bits never depend on the other rows" is kept by these
// functions alone.
#pragma once

#include <cstdint>

#include "base/math.h"
#include "base/matrix_format.h"

namespace sparrow::ops::cpu {

// Element-wise work on one row of n elements. Nothing here needs alignment or a multiple of the vector
// length.
struct RowKernels {
  void (*to_f32)(const void* from, DType type, float* to, int64_t n);
  void (*from_f32)(const float* from, void* to, DType type, int64_t n);
  float (*sum_of_squares)(const float* x, int64_t n);
  void (*scale)(float* x, float factor, const float* weight, int64_t n);  // x = (x * factor) * weight
  void (*add)(float* x, const float* y, int64_t n);
  void (*add_scaled)(float* sum, const float* x, float factor, int64_t n);
  // gate = (clamp(up) + beta) * g * sigmoid(alpha * g) with g = min(gate, limit). NaN stays NaN.
  void (*swiglu)(float* gate, const float* up, float alpha, float limit, float beta, int64_t n);
  // x[i], x[i + half] turned by the angle whose cosine and sine are given.
  void (*rotate)(float* x, const float* cos, const float* sin, int64_t half);
};

// What only the vision tower needs, likewise.
struct VisionKernels {
  float (*sum)(const float* x, int64_t n);
  void (*shift)(float* x, float by, int64_t n);  // x = x + by
  void (*gelu)(float* x, int64_t n);             // x = x * (1 + erf(x / sqrt(2))) / 2
  // x = e^(scale * (x - the largest)), and their sum; n is a multiple of 16.
  float (*exponentials)(float* x, float scale, int64_t n);
};

// Where rows of weights begin in memory.
struct WeightPlace {
  const char* values = nullptr;
  const uint8_t* scales = nullptr;
};

struct WeightView {
  const void* values = nullptr;  // [rows, columns]
  const uint8_t* scales = nullptr;
  MatrixFormat format = MatrixFormat::kBF16;
  int64_t columns = 0;
  int64_t stride = 0, scale_stride = 0;  // bytes between two rows

  WeightPlace row(int64_t r) const {
    return {static_cast<const char*>(values) + r * stride,
            scales == nullptr ? nullptr : scales + r * scale_stride};
  }
};

// Limits of one multiply(): they bound its workspace and the caller's result buffer.
inline constexpr int64_t kMaxStrip = 128, kMaxRows = 512;
// Rows and columns of packed activations come in groups of these; multiply() writes whole groups of rows and
// of outputs.
inline constexpr int64_t kRowGroup = 16, kColumnGroup = 32;

// Puts columns [0, columns) of `count` rows at (first_row, first_column) of a packed matrix of
// `packed_columns`. first_row and first_column are multiples of the groups; what the last groups lack is
// filled with zeros.
struct PackJob {
  const void* const* rows;  // [count], of `type`
  DType type;
  int64_t count, columns;
  void* packed;
  int64_t packed_columns, first_row, first_column;
};

// c[m][n] = sum over k of x[first_row + m][k] * w[first_output + n][k], in f32, k ascending in one fixed
// pattern. With several parts, one c for each equal part of k: what a product of its columns alone would
// give.
struct StripJob {
  const void* packed;
  int64_t first_row, rows;  // first_row is a multiple of kRowGroup, rows <= kMaxRows
  WeightView weight;
  int64_t first_output, outputs;  // outputs <= kMaxStrip
  float* c;                       // [rows rounded up to kRowGroup, c_stride]
  int64_t c_stride;               // >= outputs rounded up to kRowGroup
  void* workspace;
  int parts = 1;            // of the weight's columns, each packed as a matrix of its own
  int64_t packed_part = 0;  // bytes from one part of `packed` to the next
  int64_t c_part = 0;       // elements from one part's c to the next
  // What this thread will probably multiply by next, a strip like this one: the first of its weights are
  // asked for while the last of this one's are used.
  WeightPlace next = {};

  int64_t part_columns() const { return weight.columns / parts; }
  const void* packed_at(int part) const { return static_cast<const char*>(packed) + part * packed_part; }
};

struct GemmEngine {
  int64_t (*packed_bytes)(int64_t rows, int64_t columns);
  int64_t (*workspace_bytes)(int64_t columns);
  void (*pack)(const PackJob& job);
  void (*multiply)(const StripJob& job);
};

struct Kernels {
  const RowKernels* row;
  const VisionKernels* vision;
  const GemmEngine* simd;  // any weights, any activations
  // bf16 activations with all weights but f32; nullptr where the machine multiplies in f32 only.
  const GemmEngine* tiles;

  const GemmEngine& engine(DType activation, MatrixFormat weight) const {
    const bool fits = activation == DType::kBF16 && weight != MatrixFormat::kF32;
    return tiles != nullptr && fits ? *tiles : *simd;
  }
};

extern const Kernels kAvx2Kernels, kAvx512Kernels, kAvx512Bf16Kernels, kAmxKernels;
extern const GemmEngine kAvx512Bf16Gemm, kAmxGemm;

}  // namespace sparrow::ops::cpu
