// SPDX-License-Identifier: Apache-2.0
// Where rows of all ranks come together: embedding, norms, logits.
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

}  // namespace

void CudaTextModel::State::embed(const DeviceBatch& batch, cudaStream_t stream) const {
  // Of several ranks one has the row, and the others zeros: the embedding is their sum, which the first norm
  // makes.
  ops::cuda::embed({.ids = batch.ids,
                    .table = weights.embed,
                    .out = is_group() ? act.delta : act.residual,
                    .rows = batch.num_tokens,
                    .hidden = config.hidden_size,
                    .first_vocab_row = weights.first_vocab_row,
                    .vocab_rows = weights.vocab_rows},
                   stream);
}

void CudaTextModel::State::exchanged_norm(const Bf16* residual, const Bf16* weight, int rows,
                                          const ops::cuda::E4m3Rows& rounded, int layer, cudaStream_t stream,
                                          const StepObserver& observer) const {
  exchange->add_norm(
      {.step_rows = rows, .residual = residual, .residual_out = act.residual, .weight = weight, .rows = rows},
      stream, marker(observer, layer, stream));
  if (rounded.codes != nullptr)
    ops::cuda::quantise_rows({.x = act.normed, .out = rounded, .rows = rows, .columns = config.hidden_size},
                             stream);
}

void CudaTextModel::State::input_norm(int layer, int rows, cudaStream_t stream,
                                      const StepObserver& observer) const {
  const DeviceLayer& w = weights.layers[layer];
  const ops::cuda::E4m3Rows rounded = rounded_for(w.qkv, rows);
  if (is_group())
    return exchanged_norm(layer == 0 ? nullptr : act.residual, w.input_norm, rows, rounded, layer, stream,
                          observer);
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

void CudaTextModel::State::post_attention_norm(int layer, int rows, cudaStream_t stream,
                                               const StepObserver& observer) const {
  const DeviceLayer& w = weights.layers[layer];
  const ops::cuda::E4m3Rows rounded = rounded_for(w.gate_up, rows);
  if (is_group())
    return exchanged_norm(act.residual, w.post_attention_norm, rows, rounded, layer, stream, observer);
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
  if (is_group())
    return exchange->add_norm({.step_rows = batch.num_tokens,
                               .residual = act.residual,
                               .weight = weights.final_norm,
                               .rows_wanted = batch.logit_rows,
                               .rows = batch.num_logits},
                              stream, marker(observer, config.num_layers, stream));
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

void CudaTextModel::State::head(int first, int count, cudaStream_t stream, const StepObserver& observer) {
  if (observer) observer(StepPart::kHead, config.num_layers, stream);
  gemm->run(weights.head, count, act.normed + int64_t{first} * config.hidden_size, act.logits, stream);
  if (is_group())
    exchange->collect_logits(act.logits, count, weights.vocab_rows, stream,
                             marker(observer, config.num_layers, stream));
}

}  // namespace sparrow
