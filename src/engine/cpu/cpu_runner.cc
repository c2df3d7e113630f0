// SPDX-License-Identifier: Apache-2.0
#include "engine/cpu/cpu_runner.h"

#include <unistd.h>

#include <cstring>
#include <set>
#include <utility>

#include "engine/media/encode_turns.h"
#include "model/sharding.h"

namespace sparrow {

Result<std::unique_ptr<CpuRunner>> CpuRunner::create(const ModelConfig& config, const Weights& weights,
                                                     int64_t cache_tokens, const CpuOptions& options,
                                                     const Grid& grid, RankComms comms) {
  constexpr double kGiB = 1024.0 * 1024 * 1024;
  if (options.isa && *options.isa > ops::detect_cpu_isa())
    return Error{Errc::kInvalidArgument,
                 strf("{} kernels do not run on this machine; its best are {}", ops::name_of(*options.isa),
                      ops::name_of(ops::detect_cpu_isa())),
                 "isa"};
  if (options.threads < 0)
    return Error{Errc::kInvalidArgument, strf("threads must be >= 0, got {}", options.threads), "threads"};
  if (cache_tokens < 1)
    return Error{Errc::kInvalidArgument, strf("cache_tokens must be >= 1, got {}", cache_tokens),
                 "cache_tokens"};
  SPARROW_TRY(validate(config, grid));
  const int64_t num_blocks = blocks_for_tokens(cache_tokens);
  TextModel model(config, weights, grid, comms);
  const KvCacheShape shape = model.cache_shape(static_cast<int>(num_blocks));
  const double bytes = static_cast<double>(shape.block_bytes()) * static_cast<double>(num_blocks);
  const double memory =
      static_cast<double>(sysconf(_SC_PHYS_PAGES)) * static_cast<double>(sysconf(_SC_PAGESIZE));
  if (bytes > memory)
    return Error{
        Errc::kInvalidArgument,
        strf("a cache of {} tokens needs {:.1f} GiB and this machine has {:.1f} GiB: use a shorter context",
             cache_tokens, bytes / kGiB, memory / kGiB)};
  KvCache cache = SPARROW_TRY(KvCache::create(shape));
  return std::unique_ptr<CpuRunner>(new CpuRunner(config, options, grid, std::move(comms), std::move(model),
                                                  std::move(cache), weights.vision));
}

CpuRunner::CpuRunner(const ModelConfig& config, const CpuOptions& options, const Grid& grid, RankComms comms,
                     TextModel model, KvCache cache, const std::optional<VisionWeights>& vision)
    : config_(config),
      grid_(grid),
      comms_(std::move(comms)),
      model_(std::move(model)),
      cache_(std::move(cache)),
      threads_(options.threads > 0 ? options.threads : ThreadPool::default_size()),
      exec_{threads_, scratch_, options.isa.value_or(ops::detect_cpu_isa())} {
  const KvCacheShape& shape = cache_.shape();
  info_ = {.device = "cpu",
           .kernels = ops::name_of(exec_.isa),
           .threads = threads_.size(),
           .kv_dtype = shape.dtype,
           .index_dtype = shape.index_dtype,
           .cache_bytes = KvCacheLayout(shape).bytes,
           .num_blocks = shape.num_blocks,
           .cache_tokens = int64_t{shape.num_blocks} * kBlockTokens,
           .bound_steps = true};
  if (!vision) return;
  tower_.emplace(config, *vision);
  info_.feature_tokens = options.feature_tokens;
  const int64_t bytes =
      options.feature_tokens * config.hidden_size * static_cast<int64_t>(size_of(config.dtype));
  // Pages that were never written take no memory.
  features_memory_ = std::make_unique_for_overwrite<std::byte[]>(static_cast<size_t>(bytes));
  features_ = Tensor(features_memory_.get(), config.dtype, {options.feature_tokens, config.hidden_size});
}

// All ranks, of whatever group, share the jobs out among them. Each encodes its own as any other would and
// tells them all; those whose group has no use for it forget it.
void CpuRunner::encode(std::span<const EncodeJob> jobs) {
  const size_t row_bytes = static_cast<size_t>(config_.hidden_size) * size_of(config_.dtype);
  std::vector<std::vector<std::byte>> encoded(jobs.size());
  std::vector<int> encoders;
  EncodeTurns turns(grid_.world());
  const auto features = [&](size_t job) {
    return Tensor(encoded[job].data(), config_.dtype,
                  {static_cast<int64_t>(jobs[job].rows.size()), config_.hidden_size});
  };
  for (size_t i = 0; i < jobs.size(); ++i) {
    encoded[i].resize(jobs[i].rows.size() * row_bytes);
    encoders.push_back(turns.next(jobs[i].grid.patches()));
    if (encoders[i] != grid_.rank) continue;
    const int64_t patches = jobs[i].grid.patches();
    const Tensor rows(const_cast<float*>(jobs[i].patches.data()), DType::kF32,
                      {patches, static_cast<int64_t>(jobs[i].patches.size()) / patches});
    tower_->encode(exec_, rows, {&jobs[i].grid, 1}, features(i));
    ++num_encoded_;
  }
  for (size_t i = 0; i < jobs.size(); ++i) {
    if (grid_.world() > 1) comms_.world->broadcast(features(i), encoders[i]);
    if (jobs[i].group != grid_.group()) continue;
    for (size_t token = 0; token < jobs[i].rows.size(); ++token)
      std::memcpy(features_.rows_at(jobs[i].rows[token], 1).data, encoded[i].data() + token * row_bytes,
                  row_bytes);
  }
}

void CpuRunner::copy_blocks(std::span<const BlockCopy> copies) {
  const int blocks = cache_.shape().num_blocks, first = grid_.group() * blocks;
  for (const BlockCopy& copy : copies)
    if (copy.to / blocks == grid_.group()) copy_block({copy.from - first, copy.to - first});
}

// Index keys of a block and of its copy may be on two ranks: then they go from one to the other.
void CpuRunner::copy_block(const BlockCopy& copy) {
  const KvCacheShape& shape = cache_.shape();
  cache_.copy_blocks({&copy, 1});
  const int root = copy.from % shape.index_ranks;
  if (root == copy.to % shape.index_ranks) return;
  std::vector<std::byte> keys(shape.index_block_bytes());
  if (grid_.tp_rank() == root) cache_.read_index(copy.from, keys.data());
  const auto words = static_cast<int64_t>(keys.size() / sizeof(int32_t));
  comms_.group->broadcast(Tensor(keys.data(), DType::kI32, {1, words}), root);
  if (shape.has_index_of(copy.to)) cache_.write_index(copy.to, keys.data());
}

void CpuRunner::run(const Batch& batch, Capture* capture) {
  const Batch* mine = &batch;
  std::vector<int64_t> group_tokens;
  first_logit_ = 0;
  if (grid_.dp > 1) {
    for (int group = 0; group < grid_.dp; ++group)
      group_tokens.push_back(group_begin(batch, group + 1).token - group_begin(batch, group).token);
    first_logit_ = group_begin(batch, grid_.group()).logit;
    mine = &(own_ = group_part(batch, grid_.group(), cache_.shape().num_blocks));
  }
  if (!mine->drawn_by.empty()) {
    if (mine != &own_) mine = &(own_ = batch);
    for (size_t row = 0; row < own_.drawn_by.size(); ++row)
      if (const int draw = own_.drawn_by[row]; draw >= 0) own_.ids[row] = drawn_ids_[draw];
  }
  const int64_t rows = grid_.leads_group() ? static_cast<int64_t>(mine->logit_rows.size()) : 0;
  logits_memory_.resize(rows * config_.vocab_size);
  logits_ = Tensor(logits_memory_.data(), DType::kF32, {rows, config_.vocab_size});
  replica_hash_ = model_.forward(exec_, *mine, cache_, logits_, group_tokens, capture, features_);
}

bool CpuRunner::is_mine(int64_t r) const {
  return r >= first_logit_ && r < first_logit_ + logits_.rows();
}

std::span<const float> CpuRunner::row(int64_t r) const {
  return {logits_.row<float>(r - first_logit_), static_cast<size_t>(logits_.cols())};
}

Draw CpuRunner::draw(const DrawRequest& request) {
  SampleRow sample = request.sample;
  sample.logits = row(request.row);
  Result<int32_t> id = sampler_.sample(sample);
  std::optional<TokenLogprobs> logprobs;
  if (id.ok() && request.num_top_logprobs)
    logprobs = logprobs_of(sample.logits, id.value(), *request.num_top_logprobs);
  return {std::move(id), std::move(logprobs)};
}

void CpuRunner::start_draws(std::span<const DrawRequest> draws) {
  std::vector<Draw>& drawn = draws_.emplace_back();
  drawn.reserve(draws.size());
  drawn_ids_.clear();
  for (const DrawRequest& request : draws) {
    int32_t& id = drawn_ids_.emplace_back(0);
    if (!is_mine(request.row)) continue;
    drawn.push_back(draw(request));
    if (drawn.back().id.ok()) id = drawn.back().id.value();
  }
  if (grid_.tp == 1 || draws.empty()) return;
  // Ranks that drew for themselves could come to disagree.
  const auto count = static_cast<int64_t>(drawn_ids_.size());
  comms_.group->broadcast(Tensor(drawn_ids_.data(), DType::kI32, {count, 1}), 0);
}

std::vector<Draw> CpuRunner::finish_draws() {
  std::vector<Draw> drawn = std::move(draws_.front());
  draws_.pop_front();
  return drawn;
}

std::vector<std::optional<TokenLogprobs>> CpuRunner::score(std::span<const PromptRow> rows) {
  std::vector<std::optional<TokenLogprobs>> scores;
  scores.reserve(rows.size());
  for (const PromptRow& wanted : rows) {
    if (!is_mine(wanted.row)) continue;
    const std::span<const float> logits = row(wanted.row);
    if (argmax(logits))
      scores.push_back(logprobs_of(logits, wanted.id, wanted.num_top));
    else
      scores.push_back(std::nullopt);
  }
  return scores;
}

double CpuRunner::peer_wait_seconds() const {
  double seconds = 0;
  // Some may be the same object.
  for (const auto& comm : std::set{comms_.group, comms_.across, comms_.world})
    if (comm != nullptr) seconds += comm->wait_seconds();
  return seconds;
}

std::optional<Error> CpuRunner::failure() const {
  for (const auto& comm : {comms_.group, comms_.across, comms_.world})
    if (comm != nullptr && comm->failed()) return Error{Errc::kStopped, "another rank of this model is gone"};
  return std::nullopt;
}

}  // namespace sparrow
