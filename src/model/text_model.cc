// SPDX-License-Identifier: Apache-2.0
#include "model/text_model.h"

#include <array>
#include <cstring>

namespace sparrow {

// Every intermediate of a step, taken once from scratch and reused by all layers.
struct TextModel::Activations {
  Tensor residual, normed, delta;     // [tokens, hidden]
  Tensor q, attended;                 // [tokens, query_heads * head_dim]
  Tensor k, v;                        // [tokens, kv_heads * head_dim]
  Tensor index_q;                     // [tokens, kv_heads * head_dim]
  Tensor index_k;                     // [tokens, head_dim]
  Tensor selected;                    // [tokens, kv_heads * top_k] i32
  Tensor expert_ids, expert_weights;  // [tokens, experts_per_token] i32, f32
  ops::Rotary rotary;                 // [tokens, rotary_dim / 2]
  msa::Plan plan;

  Activations(Scratch::Scope& scratch, const ModelConfig& config, int64_t tokens) {
    const auto matrix = [&](int64_t cols, DType dtype) {
      return Tensor(scratch.take<std::byte>(tokens * cols * static_cast<int64_t>(size_of(dtype))), dtype,
                    {tokens, cols});
    };
    const DType type = config.dtype;
    const int64_t kv_dim = int64_t{config.num_kv_heads} * config.head_dim;
    residual = matrix(config.hidden_size, type);
    normed = matrix(config.hidden_size, type);
    delta = matrix(config.hidden_size, type);
    q = matrix(int64_t{config.num_query_heads} * config.head_dim, type);
    attended = matrix(q.cols(), type);
    k = matrix(kv_dim, type);
    v = matrix(kv_dim, type);
    index_q = matrix(kv_dim, type);
    index_k = matrix(config.head_dim, type);
    selected = matrix(int64_t{config.num_kv_heads} * config.top_k_blocks, DType::kI32);
    expert_ids = matrix(config.experts_per_token, DType::kI32);
    expert_weights = matrix(config.experts_per_token, DType::kF32);
    rotary = {matrix(config.rope.rotary_dim / 2, DType::kF32),
              matrix(config.rope.rotary_dim / 2, DType::kF32)};
  }
};

namespace {

void copy_row_as_f32(const Tensor& from, int64_t row, std::vector<float>& to) {
  const size_t start = to.size();
  to.resize(start + from.cols());
  for (int64_t c = 0; c < from.cols(); ++c)
    to[start + c] =
        from.dtype == DType::kF32 ? from.row<float>(row)[c] : to_float(from.row<BFloat16>(row)[c]);
}

void capture_hidden(Capture* capture, int layer, const Tensor& rows, std::span<const int32_t> wanted) {
  if (!capture) return;
  if (capture->hidden.size() <= static_cast<size_t>(layer)) capture->hidden.resize(layer + 1);
  for (const int32_t row : wanted) copy_row_as_f32(rows, row, capture->hidden[layer]);
}

void capture_selection(Capture* capture, int layer, const Tensor& selected, std::span<const int32_t> wanted) {
  if (!capture) return;
  if (capture->selected_blocks.size() <= static_cast<size_t>(layer))
    capture->selected_blocks.resize(layer + 1);
  std::vector<int32_t>& to = capture->selected_blocks[layer];
  for (const int32_t row : wanted) {
    const int32_t* from = selected.row<int32_t>(row);
    to.insert(to.end(), from, from + selected.cols());
  }
}

msa::Type msa_type(DType dtype) {
  return dtype == DType::kBF16 ? msa::Type::kBF16 : msa::Type::kF32;
}

}  // namespace

TextModel::TextModel(const ModelConfig& config, const Weights& weights)
    : config_(config), weights_(weights), rotary_(rotary_frequencies(config.rope)) {
  SPARROW_CHECK_EQ(config.head_dim, msa::kHeadDim);
  SPARROW_CHECK_EQ(kBlockTokens, msa::kBlock);
}

KvCacheShape TextModel::cache_shape(int num_blocks) const {
  return {.num_blocks = num_blocks,
          .kv_heads = config_.num_kv_heads,
          .head_dim = config_.head_dim,
          .dtype = config_.dtype,
          .layer_is_sparse = config_.layer_is_sparse};
}

void TextModel::forward(Exec& exec, const Batch& batch, const KvCache& cache, const Tensor& logits,
                        Capture* capture) const {
  const int64_t tokens = batch.num_tokens();
  if (tokens == 0) return;
  Scratch::Scope scratch(exec.scratch);
  Activations act(scratch, config_, tokens);
  act.plan = {.num_requests = batch.num_sequences(),
              .cu_seqlens_q = batch.cu_seqlens_q.data(),
              .seq_lens = batch.seq_lens.data(),
              .block_table = batch.block_table.data(),
              .max_blocks = batch.max_blocks};
  ops::rotary_table(exec, batch.positions, rotary_.inv_freq, rotary_.attention_factor, act.rotary);
  ops::embed(exec, batch.ids, weights_.embed, act.residual);

  for (int layer = 0; layer < config_.num_layers; ++layer) {
    const LayerWeights& w = weights_.layers[layer];
    if (layer == 0)
      ops::rms_norm(exec, act.residual, w.input_norm, config_.rms_norm_eps, act.normed);
    else
      ops::add_rms_norm(exec, act.residual, act.delta, w.input_norm, config_.rms_norm_eps, act.normed);
    capture_hidden(capture, layer, act.residual, batch.logit_rows);
    attention(exec, batch, cache, layer, act);
    if (config_.layer_is_sparse[layer]) capture_selection(capture, layer, act.selected, batch.logit_rows);
    ops::add_rms_norm(exec, act.residual, act.delta, w.post_attention_norm, config_.rms_norm_eps, act.normed);
    feed_forward(exec, layer, act);
  }
  ops::add(exec, act.residual, act.delta);

  // The vocabulary projection is the largest matrix: it runs for the rows that need it only.
  const int64_t wanted = static_cast<int64_t>(batch.logit_rows.size());
  if (wanted == 0) return;
  SPARROW_CHECK_EQ(logits.rows(), wanted);
  const Tensor rows = act.normed.rows_at(0, wanted), normed = act.delta.rows_at(0, wanted);
  const size_t row_bytes = config_.hidden_size * size_of(config_.dtype);
  for (int64_t i = 0; i < wanted; ++i)
    std::memcpy(rows.rows_at(i, 1).data, act.residual.rows_at(batch.logit_rows[i], 1).data, row_bytes);
  ops::rms_norm(exec, rows, weights_.final_norm, config_.rms_norm_eps, normed);
  for (int32_t i = 0; i < wanted; ++i) capture_hidden(capture, config_.num_layers, normed, std::array{i});
  ops::linear(exec, normed, std::array{ops::Projection{&weights_.head, logits}});
}

void TextModel::project_heads(Exec& exec, const Batch& batch, const KvCache& cache, int layer,
                              Activations& act) const {
  const LayerWeights& w = weights_.layers[layer];
  const float eps = config_.rms_norm_eps;
  const bool sparse = config_.layer_is_sparse[layer];
  const std::array all = {ops::Projection{&w.q, act.q}, ops::Projection{&w.k, act.k},
                          ops::Projection{&w.v, act.v}, ops::Projection{&w.index_q, act.index_q},
                          ops::Projection{&w.index_k, act.index_k}};
  ops::linear(exec, act.normed, std::span(all).first(sparse ? 5 : 3));
  ops::head_norm_rope(exec, act.q, w.q_norm, eps, act.rotary);
  ops::head_norm_rope(exec, act.k, w.k_norm, eps, act.rotary);

  const int64_t tile = int64_t{kBlockTokens} * config_.head_dim;  // elements of a K or V tile
  const int64_t kv_page = 2 * tile * config_.num_kv_heads;
  char* kv = static_cast<char*>(cache.kv_pages(layer));
  ops::store_blocks(exec, act.k, kv, kv_page, 2 * tile, batch.slots);
  ops::store_blocks(exec, act.v, kv + tile * size_of(config_.dtype), kv_page, 2 * tile, batch.slots);
  if (!sparse) return;
  ops::head_norm_rope(exec, act.index_q, w.index_q_norm, eps, act.rotary);
  ops::head_norm_rope(exec, act.index_k, w.index_k_norm, eps, act.rotary);
  ops::store_blocks(exec, act.index_k, cache.index_pages(layer), tile, 0, batch.slots);
}

void TextModel::attention(Exec& exec, const Batch& batch, const KvCache& cache, int layer,
                          Activations& act) const {
  project_heads(exec, batch, cache, layer, act);
  const msa::HeadShape heads{config_.num_query_heads, config_.num_kv_heads};
  const bool sparse = config_.layer_is_sparse[layer];
  if (sparse) {
    ops::index_blocks(exec, act.plan,
                      {.type = msa_type(config_.dtype),
                       .heads = heads,
                       .selection = {.top_k = config_.top_k_blocks,
                                     .local_blocks = config_.local_blocks,
                                     .init_blocks = config_.init_blocks},
                       .q = act.index_q.data,
                       .k_pages = cache.index_pages(layer),
                       .selected = act.selected.as<int32_t>()});
  }
  ops::attend(exec, act.plan,
              {.type = msa_type(config_.dtype),
               .heads = heads,
               .top_k = config_.top_k_blocks,
               .q = act.q.data,
               .kv_pages = cache.kv_pages(layer),
               .selected = sparse ? act.selected.as<int32_t>() : nullptr,
               .out = act.attended.data});
  ops::linear(exec, act.attended, std::array{ops::Projection{&weights_.layers[layer].o, act.delta}});
}

void TextModel::feed_forward(Exec& exec, int layer, Activations& act) const {
  const LayerWeights& w = weights_.layers[layer];
  const ops::SwigluParams swiglu{config_.swiglu_alpha, config_.swiglu_limit, config_.swiglu_beta};
  if (!config_.layer_is_moe[layer]) return ops::mlp(exec, act.normed, w.mlp, swiglu, act.delta);
  ops::route(exec, act.normed, w.router, w.router_bias, config_.experts_per_token, act.expert_ids,
             act.expert_weights);
  ops::moe(exec, act.normed, act.expert_ids, act.expert_weights, w.experts, w.mlp,
           config_.routed_scaling_factor, swiglu, act.delta);
}

}  // namespace sparrow
