// SPDX-License-Identifier: Apache-2.0
// The operations of ops.h on the CPU, over the kernels of one instruction set.
#pragma once

#include <algorithm>

#include "base/math.h"
#include "ops/cpu/kernels.h"
#include "ops/ops.h"

namespace sparrow::ops::cpu {

void linear(Exec& exec, const Kernels& kernels, const Tensor& x, std::span<const Projection> projections,
            int parts = 1);
void embed(Exec& exec, const Kernels& kernels, std::span<const int32_t> ids, const Tensor& table,
           const Tensor& out);
void rms_norm(Exec& exec, const Kernels& kernels, const Tensor& x, const Tensor& weight, float eps,
              const Tensor& out);
void add_rms_norm(Exec& exec, const Kernels& kernels, const Tensor& residual, const Tensor& delta,
                  const Tensor& weight, float eps, const Tensor& out);
void add(Exec& exec, const Kernels& kernels, const Tensor& residual, const Tensor& delta);
void convert(Exec& exec, const Kernels& kernels, const Tensor& x, const Tensor& out);
void head_norm_rope(Exec& exec, const Kernels& kernels, const Tensor& x, const Tensor& norm_weight, float eps,
                    const Rotary& rotary);
void route(Exec& exec, const Kernels& kernels, const Tensor& x, const Weight& gate, const Tensor& bias,
           int top_k, const Tensor& ids, const Tensor& weights);

// The picked experts of each row, and one more that every row uses. mlp() is the case of no picks.
struct Experts {
  std::span<const MlpWeights> routed;
  const MlpWeights& shared;
  Tensor ids, weights;  // [rows, top_k]; empty: no picks
  float scaling = 1.0f;
  int parts = 1;  // of the channels of each
};
void moe(Exec& exec, const Kernels& kernels, const Tensor& x, const Experts& experts,
         const SwigluParams& swiglu, const Tensor& out);

int64_t linear_scratch_bytes(const Kernels& kernels, const ScratchQuery& query, int64_t columns);
int64_t moe_scratch_bytes(const Kernels& kernels, const ScratchQuery& query, const MoeChannels& channels);

// Where element-wise row work is too small to be worth waking the other threads.
inline constexpr int64_t kElementsPerItem = 16384;

// body(row, worker) for every row, several rows to a work item when rows are short.
template <typename Body>
void for_each_row(Exec& exec, int64_t rows, int64_t columns, Body&& body) {
  const int64_t per_item = std::max<int64_t>(1, kElementsPerItem / std::max<int64_t>(1, columns));
  exec.pool.parallel_for(ceil_div(rows, per_item), [&](int64_t item, int worker) {
    const int64_t end = std::min(rows, (item + 1) * per_item);
    for (int64_t row = item * per_item; row < end; ++row) body(row, worker);
  });
}

inline char* row_at(const Tensor& tensor, int64_t row) {
  return static_cast<char*>(tensor.data) +
         row * tensor.row_stride * static_cast<int64_t>(size_of(tensor.dtype));
}

// Checks that a weight is one the kernels can read, with as many columns as the activations.
WeightView view_of(const Weight& weight, int64_t columns);

// Some of its columns; of a quantised one, whole groups that share a scale.
WeightView columns_of(const WeightView& weight, int64_t first, int64_t count);

// How many outputs a work item takes: large enough to reuse packed activations, small enough to keep threads
// busy.
int64_t strip_outputs(int64_t outputs, int64_t rows, int threads);

}  // namespace sparrow::ops::cpu
