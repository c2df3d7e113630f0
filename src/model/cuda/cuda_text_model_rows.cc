// SPDX-License-Identifier: Apache-2.0
// Where rows of all ranks come together: embedding, norms, logits.
#include <numeric>

#include "model/cuda/cuda_text_model_state.h"

namespace sparrow {
namespace {

// Tells an observer of an exchange.
RankExchange::Mark marker(const StepObserver& observer, int layer, cudaStream_t stream) {
  if (!observer) return {};
  return [&observer, layer, stream](bool ours) {
    observer(ours ? StepPart::kExchange : StepPart::kOthers, layer, stream);
  };
}

void round_rows(const ops::cuda::E4m3Rows& to, const Bf16* x, int rows, int columns, cudaStream_t stream) {
  if (to.codes != nullptr)
    ops::cuda::quantise_rows({.x = x, .out = to, .rows = rows, .columns = columns}, stream);
}

// Of each group.
std::vector<int> rows_of(const DeviceBatch& batch) {
  return batch.group_rows.empty() ? std::vector{batch.num_tokens} : batch.group_rows;
}
std::vector<int> logits_of(const DeviceBatch& batch) {
  return batch.group_logits.empty() ? std::vector{batch.num_logits} : batch.group_logits;
}

}  // namespace

int CudaTextModel::State::feed_forward_rows(const DeviceBatch& batch, int layer) const {
  if (!has_experts(layer)) return batch.num_tokens;
  const std::vector<int> rows = rows_of(batch);
  return std::accumulate(rows.begin(), rows.end(), 0);
}

void CudaTextModel::State::embed(const DeviceBatch& batch, cudaStream_t stream) const {
  // Of several ranks one has the row, and the others zeros: the embedding is their sum, which the first norm
  // makes.
  if (is_group() && limits.batch_invariant)
    return ops::cuda::embed_part({.ids = batch.ids,
                                  .table = weights.embed,
                                  .out = act.sums[0],
                                  .rows = batch.num_tokens,
                                  .hidden = config.hidden_size,
                                  .first_vocab_row = weights.first_vocab_row,
                                  .vocab_rows = weights.vocab_rows,
                                  .features = batch.features,
                                  .feature_rows = batch.feature_rows},
                                 stream);
  ops::cuda::embed({.ids = batch.ids,
                    .table = weights.embed,
                    .out = is_group() ? act.delta : act.residual,
                    .rows = batch.num_tokens,
                    .hidden = config.hidden_size,
                    .first_vocab_row = weights.first_vocab_row,
                    .vocab_rows = weights.vocab_rows,
                    .features = batch.features,
                    .feature_rows = batch.feature_rows},
                   stream);
}

void CudaTextModel::State::sum_norm(const Bf16* weight, int rows, cudaStream_t stream) const {
  ops::cuda::sum_norm({.sums = act.sums[0],
                       .residual = act.residual,
                       .residual_out = act.residual,
                       .weight = weight,
                       .out = act.normed,
                       .rows = rows,
                       .hidden = config.hidden_size,
                       .eps = config.rms_norm_eps},
                      stream);
}

void CudaTextModel::State::input_norm(const DeviceBatch& batch, int layer, cudaStream_t stream,
                                      const StepObserver& observer) const {
  using Sum = RankExchange::Sum;
  const DeviceLayer& w = weights.layers[layer];
  const int rows = batch.num_tokens;
  const ops::cuda::E4m3Rows rounded = rounded_for(w.qkv, rows);
  if (is_group()) {
    const std::vector<int> group_rows = rows_of(batch);
    exchange->add_norm({.sum = has_experts(layer - 1) ? Sum::kOfAll : Sum::kOfGroup,
                        .step_rows = group_rows,
                        .residual = layer == 0 ? nullptr : act.residual,
                        .residual_out = act.residual,
                        .weight = w.input_norm,
                        .rows = group_rows},
                       stream, marker(observer, layer, stream));
    return round_rows(rounded, act.normed, rows, config.hidden_size, stream);
  }
  Bf16* const out = rounded.codes != nullptr ? nullptr : act.normed;
  if (layer == 0)
    return ops::cuda::rms_norm({.x = act.residual,
                                .weight = w.input_norm,
                                .out = out,
                                .rows = rows,
                                .hidden = config.hidden_size,
                                .eps = config.rms_norm_eps,
                                .rounded = rounded},
                               stream);
  if (limits.batch_invariant) return sum_norm(w.input_norm, rows, stream);
  ops::cuda::add_rms_norm({.residual = act.residual,
                           .delta = act.delta,
                           .weight = w.input_norm,
                           .out = out,
                           .rows = rows,
                           .hidden = config.hidden_size,
                           .eps = config.rms_norm_eps,
                           .rounded = rounded},
                          stream);
}

void CudaTextModel::State::post_attention_norm(const DeviceBatch& batch, int layer, cudaStream_t stream,
                                               const StepObserver& observer) const {
  using Sum = RankExchange::Sum;
  const DeviceLayer& w = weights.layers[layer];
  const int rows = feed_forward_rows(batch, layer);
  const ops::cuda::E4m3Rows rounded = rounded_for(w.gate_up, rows);
  if (is_group()) {
    const std::vector<int> group_rows = rows_of(batch);
    exchange->add_norm({.sum = has_experts(layer) ? Sum::kOfGroupForAll : Sum::kOfGroup,
                        .step_rows = group_rows,
                        .residual = act.residual,
                        .residual_out = act.residual,
                        .weight = w.post_attention_norm,
                        .rows = group_rows},
                       stream, marker(observer, layer, stream));
    return round_rows(rounded, act.normed, rows, config.hidden_size, stream);
  }
  if (limits.batch_invariant) return sum_norm(w.post_attention_norm, rows, stream);
  ops::cuda::add_rms_norm({.residual = act.residual,
                           .delta = act.delta,
                           .weight = w.post_attention_norm,
                           .out = act.normed,
                           .rows = rows,
                           .hidden = config.hidden_size,
                           .eps = config.rms_norm_eps,
                           .rounded = rounded},
                          stream);
}

void CudaTextModel::State::final_norm(const DeviceBatch& batch, cudaStream_t stream,
                                      const StepObserver& observer) const {
  using Sum = RankExchange::Sum;
  if (is_group()) {
    const std::vector<int> group_rows = rows_of(batch), group_logits = logits_of(batch);
    return exchange->add_norm({.sum = has_experts(config.num_layers - 1) ? Sum::kOfAll : Sum::kOfGroup,
                               .step_rows = group_rows,
                               .residual = act.residual,
                               .weight = weights.final_norm,
                               .rows_wanted = batch.logit_rows,
                               .rows = group_logits},
                              stream, marker(observer, config.num_layers, stream));
  }
  if (limits.batch_invariant)
    return ops::cuda::sum_norm({.sums = act.sums[0],
                                .residual = act.residual,
                                .row_list = batch.logit_rows,
                                .weight = weights.final_norm,
                                .out = act.normed,
                                .rows = batch.num_logits,
                                .hidden = config.hidden_size,
                                .eps = config.rms_norm_eps},
                               stream);
  ops::cuda::final_norm({.residual = act.residual,
                         .delta = act.delta,
                         .logit_rows = batch.logit_rows,
                         .weight = weights.final_norm,
                         .out = act.normed,
                         .rows = batch.num_logits,
                         .hidden = config.hidden_size,
                         .eps = config.rms_norm_eps},
                        stream);
}

void CudaTextModel::State::exchange_lists(int rows, int layer, cudaStream_t stream,
                                          const StepObserver& observer) const {
  exchange->exchange_lists(act.candidates, rows, stream, marker(observer, layer, stream));
}

void CudaTextModel::State::head(int first, int count, cudaStream_t stream, const StepObserver& observer) {
  if (observer) observer(StepPart::kHead, config.num_layers, stream);
  gemm->run(weights.head, count, act.normed + int64_t{first} * config.hidden_size, act.logits, stream);
  if (is_group())
    exchange->collect_logits(act.logits, count, weights.vocab_rows, stream,
                             marker(observer, config.num_layers, stream));
}

}  // namespace sparrow
