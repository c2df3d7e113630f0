// SPDX-License-Identifier: Apache-2.0
#include "model/text_model.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <numeric>
#include <utility>

#include "model/sharding.h"

namespace sparrow {

// Every intermediate of a step, taken once from scratch and reused by all layers. Experts see the tokens of
// all groups.
struct TextModel::Activations {
  int64_t tokens, first, all_tokens;     // of this group; of those before it; of all groups
  Tensor residual, normed, delta;        // [tokens, hidden]
  Tensor all_normed;                     // [all tokens, hidden]
  Tensor partial;                        // [all tokens, hidden] f32: this rank's part of delta
  Tensor q, attended;                    // [tokens, query_heads * head_dim]
  Tensor k, v;                           // [tokens, kv_heads * head_dim]
  Tensor index_q;                        // [tokens, the group's index heads * head_dim]
  Tensor index_k;                        // [tokens, head_dim]
  std::span<const int64_t> index_slots;  // [tokens] among this rank's index keys; -1: another's
  Tensor selected;                       // [tokens, kv_heads * top_k] i32
  Tensor expert_ids, expert_weights;     // [all tokens, experts_per_token] i32, f32
  ops::Rotary rotary;                    // [tokens, rotary_dim / 2]
  msa::Plan plan;

  Activations(Scratch::Scope& scratch, const ModelConfig& config, const Grid& grid,
              const msa::HeadShape& heads, std::span<const int64_t> group_tokens) {
    const auto group = group_tokens.begin() + grid.group();
    tokens = *group;
    first = std::accumulate(group_tokens.begin(), group, int64_t{0});
    all_tokens = std::accumulate(group, group_tokens.end(), first);
    const auto take = [&](int64_t rows, int64_t cols, DType dtype) {
      return Tensor(scratch.take<std::byte>(rows * cols * static_cast<int64_t>(size_of(dtype))), dtype,
                    {rows, cols});
    };
    const auto matrix = [&](int64_t cols, DType dtype) { return take(tokens, cols, dtype); };
    const DType type = config.dtype;
    const int64_t kv_dim = int64_t{heads.kv_heads} * config.head_dim;
    residual = matrix(config.hidden_size, type);
    normed = matrix(config.hidden_size, type);
    delta = matrix(config.hidden_size, type);
    // One rank rounds its sums as it stores them; several add them up first.
    partial = grid.world() == 1 ? delta : take(all_tokens, config.hidden_size, DType::kF32);
    all_normed = grid.dp == 1 ? normed : take(all_tokens, config.hidden_size, type);
    q = matrix(int64_t{heads.query_heads} * config.head_dim, type);
    attended = matrix(q.cols(), type);
    k = matrix(kv_dim, type);
    v = matrix(kv_dim, type);
    index_q = matrix(int64_t{config.num_kv_heads} * config.head_dim, type);
    index_k = matrix(config.head_dim, type);
    selected = matrix(int64_t{heads.kv_heads} * config.top_k_blocks, DType::kI32);
    expert_ids = take(all_tokens, config.experts_per_token, DType::kI32);
    expert_weights = take(all_tokens, config.experts_per_token, DType::kF32);
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

// Where a slot lies among a rank's index keys.
int64_t index_slot(const KvCacheShape& shape, int64_t slot) {
  const auto block = static_cast<BlockId>(slot / kBlockTokens);
  if (!shape.has_index_of(block)) return -1;
  return int64_t{block / shape.index_ranks} * kBlockTokens + slot % kBlockTokens;
}

constexpr uint64_t kHashStart = 0xcbf29ce484222325u;

uint64_t hash_rows(const Tensor& rows, uint64_t hash) {
  const size_t bytes = static_cast<size_t>(rows.cols()) * size_of(rows.dtype);
  for (int64_t r = 0; r < rows.rows(); ++r) {
    const char* row = static_cast<const char*>(rows.rows_at(r, 1).data);
    for (size_t at = 0; at < bytes; at += sizeof(uint32_t)) {
      uint32_t word = 0;
      std::memcpy(&word, row + at, std::min(bytes - at, sizeof(word)));
      hash = (hash ^ word) * 0x100000001b3u;
    }
  }
  return hash;
}

// Puts features in place of the embeddings of placeholders.
void take_features(const Batch& batch, const Tensor& features, const Tensor& residual) {
  const size_t bytes = static_cast<size_t>(residual.cols()) * size_of(residual.dtype);
  for (size_t row = 0; row < batch.feature_rows.size(); ++row) {
    const int32_t from = batch.feature_rows[row];
    if (from < 0) continue;
    std::memcpy(residual.rows_at(static_cast<int64_t>(row), 1).data, features.rows_at(from, 1).data, bytes);
  }
}

msa::Type msa_type(DType dtype) {
  return dtype == DType::kBF16 ? msa::Type::kBF16 : msa::Type::kF32;
}

}  // namespace

TextModel::TextModel(const ModelConfig& config, const Weights& weights, const Grid& grid, RankComms comms)
    : config_(config),
      grid_(grid),
      comms_(std::move(comms)),
      weights_(rank_weights(config, grid, weights, expanded_)),
      parts_(sum_parts(config, grid)),
      heads_{config.num_query_heads / grid.tp, kv_heads_per_rank(config, grid)},
      rotary_(rotary_frequencies(config.rope)) {
  SPARROW_CHECK_EQ(config.head_dim, msa::kHeadDim);
  SPARROW_CHECK_EQ(kBlockTokens, msa::kBlock);
}

KvCacheShape TextModel::cache_shape(int num_blocks) const {
  return {.num_blocks = num_blocks,
          .kv_heads = heads_.kv_heads,
          .head_dim = config_.head_dim,
          .dtype = config_.dtype,
          .layer_is_sparse = config_.layer_is_sparse,
          .index_rank = grid_.tp_rank(),
          .index_ranks = index_ranks(grid_, Device::kCpu)};
}

uint64_t TextModel::forward(Exec& exec, const Batch& batch, const KvCache& cache, const Tensor& logits,
                            std::span<const int64_t> group_tokens, Capture* capture,
                            const Tensor& features) const {
  const int64_t tokens = batch.num_tokens();
  if (group_tokens.empty()) group_tokens = {&tokens, 1};
  SPARROW_CHECK_EQ(static_cast<int>(group_tokens.size()), grid_.dp);
  SPARROW_CHECK_EQ(group_tokens[static_cast<size_t>(grid_.group())], tokens);
  Scratch::Scope scratch(exec.scratch);
  Activations act(scratch, config_, grid_, heads_, group_tokens);
  if (act.all_tokens == 0) return 0;
  act.plan = {.num_requests = batch.num_sequences(),
              .cu_seqlens_q = batch.cu_seqlens_q.data(),
              .seq_lens = batch.seq_lens.data(),
              .block_table = batch.block_table.data(),
              .max_blocks = batch.max_blocks};
  act.index_slots = batch.slots;
  if (grid_.tp > 1) {
    auto* const slots = scratch.take<int64_t>(tokens);
    for (int64_t row = 0; row < tokens; ++row) slots[row] = index_slot(cache.shape(), batch.slots[row]);
    act.index_slots = {slots, static_cast<size_t>(tokens)};
  }
  ops::rotary_table(exec, batch.positions, rotary_.inv_freq, rotary_.attention_factor, act.rotary);
  ops::embed(exec, batch.ids, weights_.embed, act.residual);
  take_features(batch, features, act.residual);

  for (int layer = 0; layer < config_.num_layers; ++layer) {
    const LayerWeights& w = weights_.layers[layer];
    if (layer == 0)
      ops::rms_norm(exec, act.residual, w.input_norm, config_.rms_norm_eps, act.normed);
    else
      ops::add_rms_norm(exec, act.residual, act.delta, w.input_norm, config_.rms_norm_eps, act.normed);
    capture_hidden(capture, layer, act.residual, batch.logit_rows);
    if (tokens > 0) attention(exec, batch, cache, layer, act);
    if (config_.layer_is_sparse[layer]) capture_selection(capture, layer, act.selected, batch.logit_rows);
    ops::add_rms_norm(exec, act.residual, act.delta, w.post_attention_norm, config_.rms_norm_eps, act.normed);
    feed_forward(exec, layer, group_tokens, act);
  }
  ops::add(exec, act.residual, act.delta);
  const uint64_t hash = grid_.tp == 1 ? 0 : hash_rows(act.index_k, hash_rows(act.residual, kHashStart));

  // The vocabulary projection is the largest matrix: it runs for the rows that need it only.
  const int64_t wanted = static_cast<int64_t>(batch.logit_rows.size());
  if (wanted == 0) return hash;
  const Tensor rows = act.normed.rows_at(0, wanted), normed = act.delta.rows_at(0, wanted);
  const size_t row_bytes = config_.hidden_size * size_of(config_.dtype);
  for (int64_t i = 0; i < wanted; ++i)
    std::memcpy(rows.rows_at(i, 1).data, act.residual.rows_at(batch.logit_rows[i], 1).data, row_bytes);
  ops::rms_norm(exec, rows, weights_.final_norm, config_.rms_norm_eps, normed);
  for (int32_t i = 0; i < wanted; ++i) capture_hidden(capture, config_.num_layers, normed, std::array{i});
  project_vocabulary(exec, normed, logits);
  return hash;
}

void TextModel::project_vocabulary(Exec& exec, const Tensor& rows, const Tensor& logits) const {
  if (grid_.leads_group()) SPARROW_CHECK_EQ(logits.rows(), rows.rows());
  if (grid_.tp == 1) return ops::linear(exec, rows, std::array{ops::Projection{&weights_.head, logits}});
  Scratch::Scope scratch(exec.scratch);
  const int64_t count = rows.rows(), columns = weights_.head.out();
  const Tensor mine(scratch.take<float>(count * columns), DType::kF32, {count, columns});
  Tensor all;
  if (grid_.leads_group())
    all = Tensor(scratch.take<float>(grid_.tp * mine.numel()), DType::kF32, {grid_.tp, count, columns});
  ops::linear(exec, rows, std::array{ops::Projection{&weights_.head, mine}});
  comms_.group->gather(mine, 0, all);
  if (!grid_.leads_group()) return;
  for (int rank = 0; rank < grid_.tp; ++rank)
    for (int64_t row = 0; row < count; ++row)
      std::memcpy(logits.row<float>(row) + rank * columns, all.row<float>(rank) + row * columns,
                  static_cast<size_t>(columns) * sizeof(float));
}

// delta = my group's rows of the sum of the ranks' partial, rounded once. `partial` has those rows alone or
// those of all groups.
void TextModel::add_up(Exec& exec, Communicator* comm, const Tensor& partial, const Activations& act) const {
  if (grid_.world() == 1) return;
  if (comm->size() > 1) comm->all_reduce(partial);
  const int64_t first = partial.rows() == act.tokens ? 0 : act.first;
  ops::convert(exec, partial.rows_at(first, act.tokens), act.delta);
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
  const int64_t kv_page = 2 * tile * heads_.kv_heads;
  char* kv = static_cast<char*>(cache.kv_pages(layer));
  ops::store_blocks(exec, act.k, kv, kv_page, 2 * tile, batch.slots);
  ops::store_blocks(exec, act.v, kv + tile * size_of(config_.dtype), kv_page, 2 * tile, batch.slots);
  if (!sparse) return;
  ops::head_norm_rope(exec, act.index_q, w.index_q_norm, eps, act.rotary);
  ops::head_norm_rope(exec, act.index_k, w.index_k_norm, eps, act.rotary);
  ops::store_blocks(exec, act.index_k, cache.index_pages(layer), tile, 0, act.index_slots);
}

// Every rank scores its blocks with all index heads of the group and shows the others the best of them; from
// all of those it selects for its own heads. Where the contexts are short no score decides.
void TextModel::select_blocks(Exec& exec, const KvCache& cache, int layer, Activations& act) const {
  const msa::Selection selection = {.top_k = config_.top_k_blocks,
                                    .local_blocks = config_.local_blocks,
                                    .init_blocks = config_.init_blocks};
  msa::IndexParams index = {.type = msa_type(config_.dtype),
                            .heads = {config_.num_query_heads, config_.num_kv_heads},
                            .selection = selection,
                            .q = act.index_q.data,
                            .k_pages = cache.index_pages(layer),
                            .selected = act.selected.as<int32_t>(),
                            .share = {grid_.tp_rank(), grid_.tp}};
  if (grid_.tp == 1) return ops::index_blocks(exec, act.plan, index);
  msa::MergeParams merge = {.selection = selection,
                            .num_shares = 0,
                            .index_heads = config_.num_kv_heads,
                            .first_head = first_kv_head(config_, grid_),
                            .kv_heads = heads_.kv_heads,
                            .selected = act.selected.as<int32_t>()};
  const int32_t longest = *std::max_element(act.plan.seq_lens, act.plan.seq_lens + act.plan.num_requests);
  if (blocks_for_tokens(longest) <= selection.top_k) return ops::merge_candidates(exec, act.plan, merge);

  Scratch::Scope scratch(exec.scratch);
  const int64_t columns = int64_t{config_.num_kv_heads} * selection.top_k, count = act.tokens * columns;
  constexpr int64_t kWords = sizeof(msa::Candidate) / sizeof(int32_t);
  msa::Candidate* const mine = scratch.take<msa::Candidate>(count);
  msa::Candidate* const all = scratch.take<msa::Candidate>(grid_.tp * count);
  index.candidates = mine;
  ops::index_blocks(exec, act.plan, index);
  const std::vector<int64_t> rows(static_cast<size_t>(grid_.tp), act.tokens);
  comms_.group->all_gather_rows(Tensor(mine, DType::kI32, {act.tokens, columns * kWords}), rows,
                                Tensor(all, DType::kI32, {grid_.tp * act.tokens, columns * kWords}));
  merge.num_shares = grid_.tp;
  merge.candidates = all;
  ops::merge_candidates(exec, act.plan, merge);
}

void TextModel::attention(Exec& exec, const Batch& batch, const KvCache& cache, int layer,
                          Activations& act) const {
  project_heads(exec, batch, cache, layer, act);
  const bool sparse = config_.layer_is_sparse[layer];
  if (sparse) select_blocks(exec, cache, layer, act);
  ops::attend(exec, act.plan,
              {.type = msa_type(config_.dtype),
               .heads = heads_,
               .top_k = config_.top_k_blocks,
               .q = act.q.data,
               .kv_pages = cache.kv_pages(layer),
               .selected = sparse ? act.selected.as<int32_t>() : nullptr,
               .out = act.attended.data});
  const Tensor partial = act.partial.rows_at(0, act.tokens);
  ops::linear(exec, act.attended, std::array{ops::Projection{&weights_.layers[layer].o, partial}},
              parts_.heads);
  add_up(exec, comms_.group.get(), partial, act);
}

void TextModel::feed_forward(Exec& exec, int layer, std::span<const int64_t> group_tokens,
                             Activations& act) const {
  const LayerWeights& w = weights_.layers[layer];
  const ops::SwigluParams swiglu{config_.swiglu_alpha, config_.swiglu_limit, config_.swiglu_beta};
  if (!config_.layer_is_moe[layer]) {
    if (act.tokens == 0) return;
    const Tensor partial = act.partial.rows_at(0, act.tokens);
    ops::mlp(exec, act.normed, w.mlp, swiglu, partial, parts_.dense);
    return add_up(exec, comms_.group.get(), partial, act);
  }
  if (grid_.dp > 1) comms_.across->all_gather_rows(act.normed, group_tokens, act.all_normed);
  ops::route(exec, act.all_normed, w.router, w.router_bias, config_.experts_per_token, act.expert_ids,
             act.expert_weights);
  ops::moe(exec, act.all_normed, act.expert_ids, act.expert_weights, w.experts, w.mlp,
           config_.routed_scaling_factor, swiglu, act.partial, parts_.experts);
  add_up(exec, comms_.world.get(), act.partial, act);
}

}  // namespace sparrow
