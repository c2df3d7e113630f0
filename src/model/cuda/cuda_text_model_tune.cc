// SPDX-License-Identifier: Apache-2.0
// The measurements of a CudaTextModel: which algorithm each product runs with, and how fast products can be.
#include <algorithm>
#include <map>
#include <vector>

#include "device/cuda/check.h"
#include "device/cuda/stream.h"
#include "model/cuda/cuda_text_model_state.h"

namespace sparrow {

void CudaTextModel::tune(cudaStream_t stream) {
  State& s = *state_;
  const StepBuffers<Bf16>& a = s.act;
  // Up to 8 matrices of a shape: more than an L2 cache holds of the real model's.
  constexpr size_t kMatrices = 8;
  std::map<std::pair<MatrixFormat, int>, std::vector<ops::cuda::DeviceMatrix>> qkv, output;  // and by rows
  const auto add = [](auto& lists, const ops::cuda::DeviceMatrix& w) {
    if (auto& list = lists[{w.format, w.rows}]; list.size() < kMatrices) list.push_back(w);
  };
  for (const DeviceLayer& layer : s.weights.layers) {
    add(qkv, layer.qkv);
    if (layer.other_index_rows > 0 && s.exchange) add(qkv, layer.all_qkv);
    add(output, layer.o);
  }
  // Denser where decode steps are: padding a product to the next of these costs nothing there.
  std::vector<int> ladder = {1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 512, 1024, 2048, 4096, 8192};
  std::erase_if(ladder, [&](int rows) { return rows >= s.limits.max_step_tokens; });
  ladder.push_back(s.limits.max_step_tokens);
  // Whatever stands in the activations is multiplied: it must be numbers, and not so small that it is free.
  SPARROW_CUDA(
      cudaMemsetAsync(a.normed, 0x3c, int64_t{s.limits.max_step_tokens} * s.config.hidden_size * 2, stream));
  // Steps just below those that round are padded to the first rung that does.
  const auto last_bf16 = std::find_if(ladder.begin(), ladder.end(),
                                      [](int rows) { return rows >= GpuStepLimits::kMinRoundedRows; });
  const auto tune = [&](const auto& weights, int rows, const Bf16* x, Bf16* out) {
    const ops::cuda::E4m3Rows rounded = s.rounded_for(weights.front(), rows);
    if (rounded.codes == nullptr || rows == *last_bf16) s.gemm->tune(weights, rows, x, out, stream);
    if (rounded.codes == nullptr) return;
    ops::cuda::quantise_rows({.x = x, .out = rounded, .rows = rows, .columns = weights.front().cols}, stream);
    s.gemm->tune(weights, rows, rounded, out, stream);
  };
  for (const int rows : ladder) {
    for (const auto& [shape, weights] : qkv) tune(weights, rows, a.normed, a.qkv);
    for (const auto& [shape, weights] : output)
      if (s.limits.batch_invariant)
        s.gemm->tune_parts(weights.front(), output_parts(s.config, s.weights.query_heads));
      else
        tune(weights, rows, a.attended, a.delta);
    if (rows <= s.limits.max_logits)
      s.gemm->tune(std::span(&s.weights.head, 1), rows, a.normed, a.logits, stream);
  }
}

Bytes CudaTextModel::choices() const {
  return state_->gemm->choices();
}

Status CudaTextModel::take_choices(std::span<const std::byte> choices) {
  return state_->gemm->take_choices(choices);
}

double CudaTextModel::measure_product_rate(cudaStream_t stream) {
  constexpr int kSide = 8192;  // what cards are compared by
  constexpr size_t kBytes = sizeof(Bf16) * kSide * kSide;
  const std::byte* weights = state_->weights.memory.data();
  Result<DeviceBuffer> out = DeviceBuffer::allocate(kBytes);
  const auto gemm = ops::cuda::Gemm::create();  // the fastest, whatever the model runs with
  if (!out.ok() || !gemm.ok() || state_->weights.memory.bytes() < 2 * kBytes) return 0;
  gemm.value()->set_workspace(state_->act.products);
  // The model's own numbers: a product of constants draws less power and runs faster than any real one.
  const ops::cuda::DeviceMatrix matrix = ops::cuda::bf16_matrix(weights, kSide, kSide);
  const auto* x = reinterpret_cast<const Bf16*>(weights + kBytes);
  gemm.value()->tune(std::span(&matrix, 1), kSide, x, out->as<Bf16>(), stream);
  Event begin_event(Event::Timing::kOn), end_event(Event::Timing::kOn);
  // Timed after as long as a large step takes: by then a card runs at the clocks that its power limit allows,
  // as that step does.
  constexpr int kWarmRuns = 100, kRuns = 50;
  const auto run = [&](int times) {
    for (int i = 0; i < times; ++i) gemm.value()->run(matrix, kSide, x, out->as<Bf16>(), stream);
  };
  run(kWarmRuns);
  begin_event.record(stream);
  run(kRuns);
  end_event.record(stream);
  end_event.wait();
  const double flops = 2.0 * kSide * kSide * kSide * kRuns;
  return flops / (Event::milliseconds_between(begin_event, end_event) * 1e3);
}

}  // namespace sparrow
