// SPDX-License-Identifier: Apache-2.0
// Every operation of the text model; those that only the vision tower has are in vision_ops.h. dispatch.cc
// picks the implementation; these headers are all the model sees.
//
// Activations are bf16 or f32 (the model's compute type); sums, exponentials and normalisation run in f32 and
// round once, at the store. A row's result never depends on the other rows of the call: same instructions,
// same order of summation.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "base/matrix_format.h"
#include "base/tensor.h"
#include "device/exec.h"
#include "msa/msa.h"

namespace sparrow::ops {

// The best CPU instruction set that works on this machine.
CpuIsa detect_cpu_isa();
const char* name_of(CpuIsa isa);
// "scalar", "avx2", "avx512", "avx512-bf16" or "amx", as command lines have it, whether it works here or not.
std::optional<CpuIsa> cpu_isa_named(std::string_view name);

// A linear layer's matrix [out, in], as stored. A quantised one stands for the bf16 matrix that its codes and
// scales give, which is exact but among subnormal numbers, and every product has the bits of that matrix's.
struct Weight {
  Tensor values;  // [out, in] BF16, F32 or F8_E4M3 (MXFP8); [out, in / 2] U8 (MXFP4)
  Tensor scales;  // [out, in / 32] U8; empty unless quantised

  MatrixFormat format() const { return format_of(values.dtype); }
  int64_t out() const { return values.shape[0]; }
  int64_t in() const { return values.shape[1] * values_per_element(format()); }
};

struct Projection {
  const Weight* weight;  // [out, in]
  Tensor out;            // [rows, out] bf16 or f32, any row stride
  Tensor bias;           // [out] f32; empty: none
  bool gelu = false;     // of the sum, by the error function
};

// out = x w^T + bias for each projection; all share x [rows, in]. `parts`, a power of two here and below: the
// columns are summed in so many equal parts (of a quantised weight, multiples of 32), and these in a binary
// tree, ((0 + 1) + (2 + 3)) + ... So ranks that have some of the columns each, as many parts to a rank, and
// add up in that tree get the bits of one that has all.
void linear(Exec& exec, const Tensor& x, std::span<const Projection> projections, int parts = 1);

// out[r] = table[ids[r]], converted to out's type. Ids must be in range.
void embed(Exec& exec, std::span<const int32_t> ids, const Tensor& table, const Tensor& out);

// Gemma RMS norm of each row: (x * rsqrt(mean(x^2) + eps)) * (1 + weight).
void rms_norm(Exec& exec, const Tensor& x, const Tensor& weight, float eps, const Tensor& out);

// residual = residual + delta, rounded to its type, and then out = rms_norm(residual).
void add_rms_norm(Exec& exec, const Tensor& residual, const Tensor& delta, const Tensor& weight, float eps,
                  const Tensor& out);

// residual = residual + delta for the last layer, whose norm runs on sampling rows only.
void add(Exec& exec, const Tensor& residual, const Tensor& delta);

// out = x [rows, columns] f32, rounded to out's type.
void convert(Exec& exec, const Tensor& x, const Tensor& out);

// cos and sin for the rows of one call: [rows, rotary_dim / 2] f32. No table over all positions exists.
struct Rotary {
  Tensor cos, sin;
};

// out.cos[r][i] = cos(float(positions[r]) * inv_freq[i]) * attention_factor, the angle in f32, and so for
// sin.
void rotary_table(Exec& exec, std::span<const int32_t> positions, std::span<const float> inv_freq,
                  float attention_factor, const Rotary& out);

// Per-head norm and partial rotary of x [rows, heads * head_dim] (any row stride), in place, rounded once.
// head_dim is norm_weight's length; row r turns by row r of the tables; channel i pairs with i + rotary_dim
// / 2.
void head_norm_rope(Exec& exec, const Tensor& x, const Tensor& norm_weight, float eps, const Rotary& rotary);

// Copies x [rows, heads * 128] (any row stride) into cache pages of x's type: head h of row r goes to
// pages + (slots[r] / 128) * block_stride + h * head_stride + (slots[r] % 128) * 128. Strides are in
// elements. Rows of slot -1 go nowhere.
void store_blocks(Exec& exec, const Tensor& x, void* pages, int64_t block_stride, int64_t head_stride,
                  std::span<const int64_t> slots);

// msa::index, msa::merge and msa::attend on this exec's threads, instruction set and scratch.
void index_blocks(Exec& exec, const msa::Plan& plan, const msa::IndexParams& params);
void merge_candidates(Exec& exec, const msa::Plan& plan, const msa::MergeParams& params);
void attend(Exec& exec, const msa::Plan& plan, const msa::AttendParams& params);

struct SwigluParams {
  float alpha = 1.702f, limit = 7.0f, beta = 1.0f;
};

// Dense MLP and shared expert: out = (swiglu(x gate^T, x up^T)) down^T, channels in parts.
struct MlpWeights {
  Weight gate, up, down;
};
void mlp(Exec& exec, const Tensor& x, const MlpWeights& weights, const SwigluParams& swiglu,
         const Tensor& out, int parts = 1);

// Router: sigmoid of f32 logits; the top_k largest sigmoid + bias, ties to the lower id; weights are the
// picked sigmoids over their sum. ids and weights are [rows, top_k], ascending by expert id.
void route(Exec& exec, const Tensor& x, const Weight& gate, const Tensor& bias, int top_k, const Tensor& ids,
           const Tensor& weights);

// out = scaling * sum over the picked experts of weight * expert(x) + shared(x); summed in f32 by ascending
// expert id, the shared expert last, for each part of the channels, and then the parts. Experts without
// weights are another rank's and left out.
void moe(Exec& exec, const Tensor& x, const Tensor& ids, const Tensor& weights,
         std::span<const MlpWeights> experts, const MlpWeights& shared, float scaling,
         const SwigluParams& swiglu, const Tensor& out, int parts = 1);

// The most scratch memory that one call takes, for memory plans: what the engines of that instruction set
// say, so that it holds for all of them. `weights` is the format of the matrices.
struct ScratchQuery {
  CpuIsa isa;
  int threads;
  DType activations;
  MatrixFormat weights;
  int64_t rows;
  int parts = 1;
};
int64_t linear_scratch_bytes(const ScratchQuery& query, int64_t columns);
// moe(), or with top_k = 0 mlp(), whose channels are then `shared`.
struct MoeChannels {
  int64_t hidden, routed, shared;
  int num_experts, top_k;
};
int64_t moe_scratch_bytes(const ScratchQuery& query, const MoeChannels& channels);
int64_t attention_scratch_bytes(CpuIsa isa, int threads, const msa::Plan& plan, const msa::IndexParams& index,
                                const msa::AttendParams& attend);

}  // namespace sparrow::ops
