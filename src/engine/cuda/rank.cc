// SPDX-License-Identifier: Apache-2.0
#include "engine/cuda/rank.h"

#include <algorithm>
#include <cstring>

#include "checkpoint/kv_scales.h"
#include "device/cuda/check.h"

namespace sparrow {
namespace {

constexpr double kGiB = 1024.0 * 1024 * 1024;
constexpr int kHashedRows = 16;  // of a step

}  // namespace

void Rank::enter() const {
  SPARROW_CUDA(cudaSetDevice(device_.ordinal));
}

Rank::~Rank() {
  enter();
  stream_->synchronize();
}

Result<int64_t> Rank::num_blocks(const KvCacheShape& one_block) const {
  size_t free = 0, total = 0;
  SPARROW_CUDA(cudaMemGetInfo(&free, &total));
  const double block_bytes = static_cast<double>(one_block.block_bytes());
  const double used = static_cast<double>(total - free);
  const double left = static_cast<double>(total) * options_.gpu.memory_utilization - used;
  const double budget = left / (exchange_ ? exchange_->ranks_on_gpu() : 1) -
                        static_cast<double>(options_.gpu.graphs ? kDriverGraphBytes : 0);
  const auto fits = static_cast<int64_t>(std::max(budget, 0.0) / block_bytes);
  const int64_t wanted = options_.cache_tokens > 0 ? blocks_for_tokens(options_.cache_tokens) : fits;
  if (wanted >= 1 && wanted <= fits) return wanted;
  if (options_.cache_tokens > 0)
    return Error{
        Errc::kInvalidArgument,
        strf("a cache of {} tokens needs {:.1f} GiB and {:.1f} GiB of {}'s memory are left for it: use a "
             "smaller cache, or more GPUs",
             options_.cache_tokens, static_cast<double>(wanted) * block_bytes / kGiB,
             std::max(budget, 0.0) / kGiB, device_.name)};
  return Error{
      Errc::kInvalidArgument,
      strf("no memory of {} is left for the cache: {:.1f} of {:.1f} GiB are taken and "
           "--gpu-memory-utilization is {}: raise it, or use more GPUs",
           device_.name, used / kGiB, static_cast<double>(total) / kGiB, options_.gpu.memory_utilization)};
}

Result<std::unique_ptr<Rank>> Rank::create(const ModelConfig& config, const Weights& weights,
                                           const RankOptions& options) {
  SPARROW_TRY(validate(config, options.grid));
  if (options.exchange) SPARROW_TRY(check_exchange(config, options.grid, options.gpu.exchange));
  DeviceInfo device = SPARROW_TRY(use_device(options.gpu.ordinal));
  auto rank = std::unique_ptr<Rank>(new Rank(config, options, std::move(device)));
  SPARROW_TRY(rank->take_memory(weights));
  return rank;
}

Status Rank::take_memory(const Weights& weights) {
  const GpuOptions& gpu = options_.gpu;
  const Grid& grid = options_.grid;
  max_columns_ = static_cast<int>(blocks_for_tokens(options_.max_context));
  max_logits_ = max_logit_rows(options_.max_step_tokens, options_.max_step_sequences);
  const GpuStepLimits limits{.max_step_tokens = options_.max_step_tokens,
                             .max_step_sequences = options_.max_step_sequences,
                             .max_logits = max_logits_,
                             .max_context = options_.max_context,
                             .kv_dtype = gpu.kv_dtype,
                             .index_dtype = gpu.index_dtype,
                             .batch_invariant = gpu.batch_invariant,
                             .feature_tokens = sees(weights) ? gpu.feature_tokens : 0,
                             .e4m3_tokens = gpu.e4m3_tokens,
                             .nccl = gpu.exchange.nccl};
  planned_ = SPARROW_TRY(plan_gpu_memory(config_, grid, limits, device_.num_sms));
  SPARROW_TRY(check_fits(planned_, static_cast<int64_t>(device_.free_bytes), device_.name));
  std::unique_ptr<NcclRanks> nccl;
  if (options_.exchange && limits.nccl) nccl = SPARROW_TRY(join_nccl());
  weights_ = gpu.dummy_seed
                 ? SPARROW_TRY(dummy_device_weights(config_, grid, *gpu.dummy_seed, gpu.e4m3_tokens))
                 : SPARROW_TRY(load_device_weights(config_, grid, weights, gpu.progress,
                                                   {.order = gpu.load_order, .fold_rows = gpu.e4m3_tokens}));
  if (grid.world() > 1)
    exchange_ = limits.nccl
                    ? SPARROW_TRY(create_nccl_exchange(config_, limits, grid, std::move(nccl), stream()))
                    : SPARROW_TRY(create_peer_exchange(config_, limits, grid));
  model_ = SPARROW_TRY(CudaTextModel::create(config_, weights_, limits, grid, exchange_.get()));
  model_->tune(stream());
  upload_ = SPARROW_TRY(
      StepUpload::create(options_.max_step_tokens, options_.max_step_sequences, max_columns_, grid.dp));
  sampler_ = SPARROW_TRY(DeviceSampler::create(draw_limits(config_, limits)));
  if (sees(weights)) SPARROW_TRY(take_features(weights.vision ? &*weights.vision : nullptr));

  KvCacheShape shape{.num_blocks = 1,
                     .kv_heads = weights_.kv_heads,
                     .head_dim = config_.head_dim,
                     .dtype = gpu.kv_dtype,
                     .index_dtype = gpu.index_dtype,
                     .layer_is_sparse = config_.layer_is_sparse};
  if (options_.exchange) SPARROW_TRY(meet_others());
  shape.num_blocks = static_cast<int>(SPARROW_TRY(agree_on(SPARROW_TRY(num_blocks(shape)))));
  if (gpu.kv_dtype != DType::kBF16 && !gpu.dummy_seed)
    kv_scales_ = kv_scale_table(weights.layers, shape.kv_heads);
  cache_.emplace(SPARROW_TRY(CudaKvCache::create(shape, kv_scales_)));
  return Ok{};
}

// Random weights are those of the configuration.
bool Rank::sees(const Weights& weights) const {
  return options_.gpu.feature_tokens > 0 && (weights.vision || (options_.gpu.dummy_seed && config_.vision));
}

Status Rank::take_features(const VisionWeights* weights) {
  if (const Status shapes = check_tower_shapes(config_); !shapes.ok()) {
    no_features_ = shapes.error().message;
    return Ok{};
  }
  const Grid& grid = options_.grid;
  const bool is_group = options_.exchange != nullptr;  // a rank that runs alone encodes all
  const EncodeShare share(group(), is_group ? grid.tp_rank() : 0, is_group ? grid.tp : 1,
                          options_.gpu.feature_tokens);
  features_ = SPARROW_TRY(RankFeatures::create(config_, weights, share));
  return Ok{};
}

Result<std::unique_ptr<NcclRanks>> Rank::join_nccl() const {
  return NcclRanks::join(
      {.grid = options_.grid,
       .needs = {.several_nodes = options_.gpu.exchange.num_nodes > 1, .shared_gpu = options_.gpu.share},
       .stream = stream(),
       .library = options_.nccl_library.c_str(),
       .lost = options_.lost},
      options_.exchange);
}

Status Rank::meet_others() {
  SPARROW_TRY(exchange_->meet(options_.exchange));
  if (exchange_->shares_gpu() && !options_.gpu.share)
    return Error{Errc::kInvalidArgument,
                 strf("another rank runs on the same GPU as rank {}: give each its own, or --share-gpu",
                      options_.grid.rank)};
  const Bytes choices = model_->choices();
  return model_->take_choices(SPARROW_TRY(options_.exchange(choices)).front());
}

Result<int64_t> Rank::agree_on(int64_t num_blocks) const {
  if (!options_.exchange) return num_blocks;
  for (const Bytes& bytes : SPARROW_TRY(options_.exchange(std::as_bytes(std::span(&num_blocks, 1))))) {
    int64_t other = 0;
    if (bytes.size() != sizeof(other)) return Error{Errc::kCorrupt, "a rank sent no number of blocks"};
    std::memcpy(&other, bytes.data(), sizeof(other));
    num_blocks = std::min(num_blocks, other);
  }
  return num_blocks;
}

EngineInfo Rank::info() const {
  const KvCacheShape& shape = cache_->shape();
  std::vector<std::string> warnings;
  if (options_.gpu.kv_dtype != DType::kBF16 && kv_scales_.empty())
    warnings.push_back("the checkpoint has no scales for an fp8 cache: 1.0 is used");
  if (options_.gpu.e4m3_tokens)
    warnings.push_back(
        strf("fp8 activations are lossy: steps of {} tokens or more round them to e4m3, and {} of {} weights "
             "have changed",
             GpuStepLimits::kMinRoundedRows, weights_.folded.changed, weights_.folded.codes));
  if (!no_features_.empty()) warnings.push_back("images are refused: " + no_features_);
  if (exchange_ && !exchange_->warning().empty()) warnings.push_back(exchange_->warning());
  return {.device = device_.name,
          .kernels = options_.gpu.batch_invariant ? "sm_90a batch-invariant" : "sm_90a",
          .threads = 1,
          .weight_bytes = weights_.memory.bytes() + (features_ ? features_->weight_bytes() : 0),
          .workspace_bytes = model_->workspace_bytes() + upload_->device_bytes() + sampler_.device_bytes() +
                             cache_->table_bytes() + (exchange_ ? exchange_->device_bytes() : 0) +
                             (features_ ? features_->workspace_bytes() : 0),
          .workspace = planned_.workspace.rows,
          .device_bytes = device_.total_bytes,
          .kv_dtype = shape.dtype,
          .index_dtype = shape.index_dtype,
          .cache_bytes = cache_->bytes(),
          .num_blocks = shape.num_blocks,
          .cache_tokens = int64_t{shape.num_blocks} * kBlockTokens,
          .feature_tokens = features_ ? features_->num_tokens() : 0,
          .run_ahead = true,
          .warnings = std::move(warnings)};
}

void Rank::copy_blocks(std::span<const BlockCopy> copies) {
  enter();
  const int blocks = cache_->shape().num_blocks, first = group() * blocks;
  std::vector<BlockCopy> mine;
  for (const BlockCopy& copy : copies)
    if (copy.to / blocks == group()) mine.push_back({copy.from - first, copy.to - first});
  if (!mine.empty()) cache_->copy_blocks(mine, stream());
}

void Rank::encode(std::span<const EncodeJob> jobs) {
  enter();
  features_->encode(jobs, stream());
}

DeviceBatch Rank::upload(const Batch& batch, const RankStep& step) {
  const auto send = [&](const Batch& rows) {
    return upload_->upload(rows, step.shape, step.groups, drawn_ids(batch), stream());
  };
  if (batch.feature_rows.empty()) return send(batch);
  Batch own = batch;
  own.feature_rows = features_->rows_here(batch);
  DeviceBatch sent = send(own);
  sent.features = features_->data();
  return sent;
}

RankStep Rank::step_of(const Batch& batch, bool graphs) const {
  RankStepLimits limits{.group = group(),
                        .num_groups = num_groups(),
                        .blocks_per_group = cache_->shape().num_blocks,
                        .max_step_sequences = options_.max_step_sequences,
                        .max_columns = max_columns_,
                        .graphs = graphs,
                        .top_k_blocks = config_.top_k_blocks,
                        .shares_prompts = options_.grid.tp > config_.num_kv_heads};
  if (options_.exchange && shared_index_heads(config_, options_.grid) > 0)
    limits.shared_index_tokens = options_.gpu.shared_index_tokens;
  return rank_step(batch, limits);
}

const Graph& Rank::graph_of(const StepShape& shape) {
  Graph& graph = graphs_[{shape.decodes, shape.table_columns, shape.shares_index}];
  if (graph.empty()) {
    const DeviceBatch batch = upload_->describe(shape);
    // Run once as it is: what is loaded or chosen at a first launch must not be met inside a capture.
    model_->forward(batch, *cache_, stream());
    graph = Graph::capture(*stream_, [&] { model_->forward(batch, *cache_, stream()); });
  }
  return graph;
}

void Rank::run(const Batch& all, Capture* capture) {
  enter();
  const bool takes_turns = exchange_ && exchange_->takes_turns();  // no capture while others launch
  RankStep step = step_of(all, options_.gpu.graphs && !capture && !takes_turns);
  for (int32_t& draw : step.own.drawn_by)
    if (draw >= 0) draw = own_draw_[static_cast<size_t>(draw)];
  const Batch& batch = step.batch(all);
  wanted_rows_ = std::move(step.wanted_rows);
  first_logit_ = step.first_logit;
  first_row_ = 0;
  replayed_ = step.replays;
  hashed_slots_.assign(batch.slots.begin(), batch.slots.begin() + std::min(batch.num_tokens(), kHashedRows));
  const DeviceBatch device_batch = upload(batch, step);
  if (replayed_)
    graph_of(step.shape).launch(stream());
  else if (capture)
    model_->forward_captured(device_batch, *cache_, stream(), wanted_rows_, *capture);
  else
    model_->forward(device_batch, *cache_, stream());
}

template <typename Row>
std::span<const Row> Rank::own_rows(std::span<const Row> rows, std::vector<Row>& own) const {
  if (num_groups() == 1) return rows;
  for (const Row& row : rows) {
    if (!is_own(row.row)) continue;
    own.push_back(row);
    own.back().row -= first_logit_;
  }
  return own;
}

int64_t Rank::window_of(int64_t row) {
  if (replayed_) return 0;
  const int64_t window = row / max_logits_ * max_logits_;
  if (window != first_row_) {
    const int64_t count = std::min<int64_t>(max_logits_, static_cast<int64_t>(wanted_rows_.size()) - window);
    model_->compute_logits(static_cast<int>(window), static_cast<int>(count), stream());
    first_row_ = window;
  }
  return window;
}

template <typename Row, typename Use>
void Rank::for_each_window(std::span<const Row> rows, const Use& use) {
  std::vector<Row> part;
  for (size_t i = 0; i < rows.size(); i += part.size()) {
    const int64_t window = window_of(rows[i].row);
    part.clear();
    for (size_t j = i; j < rows.size(); ++j) {
      if (!replayed_ && rows[j].row / max_logits_ * max_logits_ != window) break;
      part.push_back(rows[j]);
      part.back().row = buffer_row(rows[j].row);
    }
    use(part, i + part.size() == rows.size());
  }
}

void Rank::start_draws(std::span<const DrawRequest> all) {
  enter();
  std::vector<DrawRequest> own;
  const std::span<const DrawRequest> draws = own_rows(all, own);
  own_draw_.clear();
  int32_t next = 0;
  for (const DrawRequest& draw : all) own_draw_.push_back(is_own(draw.row) ? next++ : -1);
  std::vector<Draw>& early = early_draws_.emplace_back();
  if (draws.empty() && this->draws()) sampler_.start(device_logits(), {}, stream());
  for_each_window(draws, [&](std::span<const DrawRequest> part, bool last) {
    if (this->draws()) sampler_.start(device_logits(), part, stream());
    if (last)
      return model_->hand_out_ids(this->draws() ? sampler_.ids() : nullptr, static_cast<int>(part.size()),
                                  stream());
    if (!this->draws()) return;
    // The next window takes the place of this one's logits.
    std::vector<Draw> drawn = sampler_.finish();
    std::move(drawn.begin(), drawn.end(), std::back_inserter(early));
  });
}

std::vector<Draw> Rank::finish_draws() {
  enter();
  std::vector<Draw> all = std::move(early_draws_.front());
  early_draws_.pop_front();
  if (!draws()) return all;
  std::vector<Draw> drawn = sampler_.finish();
  std::move(drawn.begin(), drawn.end(), std::back_inserter(all));
  return all;
}

// Index keys, which each rank computes by itself, and rows of the last exchange.
uint64_t Rank::replica_hash() {
  if (!options_.exchange || options_.grid.tp == 1) return 0;
  enter();
  std::vector<uint32_t> words;
  const auto take = [&](const void* from, size_t row_bytes, int64_t row) {
    const size_t at = words.size();
    words.resize(at + row_bytes / sizeof(uint32_t));
    SPARROW_CUDA(cudaMemcpyAsync(words.data() + at,
                                 static_cast<const std::byte*>(from) + static_cast<size_t>(row) * row_bytes,
                                 row_bytes, cudaMemcpyDeviceToHost, stream()));
    stream_->synchronize();
  };
  const size_t rows = std::min(replayed_ ? hashed_slots_.size() : wanted_rows_.size(), size_t{kHashedRows});
  for (size_t i = 0; i < rows; ++i)
    take(model_->logit_inputs(), static_cast<size_t>(config_.hidden_size) * 2, static_cast<int64_t>(i));
  int layer = config_.num_layers - 1;
  while (layer >= 0 && !config_.layer_is_sparse[layer]) --layer;
  for (const int64_t slot : layer < 0 ? std::vector<int64_t>{} : hashed_slots_)
    take(cache_->index_pages(layer), cache_->shape().index_page_bytes() / kBlockTokens, slot);
  uint64_t hash = 0xcbf29ce484222325u;
  for (const uint32_t word : words) hash = (hash ^ word) * 0x100000001b3u;
  return hash;
}

std::vector<std::optional<TokenLogprobs>> Rank::score(std::span<const PromptRow> all_rows) {
  enter();
  std::vector<PromptRow> own;
  const std::span<const PromptRow> rows = own_rows(all_rows, own);
  std::vector<std::optional<TokenLogprobs>> all;
  for_each_window(rows, [&](std::span<const PromptRow> part, bool) {
    if (!draws()) return;
    auto scores = sampler_.score(device_logits(), part, stream());
    std::move(scores.begin(), scores.end(), std::back_inserter(all));
  });
  return all;
}

Tensor Rank::logits() {
  enter();
  const auto rows = static_cast<int64_t>(wanted_rows_.size());
  const int64_t cols = model_->logit_columns();
  host_logits_.resize(rows * cols);
  for (int64_t row = 0; row < rows; ++row) {
    window_of(row);
    if (!draws()) continue;
    SPARROW_CUDA(cudaMemcpyAsync(host_logits_.data() + row * cols, model_->logits() + buffer_row(row) * cols,
                                 cols * sizeof(float), cudaMemcpyDeviceToHost, stream()));
  }
  stream_->synchronize();
  return Tensor(host_logits_.data(), DType::kF32, {draws() ? rows : 0, cols});
}

}  // namespace sparrow
