// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>

#include "checkpoint/kv_scales.h"
#include "device/cuda/check.h"
#include "engine/cuda/cuda_runner_state.h"

namespace sparrow {
namespace {

constexpr double kGiB = 1024.0 * 1024 * 1024;
constexpr size_t kGraphBytes = size_t{512} << 20;  // set aside for what CUDA keeps of captured steps
constexpr int kMinLogitRows = 256;

// A decode step runs in the smallest graph that holds it. Padding rows cost little, but not nothing: steps of
// about an eighth.
constexpr std::array kBatchLadder = {1,   2,   3,   4,   5,   6,   7,   8,   10,  12, 14,
                                     16,  20,  24,  28,  32,  40,  48,  56,  64,  80, 96,
                                     112, 128, 160, 192, 224, 256, 320, 384, 448, 512};
// Longest contexts in blocks: kernels divide their work by what the table could hold.
constexpr std::array kColumnLadder = {16, 64, 256, 1024, 4096, 16384};

template <size_t N>
int next_rung(const std::array<int, N>& ladder, int value, int most) {
  const auto found = std::lower_bound(ladder.begin(), ladder.end(), value);
  return found == ladder.end() ? most : std::min(*found, most);
}

}  // namespace

bool has_usable_gpu() {
  return use_device(0).ok();
}

CudaRunner::CudaRunner(std::unique_ptr<State> state) : state_(std::move(state)) {}
CudaRunner::~CudaRunner() {
  if (state_) SPARROW_CUDA(cudaStreamSynchronize(state_->stream.get()));
}

Result<int64_t> CudaRunner::State::num_blocks(const KvCacheShape& one_block) const {
  size_t free = 0, total = 0;
  SPARROW_CUDA(cudaMemGetInfo(&free, &total));
  const double block_bytes = static_cast<double>(one_block.block_bytes());
  const double used = static_cast<double>(total - free);
  const double budget = static_cast<double>(total) * options.gpu.memory_utilization - used -
                        static_cast<double>(options.gpu.graphs ? kGraphBytes : 0);
  const auto fits = static_cast<int64_t>(std::max(budget, 0.0) / block_bytes);
  const int64_t wanted = options.cache_tokens > 0 ? blocks_for_tokens(options.cache_tokens) : fits;
  if (wanted >= 1 && wanted <= fits) return wanted;
  if (options.cache_tokens > 0)
    return Error{
        Errc::kInvalidArgument,
        strf("a cache of {} tokens needs {:.1f} GiB and {:.1f} GiB of {}'s memory are left for it: use a "
             "smaller cache, or more GPUs",
             options.cache_tokens, static_cast<double>(wanted) * block_bytes / kGiB,
             std::max(budget, 0.0) / kGiB, device.name)};
  return Error{
      Errc::kInvalidArgument,
      strf("no memory of {} is left for the cache: {:.1f} of {:.1f} GiB are taken and "
           "--gpu-memory-utilization is {}: raise it, or use more GPUs",
           device.name, used / kGiB, static_cast<double>(total) / kGiB, options.gpu.memory_utilization)};
}

Result<std::unique_ptr<CudaRunner>> CudaRunner::create(const ModelConfig& config, const Weights& weights,
                                                       const RunnerOptions& options) {
  const GpuOptions& gpu = options.gpu;
  const ParallelConfig parallel{.size = gpu.parallel_size, .rank = gpu.rank};
  SPARROW_TRY(validate(config, parallel));
  DeviceInfo device = SPARROW_TRY(use_device(0));
  auto state = std::make_unique<State>(config, options, std::move(device));
  state->weights = gpu.dummy_seed ? SPARROW_TRY(dummy_device_weights(config, parallel, *gpu.dummy_seed))
                                  : SPARROW_TRY(load_device_weights(config, parallel, weights, gpu.progress));

  const int64_t max_context = options.max_context > 0 ? options.max_context : config.max_positions;
  state->max_columns = static_cast<int>(blocks_for_tokens(max_context));
  state->max_logits = std::min(std::max(options.max_sequences, kMinLogitRows), options.max_batch_tokens);
  state->model = SPARROW_TRY(CudaTextModel::create(config, state->weights,
                                                   {.max_tokens = options.max_batch_tokens,
                                                    .max_sequences = options.max_sequences,
                                                    .max_logits = state->max_logits,
                                                    .max_context = max_context,
                                                    .kv_dtype = gpu.kv_dtype,
                                                    .batch_invariant = gpu.batch_invariant}));
  state->model->tune(state->stream.get());
  state->upload =
      SPARROW_TRY(StepUpload::create(options.max_batch_tokens, options.max_sequences, state->max_columns));

  KvCacheShape shape{.num_blocks = 1,
                     .kv_heads = state->weights.kv_heads,
                     .head_dim = config.head_dim,
                     .dtype = gpu.kv_dtype,
                     .index_dtype = DType::kBF16,
                     .layer_is_sparse = config.layer_is_sparse};
  shape.num_blocks = static_cast<int>(SPARROW_TRY(state->num_blocks(shape)));
  if (gpu.kv_dtype != DType::kBF16 && !gpu.dummy_seed)
    state->kv_scales = kv_scale_table(weights.layers, shape.kv_heads);
  state->cache.emplace(SPARROW_TRY(CudaKvCache::create(shape, state->kv_scales)));
  return std::unique_ptr<CudaRunner>(new CudaRunner(std::move(state)));
}

EngineInfo CudaRunner::info() const {
  const State& s = *state_;
  const KvCacheShape& shape = s.cache->shape();
  std::vector<std::string> warnings;
  if (s.options.gpu.kv_dtype != DType::kBF16 && s.kv_scales.empty())
    warnings.push_back("the checkpoint has no scales for an fp8 cache: 1.0 is used");
  return {.device = s.device.name,
          .kernels = s.options.gpu.batch_invariant ? "sm_90a batch-invariant" : "sm_90a",
          .threads = 1,
          .weight_bytes = s.weights.memory.bytes(),
          .workspace_bytes = s.model->workspace_bytes() + s.upload->device_bytes(),
          .device_bytes = s.device.total_bytes,
          .cache_bytes = s.cache->bytes(),
          .num_blocks = shape.num_blocks,
          .cache_tokens = int64_t{shape.num_blocks} * kBlockTokens,
          .warnings = std::move(warnings)};
}

void CudaRunner::copy_blocks(std::span<const BlockCopy> copies) {
  if (!copies.empty()) state_->cache->copy_blocks(copies, state_->stream.get());
}

void CudaRunner::State::round_up(StepShape& shape) const {
  shape.decodes = next_rung(kBatchLadder, shape.decodes, options.max_sequences);
  shape.table_columns = next_rung(kColumnLadder, shape.table_columns, max_columns);
  shape.logits = shape.decodes;
}

const Graph& CudaRunner::State::graph_of(const StepShape& shape) {
  Graph& graph = graphs[{shape.decodes, shape.table_columns}];
  if (graph.empty()) {
    const DeviceBatch batch = upload->describe(shape);
    // Run once as it is: what is loaded or chosen at a first launch must not be met inside a capture.
    model->forward(batch, *cache, stream.get());
    graph = Graph::capture(stream, [&] { model->forward(batch, *cache, stream.get()); });
  }
  return graph;
}

void CudaRunner::forward(const Batch& batch, Capture* capture) {
  State& s = *state_;
  const cudaStream_t stream = s.stream.get();
  s.wanted_rows = batch.logit_rows;
  s.first_row = 0;
  StepShape shape = StepUpload::shape_of(batch);
  s.replayed = s.options.gpu.graphs && !capture && shape.prefills == 0 && shape.logits > 0;
  if (!s.replayed) {
    const DeviceBatch device_batch = s.upload->upload(batch, shape, s.drawn_ids(batch), stream);
    if (capture)
      s.model->forward_captured(device_batch, *s.cache, stream, batch.logit_rows, *capture);
    else
      s.model->forward(device_batch, *s.cache, stream);
    return;
  }
  s.round_up(shape);
  Batch all_rows = batch;
  all_rows.logit_rows.resize(batch.ids.size());
  for (size_t i = 0; i < all_rows.logit_rows.size(); ++i) all_rows.logit_rows[i] = static_cast<int32_t>(i);
  s.upload->upload(all_rows, shape, s.drawn_ids(batch), stream);
  s.graph_of(shape).launch(stream);
}

int64_t CudaRunner::State::window_of(int64_t row) {
  if (replayed) return 0;
  const int64_t window = row / max_logits * max_logits;
  if (window != first_row) {
    const int64_t count = std::min<int64_t>(max_logits, static_cast<int64_t>(wanted_rows.size()) - window);
    model->compute_logits(static_cast<int>(window), static_cast<int>(count), stream.get());
    first_row = window;
  }
  return window;
}

template <typename Row, typename Use>
void CudaRunner::State::for_each_window(std::span<const Row> rows, const Use& use) {
  std::vector<Row> part;
  for (size_t i = 0; i < rows.size(); i += part.size()) {
    const int64_t window = window_of(rows[i].row);
    part.clear();
    for (size_t j = i; j < rows.size(); ++j) {
      if (!replayed && rows[j].row / max_logits * max_logits != window) break;
      part.push_back(rows[j]);
      part.back().row = logits_row(rows[j].row);
    }
    use(part, i + part.size() == rows.size());
  }
}

void CudaRunner::start_draws(std::span<const DrawRequest> draws) {
  State& s = *state_;
  std::vector<Draw>& early = s.early_draws.emplace_back();
  if (draws.empty()) s.sampler.start(s.logits(), {}, s.stream.get());
  s.for_each_window(draws, [&](std::span<const DrawRequest> part, bool last) {
    s.sampler.start(s.logits(), part, s.stream.get());
    if (last) return;
    // The next window takes the place of this one's logits.
    std::vector<Draw> drawn = s.sampler.finish();
    std::move(drawn.begin(), drawn.end(), std::back_inserter(early));
  });
}

std::vector<Draw> CudaRunner::finish_draws() {
  State& s = *state_;
  std::vector<Draw> all = std::move(s.early_draws.front());
  s.early_draws.pop_front();
  std::vector<Draw> drawn = s.sampler.finish();
  std::move(drawn.begin(), drawn.end(), std::back_inserter(all));
  return all;
}

std::vector<std::optional<TokenLogprobs>> CudaRunner::score(std::span<const PromptRow> rows) {
  State& s = *state_;
  std::vector<std::optional<TokenLogprobs>> all;
  s.for_each_window(rows, [&](std::span<const PromptRow> part, bool) {
    auto scores = s.sampler.score(s.logits(), part, s.stream.get());
    std::move(scores.begin(), scores.end(), std::back_inserter(all));
  });
  return all;
}

Tensor CudaRunner::logits() {
  State& s = *state_;
  const auto rows = static_cast<int64_t>(s.wanted_rows.size());
  const int64_t cols = s.weights.vocab_rows;
  s.host_logits.resize(rows * cols);
  for (int64_t row = 0; row < rows; ++row) {
    s.window_of(row);
    SPARROW_CUDA(cudaMemcpyAsync(s.host_logits.data() + row * cols,
                                 s.model->logits() + s.logits_row(row) * cols, cols * sizeof(float),
                                 cudaMemcpyDeviceToHost, s.stream.get()));
  }
  s.stream.synchronize();
  return Tensor(s.host_logits.data(), DType::kF32, {rows, cols});
}

}  // namespace sparrow
