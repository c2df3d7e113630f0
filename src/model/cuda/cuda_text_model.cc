// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <utility>

#include "device/cuda/check.h"
#include "model/cuda/cuda_text_model_state.h"

namespace sparrow {
namespace {

Status from_msa(const msa::gpu::Status& status) {
  if (status.ok()) return Ok{};
  const bool shape = status.code == msa::gpu::Code::kUnsupported || status.code == msa::gpu::Code::kInvalid;
  return Error{shape ? Errc::kUnsupported : Errc::kIo, status.message};
}

// A launch that a created plan refuses is a bug of ours.
void check_msa(const msa::gpu::Status& status) {
  if (!status.ok()) check_failed(__FILE__, __LINE__, "MSA launch", status.message);
}

}  // namespace

const char* name_of(StepPart part) {
  switch (part) {
    case StepPart::kNorm:
      return "norms";
    case StepPart::kProjection:
      return "q/k/v product";
    case StepPart::kStore:
      return "rotary + store";
    case StepPart::kIndex:
      return "index";
    case StepPart::kAttend:
      return "sparse attention";
    case StepPart::kDense:
      return "dense attention";
    case StepPart::kOutput:
      return "output product";
    case StepPart::kRouter:
      return "router";
    case StepPart::kExperts:
      return "experts";
    case StepPart::kHead:
      return "vocabulary";
    case StepPart::kExchange:
      return "exchange + norm";
    case StepPart::kOthers:
      return "other ranks";
    case StepPart::kEnd:
      return "end";
  }
  return "?";
}

namespace {

void begin(const StepObserver& observer, StepPart part, int layer, cudaStream_t stream) {
  if (observer) observer(part, layer, stream);
}

// Rows of a bf16 matrix on the device, as floats at the end of a list.
void append_rows(const Bf16* matrix, int64_t cols, std::span<const int32_t> rows, cudaStream_t stream,
                 std::vector<float>& to) {
  std::vector<BFloat16> row(cols);
  for (const int32_t r : rows) {
    SPARROW_CUDA(
        cudaMemcpyAsync(row.data(), matrix + r * cols, cols * sizeof(Bf16), cudaMemcpyDeviceToHost, stream));
    SPARROW_CUDA(cudaStreamSynchronize(stream));
    for (const BFloat16 value : row) to.push_back(to_float(value));
  }
}

template <typename T>
std::vector<T>& list_of(std::vector<std::vector<T>>& lists, int layer) {
  if (lists.size() <= static_cast<size_t>(layer)) lists.resize(layer + 1);
  return lists[layer];
}

}  // namespace

CudaTextModel::CudaTextModel(std::unique_ptr<State> state) : state_(std::move(state)) {}
CudaTextModel::~CudaTextModel() = default;

Result<std::unique_ptr<CudaTextModel>> CudaTextModel::create(const ModelConfig& config,
                                                             const DeviceWeights& weights,
                                                             const GpuStepLimits& limits, const Grid& grid,
                                                             RankExchange* exchange) {
  SPARROW_CHECK((exchange != nullptr) == (grid.world() > 1));
  auto state = std::make_unique<State>(config, weights, limits);
  state->gemm = SPARROW_TRY(ops::cuda::Gemm::create(limits.batch_invariant));

  const RankShape rank = rank_shape(weights, grid);
  const RotaryFrequencies rotary = rotary_frequencies(config.rope);
  const msa::gpu::PlanConfig plan = attention_plan(config, rank, limits, rotary);
  int64_t plan_bytes = 0;
  SPARROW_TRY(from_msa(msa::gpu::Plan::workspace_bytes(plan, &plan_bytes)));

  Arena counted;
  lay_out_step<Bf16>(counted, config, rank, limits, plan_bytes);
  state->memory = SPARROW_TRY(DeviceBuffer::allocate(counted.used()));
  Arena arena(state->memory.data());
  state->act = lay_out_step<Bf16>(arena, config, rank, limits, plan_bytes);
  state->exchange = exchange;
  if (exchange != nullptr) {
    state->act.normed = exchange->buffers().normed;
    state->act.delta = exchange->buffers().delta;
    state->act.sums[0] = exchange->buffers().sums;
  }
  state->gemm->set_workspace(state->act.products, state->act.expanded);
  SPARROW_CUDA(cudaMemset(state->memory.data(), 0, state->memory.bytes()));
  SPARROW_TRY(from_msa(msa::gpu::Plan::create(plan, &state->plan, state->act.attention)));
  for (size_t i = 0; i < weights.layers.size(); ++i)
    if (const DeviceLayer& layer = weights.layers[i]; layer.num_experts > 0)
      ops::cuda::split_router(layer.router, state->act.router_parts[i],
                              int64_t{config.num_experts} * config.hidden_size, nullptr);
  SPARROW_CUDA(cudaDeviceSynchronize());
  return std::unique_ptr<CudaTextModel>(new CudaTextModel(std::move(state)));
}

void CudaTextModel::State::project(const ops::cuda::DeviceMatrix& w, int rows, cudaStream_t stream) const {
  if (const ops::cuda::E4m3Rows x = rounded_for(w, rows); x.codes != nullptr)
    return gemm->run(w, rows, x, act.qkv, stream);
  gemm->run(w, rows, act.normed, act.qkv, stream);
}

// Each rank lists the best of its share of the blocks for all index heads, and selects for its own from the
// lists of all.
void CudaTextModel::State::select_shared(int rows, const CudaKvCache& cache, int layer, cudaStream_t stream,
                                         const StepObserver& observer) const {
  static_assert(ops::cuda::kListWords == msa::gpu::kCandidates);
  begin(observer, StepPart::kIndex, layer, stream);
  check_msa(plan->candidates({.q = act.index_q,
                              .k_pages = cache.index_pages(layer),
                              .num_blocks = cache.shape().num_blocks,
                              .candidates = act.candidates},
                             stream));
  exchange_lists(rows, layer, stream, observer);
  begin(observer, StepPart::kIndex, layer, stream);
  check_msa(plan->select({.candidates = exchange->buffers().lists, .selected = act.selected}, stream));
}

void CudaTextModel::State::output(const DeviceLayer& w, int rows, cudaStream_t stream) const {
  if (limits.batch_invariant)
    return gemm->run(w.o, rows, act.attended, tree(output_parts(config, weights.query_heads)), stream);
  const ops::cuda::E4m3Rows x = rounded_for(w.o, rows);
  if (x.codes == nullptr) return gemm->run(w.o, rows, act.attended, act.delta, stream);
  ops::cuda::quantise_rows({.x = act.attended, .out = x, .rows = rows, .columns = w.o.cols}, stream);
  gemm->run(w.o, rows, x, act.delta, stream);
}

void CudaTextModel::State::attention(const DeviceBatch& batch, const CudaKvCache& cache, int layer,
                                     cudaStream_t stream, const StepObserver& observer) {
  const DeviceLayer& w = weights.layers[layer];
  const bool sparse = config.layer_is_sparse[layer];
  const int rows = batch.num_tokens;
  const bool shares_index = sparse && batch.step.shares_index;
  const ops::cuda::DeviceMatrix& qkv = shares_index ? w.all_qkv : w.qkv;
  begin(observer, StepPart::kProjection, layer, stream);
  project(qkv, rows, stream);

  begin(observer, StepPart::kStore, layer, stream);
  const int64_t q_dim = int64_t{weights.query_heads} * config.head_dim;
  const int64_t kv_dim = int64_t{weights.kv_heads} * config.head_dim;
  const auto part = [&](int64_t first) { return msa::gpu::StoreArgs::Rows{act.qkv + first, qkv.rows}; };
  msa::gpu::StoreArgs store{.q = part(0),
                            .k = part(q_dim),
                            .v = part(q_dim + kv_dim),
                            .q_norm = w.q_norm,
                            .k_norm = w.k_norm,
                            .eps = config.rms_norm_eps,
                            .slots = batch.slots,
                            .kv_scales = cache.kv_scales(layer),
                            .q_out = act.q,
                            .kv_pages = cache.kv_pages(layer)};
  if (sparse) {
    store.index_k = part(q_dim + 2 * kv_dim);
    store.index_q = part(q_dim + 2 * kv_dim + config.head_dim);
    store.index_q_norm = w.index_q_norm;
    store.index_k_norm = w.index_k_norm;
    store.index_q_out = act.index_q;
    store.index_pages = cache.index_pages(layer);
  }
  const int num_blocks = cache.shape().num_blocks;
  if (sparse && !shares_index && !observer) {  // who observes parts gets them one by one
    check_msa(plan->sparse(
        {.store = store, .num_blocks = num_blocks, .selected = act.selected, .out = act.attended}, stream));
    return output(w, rows, stream);
  }
  check_msa(plan->store(store, stream));

  msa::gpu::AttendArgs attend{.q = act.q,
                              .kv_pages = cache.kv_pages(layer),
                              .num_blocks = num_blocks,
                              .kv_scales = cache.kv_scales(layer),
                              .out = act.attended};
  if (shares_index) {
    select_shared(rows, cache, layer, stream, observer);
  } else if (sparse) {
    begin(observer, StepPart::kIndex, layer, stream);
    check_msa(plan->index({.q = act.index_q,
                           .k_pages = cache.index_pages(layer),
                           .num_blocks = num_blocks,
                           .selected = act.selected},
                          stream));
  }
  if (sparse) {
    begin(observer, StepPart::kAttend, layer, stream);
    attend.selected = act.selected;
    check_msa(plan->attend(attend, stream));
  } else {
    begin(observer, StepPart::kDense, layer, stream);
    check_msa(plan->dense(attend, stream));
  }
  begin(observer, StepPart::kOutput, layer, stream);
  output(w, rows, stream);
}

void CudaTextModel::State::route(const DeviceBatch& batch, int layer, cudaStream_t stream,
                                 const StepObserver& observer) {
  const DeviceLayer& w = weights.layers[layer];
  begin(observer, StepPart::kRouter, layer, stream);
  ops::cuda::RealRows real{.count = batch.num_rows};
  for (size_t g = 1; g < batch.group_rows.size(); ++g)
    real.first_row[real.groups++] = real.first_row[g - 1] + batch.group_rows[g - 1];
  if (!norm_in_router(w, batch.num_tokens))
    return ops::cuda::route(router_shape(config),
                            {.x = act.normed,
                             .router = w.router,
                             .parts = act.router_parts[layer],
                             .bias = w.router_bias,
                             .ids = act.expert_ids,
                             .weights = act.expert_weights,
                             .workspace = act.router,
                             .rows = feed_forward_rows(batch, layer),
                             .batch_invariant = limits.batch_invariant,
                             .real = real,
                             .wanted = {weights.experts.first, weights.experts.count}},
                            stream);
  ops::cuda::norm_route(router_shape(config),
                        {.residual = act.residual,
                         .delta = act.delta,
                         .norm_weight = w.post_attention_norm,
                         .eps = config.rms_norm_eps,
                         .residual_out = act.next_residual,
                         .x = act.normed,
                         .router = w.router,
                         .bias = w.router_bias,
                         .ids = act.expert_ids,
                         .weights = act.expert_weights,
                         .workspace = act.router,
                         .real = real},
                        stream);
  std::swap(act.residual, act.next_residual);
}

void CudaTextModel::State::experts(int layer, int rows, cudaStream_t stream) {
  const DeviceLayer& w = weights.layers[layer];
  ops::cuda::MoeArgs args{.x = act.normed,
                          .ids = act.expert_ids,
                          .weights = act.expert_weights,
                          .alpha = config.swiglu_alpha,
                          .limit = config.swiglu_limit,
                          .beta = config.swiglu_beta,
                          .scaling = config.routed_scaling_factor,
                          .workspace = act.experts,
                          .rows = rows,
                          .batch_invariant = limits.batch_invariant,
                          .shared_gpu = exchange && exchange->shares_gpu()};
  if (w.shared_inter > 0) {  // apart from whole experts
    args.rounded = rounded_for(w.shared_gate_up, rows);
    args.gate_up = w.shared_gate_up, args.down = w.shared_down, args.out = act.shared;
    ops::cuda::moe(expert_shape(config, 0, w.shared_inter), args, stream);
    args.shared = act.shared;
  }
  args.rounded = rounded_for(w.gate_up, rows);
  args.gate_up = w.gate_up, args.down = w.down, args.out = act.delta;
  const ops::cuda::MoeShape shape = expert_shape(config, w.num_experts, w.inter);
  if (!limits.batch_invariant) return ops::cuda::moe(shape, args, stream);
  ops::cuda::moe_in_parts(shape, args, tree(expert_parts(config, w.num_experts, w.inter, w.shared_inter)),
                          stream);
}

void CudaTextModel::State::feed_forward(const DeviceBatch& batch, int layer, cudaStream_t stream,
                                        const StepObserver& observer) {
  const DeviceLayer& w = weights.layers[layer];
  if (!norm_in_router(w, batch.num_tokens)) {
    begin(observer, StepPart::kNorm, layer, stream);
    post_attention_norm(batch, layer, stream, observer);
  }
  if (w.num_experts > 0) route(batch, layer, stream, observer);
  begin(observer, StepPart::kExperts, layer, stream);
  experts(layer, feed_forward_rows(batch, layer), stream);
}

void CudaTextModel::State::forward(const DeviceBatch& batch, const CudaKvCache& cache, cudaStream_t stream,
                                   const StepObserver& observer, std::span<const int32_t> captured_rows,
                                   Capture* capture) {
  const int rows = batch.num_tokens, hidden = config.hidden_size;
  if (rows == 0) return;
  SPARROW_CHECK_LE(rows, limits.max_step_tokens);
  SPARROW_CHECK(!batch.step.shares_index || is_group());
  // Of many rows each rank has some of the residual alone.
  SPARROW_CHECK(
      capture == nullptr || !is_group() ||
      !exchange->is_many(batch.group_rows.empty() ? std::span(&rows, 1) : std::span(batch.group_rows)));
  Bf16* const residual = act.residual;
  check_msa(plan->prepare(batch.step, stream));
  begin(observer, StepPart::kNorm, 0, stream);
  embed(batch, stream);
  for (int layer = 0; layer < config.num_layers; ++layer) {
    if (layer > 0) begin(observer, StepPart::kNorm, layer, stream);
    input_norm(batch, layer, stream, observer);
    if (capture) append_rows(act.residual, hidden, captured_rows, stream, list_of(capture->hidden, layer));
    attention(batch, cache, layer, stream, observer);
    if (capture && config.layer_is_sparse[layer]) {
      const int64_t cols = int64_t{weights.kv_heads} * config.top_k_blocks;
      std::vector<int32_t>& to = list_of(capture->selected_blocks, layer);
      for (const int32_t row : captured_rows) {
        to.resize(to.size() + cols);
        SPARROW_CUDA(cudaMemcpyAsync(to.data() + to.size() - cols, act.selected + row * cols,
                                     cols * sizeof(int32_t), cudaMemcpyDeviceToHost, stream));
        SPARROW_CUDA(cudaStreamSynchronize(stream));
      }
    }
    feed_forward(batch, layer, stream, observer);
  }
  if (batch.num_logits > 0) {
    begin(observer, StepPart::kHead, config.num_layers, stream);
    final_norm(batch, stream, observer);
    head(0, std::min(batch.num_logits, limits.max_logits), stream, observer);
    if (capture) {
      std::vector<int32_t> all(batch.num_logits);
      for (int i = 0; i < batch.num_logits; ++i) all[i] = i;
      append_rows(act.normed, hidden, all, stream, list_of(capture->hidden, config.num_layers));
    }
  }
  begin(observer, StepPart::kEnd, config.num_layers, stream);
  // The residual may have ended in the smaller of its two places.
  if (act.residual != residual) std::swap(act.residual, act.next_residual);
}

void CudaTextModel::forward(const DeviceBatch& batch, const CudaKvCache& cache, cudaStream_t stream,
                            const StepObserver& observer) {
  state_->forward(batch, cache, stream, observer, {}, nullptr);
}

void CudaTextModel::forward_captured(const DeviceBatch& batch, const CudaKvCache& cache, cudaStream_t stream,
                                     std::span<const int32_t> rows, Capture& capture) {
  state_->forward(batch, cache, stream, {}, rows, &capture);
}

void CudaTextModel::compute_logits(int first, int count, cudaStream_t stream) {
  SPARROW_CHECK_LE(count, state_->limits.max_logits);
  state_->head(first, count, stream, {});
}

const int32_t* CudaTextModel::expert_ids() const {
  return state_->act.expert_ids;
}

const void* CudaTextModel::logit_inputs() const {
  return state_->act.normed;
}

const float* CudaTextModel::logits() const {
  return state_->has_all_logits() ? state_->exchange->buffers().logits : state_->act.logits;
}

int CudaTextModel::logit_columns() const {
  return state_->has_all_logits() ? state_->config.vocab_size : state_->weights.vocab_rows;
}

void CudaTextModel::hand_out_ids(const int32_t* ids, int count, cudaStream_t stream) {
  if (state_->is_group()) state_->exchange->hand_out_ids(ids, count, stream);
}

const int32_t* CudaTextModel::ids_of_first() const {
  return state_->exchange->buffers().ids;
}

size_t CudaTextModel::workspace_bytes() const {
  return state_->memory.bytes();
}

std::string CudaTextModel::describe() const {
  return state_->plan->describe();
}

}  // namespace sparrow
