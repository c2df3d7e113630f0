// SPDX-License-Identifier: Apache-2.0
// The only place that asks which instruction set an operation runs on.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "ops/cpu/ops_cpu.h"
#include "ops/cpu/reference.h"
#include "ops/cpu/vision_cpu.h"

namespace sparrow::ops {
namespace {

// nullptr: the scalar reference.
const cpu::Kernels* kernels_of(CpuIsa isa) {
  switch (isa) {
    case CpuIsa::kScalar:
      return nullptr;
    case CpuIsa::kAvx2:
      return &cpu::kAvx2Kernels;
    case CpuIsa::kAvx512:
      return &cpu::kAvx512Kernels;
    case CpuIsa::kAvx512Bf16:
      return &cpu::kAvx512Bf16Kernels;
    case CpuIsa::kAmx:
      return &cpu::kAmxKernels;
  }
  return nullptr;
}
const cpu::Kernels* kernels_of(const Exec& exec) {
  return kernels_of(exec.isa);
}

// MSA is a library of its own and has its own name for the same list.
static_assert(static_cast<int>(CpuIsa::kAvx2) == static_cast<int>(msa::Isa::kAvx2) &&
              static_cast<int>(CpuIsa::kAvx512) == static_cast<int>(msa::Isa::kAvx512) &&
              static_cast<int>(CpuIsa::kAvx512Bf16) == static_cast<int>(msa::Isa::kAvx512Bf16) &&
              static_cast<int>(CpuIsa::kAmx) == static_cast<int>(msa::Isa::kAmx));
msa::Isa msa_isa(CpuIsa isa) {
  return static_cast<msa::Isa>(isa);
}

msa::Workers workers_of(Exec& exec) {
  return {.count = exec.pool.size(),
          .pool = &exec.pool,
          .run = [](void* pool, void (*body)(void*, int), void* arg) {
            static_cast<ThreadPool*>(pool)->run(body, arg);
          }};
}

}  // namespace

CpuIsa detect_cpu_isa() {
  return static_cast<CpuIsa>(msa::detect_isa());
}

const char* name_of(CpuIsa isa) {
  return msa::name_of(msa_isa(isa));
}

std::optional<CpuIsa> cpu_isa_named(std::string_view name) {
  if (name == "scalar") return CpuIsa::kScalar;
  if (name == "avx2") return CpuIsa::kAvx2;
  if (name == "avx512") return CpuIsa::kAvx512;
  if (name == "avx512-bf16") return CpuIsa::kAvx512Bf16;
  if (name == "amx") return CpuIsa::kAmx;
  return std::nullopt;
}

void linear(Exec& exec, const Tensor& x, std::span<const Projection> projections, int parts) {
  if (const cpu::Kernels* kernels = kernels_of(exec))
    return cpu::linear(exec, *kernels, x, projections, parts);
  reference::linear(x, projections, parts);
}

void embed(Exec& exec, std::span<const int32_t> ids, const Tensor& table, const Tensor& out) {
  if (const cpu::Kernels* kernels = kernels_of(exec)) return cpu::embed(exec, *kernels, ids, table, out);
  reference::embed(ids, table, out);
}

void rms_norm(Exec& exec, const Tensor& x, const Tensor& weight, float eps, const Tensor& out) {
  if (const cpu::Kernels* kernels = kernels_of(exec))
    return cpu::rms_norm(exec, *kernels, x, weight, eps, out);
  reference::rms_norm(x, weight, eps, out);
}

void add_rms_norm(Exec& exec, const Tensor& residual, const Tensor& delta, const Tensor& weight, float eps,
                  const Tensor& out) {
  if (const cpu::Kernels* kernels = kernels_of(exec))
    return cpu::add_rms_norm(exec, *kernels, residual, delta, weight, eps, out);
  reference::add_rms_norm(residual, delta, weight, eps, out);
}

void add(Exec& exec, const Tensor& residual, const Tensor& delta) {
  if (const cpu::Kernels* kernels = kernels_of(exec)) return cpu::add(exec, *kernels, residual, delta);
  reference::add(residual, delta);
}

void convert(Exec& exec, const Tensor& x, const Tensor& out) {
  if (const cpu::Kernels* kernels = kernels_of(exec)) return cpu::convert(exec, *kernels, x, out);
  reference::convert(x, out);
}

void rotary_table(Exec&, std::span<const int32_t> positions, std::span<const float> inv_freq,
                  float attention_factor, const Rotary& out) {
  SPARROW_CHECK_EQ(out.cos.rows(), static_cast<int64_t>(positions.size()));
  SPARROW_CHECK_EQ(out.cos.cols(), static_cast<int64_t>(inv_freq.size()));
  for (size_t r = 0; r < positions.size(); ++r) {
    float* cos = out.cos.row<float>(static_cast<int64_t>(r));
    float* sin = out.sin.row<float>(static_cast<int64_t>(r));
    for (size_t i = 0; i < inv_freq.size(); ++i) {
      // The angle is a float by definition; double from there on keeps the range reduction of large angles
      // exact.
      const double angle = static_cast<double>(static_cast<float>(positions[r]) * inv_freq[i]);
      cos[i] = static_cast<float>(std::cos(angle)) * attention_factor;
      sin[i] = static_cast<float>(std::sin(angle)) * attention_factor;
    }
  }
}

void head_norm_rope(Exec& exec, const Tensor& x, const Tensor& norm_weight, float eps, const Rotary& rotary) {
  if (const cpu::Kernels* kernels = kernels_of(exec))
    return cpu::head_norm_rope(exec, *kernels, x, norm_weight, eps, rotary);
  reference::head_norm_rope(x, norm_weight, eps, rotary);
}

void store_blocks(Exec& exec, const Tensor& x, void* pages, int64_t block_stride, int64_t head_stride,
                  std::span<const int64_t> slots) {
  constexpr int64_t kBlock = msa::kBlock, kHeadDim = msa::kHeadDim;
  SPARROW_CHECK_EQ(x.cols() % kHeadDim, 0);
  SPARROW_CHECK_EQ(x.rows(), static_cast<int64_t>(slots.size()));
  const int64_t element = static_cast<int64_t>(size_of(x.dtype));
  cpu::for_each_row(exec, x.rows(), x.cols(), [&](int64_t row, int) {
    const int64_t slot = slots[static_cast<size_t>(row)];
    if (slot < 0) return;
    const int64_t base = slot / kBlock * block_stride + slot % kBlock * kHeadDim;
    for (int64_t h = 0; h < x.cols() / kHeadDim; ++h)
      std::memcpy(static_cast<char*>(pages) + (base + h * head_stride) * element,
                  cpu::row_at(x, row) + h * kHeadDim * element, static_cast<size_t>(kHeadDim * element));
  });
}

void index_blocks(Exec& exec, const msa::Plan& plan, const msa::IndexParams& params) {
  const msa::Isa isa = msa_isa(exec.isa);
  const msa::Workers workers = workers_of(exec);
  Scratch::Scope scope(exec.scratch);
  char* workspace = scope.take<char>(msa::index_workspace_bytes(plan, params, isa, workers));
  msa::index(plan, params, isa, workers, workspace);
}

void merge_candidates(Exec& exec, const msa::Plan& plan, const msa::MergeParams& params) {
  msa::merge(plan, params, workers_of(exec));
}

void attend(Exec& exec, const msa::Plan& plan, const msa::AttendParams& params) {
  const msa::Isa isa = msa_isa(exec.isa);
  const msa::Workers workers = workers_of(exec);
  Scratch::Scope scope(exec.scratch);
  char* workspace = scope.take<char>(msa::attend_workspace_bytes(plan, params, isa, workers));
  msa::attend(plan, params, isa, workers, workspace);
}

void layer_norm(Exec& exec, const Tensor& x, const LayerNorm& norm, const Tensor& out) {
  if (const cpu::Kernels* kernels = kernels_of(exec)) return cpu::layer_norm(exec, *kernels, x, norm, out);
  reference::layer_norm(x, norm, out);
}

void add_layer_norm(Exec& exec, const Tensor& residual, const Tensor& delta, const LayerNorm& norm,
                    const Tensor& out) {
  if (const cpu::Kernels* kernels = kernels_of(exec))
    return cpu::add_layer_norm(exec, *kernels, residual, delta, norm, out);
  reference::add_layer_norm(residual, delta, norm, out);
}

void rope(Exec& exec, const Tensor& x, int head_dim, const Rotary& rotary) {
  if (const cpu::Kernels* kernels = kernels_of(exec)) return cpu::rope(exec, *kernels, x, head_dim, rotary);
  reference::rope(x, head_dim, rotary);
}

void attend_segments(Exec& exec, const SegmentAttention& attention) {
  SPARROW_CHECK(attention.q.cols() % attention.heads == 0 && attention.q.cols() / attention.heads <= 128);
  SPARROW_CHECK(!attention.begins.empty() && attention.begins.back() <= attention.q.rows());
  if (const cpu::Kernels* kernels = kernels_of(exec)) return cpu::attend_segments(exec, *kernels, attention);
  reference::attend_segments(attention);
}

int64_t segment_scratch_bytes(const SegmentScratchQuery& query) {
  const cpu::Kernels* kernels = kernels_of(query.isa);
  return kernels ? cpu::segment_scratch_bytes(*kernels, query) : 0;
}

void mlp(Exec& exec, const Tensor& x, const MlpWeights& weights, const SwigluParams& swiglu,
         const Tensor& out, int parts) {
  if (const cpu::Kernels* kernels = kernels_of(exec))
    return cpu::moe(exec, *kernels, x,
                    {.routed = {}, .shared = weights, .ids = {}, .weights = {}, .parts = parts}, swiglu, out);
  reference::mlp(x, weights, swiglu, out, parts);
}

void route(Exec& exec, const Tensor& x, const Weight& gate, const Tensor& bias, int top_k, const Tensor& ids,
           const Tensor& weights) {
  if (const cpu::Kernels* kernels = kernels_of(exec))
    return cpu::route(exec, *kernels, x, gate, bias, top_k, ids, weights);
  reference::route(x, gate, bias, top_k, ids, weights);
}

void moe(Exec& exec, const Tensor& x, const Tensor& ids, const Tensor& weights,
         std::span<const MlpWeights> experts, const MlpWeights& shared, float scaling,
         const SwigluParams& swiglu, const Tensor& out, int parts) {
  if (const cpu::Kernels* kernels = kernels_of(exec))
    return cpu::moe(exec, *kernels, x,
                    {.routed = experts,
                     .shared = shared,
                     .ids = ids,
                     .weights = weights,
                     .scaling = scaling,
                     .parts = parts},
                    swiglu, out);
  reference::moe(x, ids, weights, experts, shared, scaling, swiglu, out, parts);
}

int64_t linear_scratch_bytes(const ScratchQuery& query, int64_t columns) {
  const cpu::Kernels* kernels = kernels_of(query.isa);
  return kernels ? cpu::linear_scratch_bytes(*kernels, query, columns) : 0;
}

int64_t moe_scratch_bytes(const ScratchQuery& query, const MoeChannels& channels) {
  const cpu::Kernels* kernels = kernels_of(query.isa);
  return kernels ? cpu::moe_scratch_bytes(*kernels, query, channels) : 0;
}

int64_t attention_scratch_bytes(CpuIsa isa, int threads, const msa::Plan& plan, const msa::IndexParams& index,
                                const msa::AttendParams& attend) {
  const msa::Workers workers{.count = threads};
  return std::max(msa::index_workspace_bytes(plan, index, msa_isa(isa), workers),
                  msa::attend_workspace_bytes(plan, attend, msa_isa(isa), workers));
}

}  // namespace sparrow::ops
