// SPDX-License-Identifier: Apache-2.0
// The rank of this process: every call goes to it.
#include "engine/ranks/rank_group.h"

#include <utility>

#include "device/cuda/device_info.h"
#include "engine/cuda/rank.h"

namespace sparrow {
namespace {

class RankOfProcess final : public RankGroup {
 public:
  explicit RankOfProcess(std::unique_ptr<Rank> rank) : rank_(std::move(rank)), info_(rank_->info()) {}

  const EngineInfo& info() const override { return info_; }
  void copy_blocks(std::span<const BlockCopy> copies) override { rank_->copy_blocks(copies); }
  void encode(std::span<const EncodeJob> jobs) override { rank_->encode(jobs); }
  void run(const Batch& batch, Capture* capture) override { rank_->run(batch, capture); }
  void start_draws(std::span<const DrawRequest> draws) override { rank_->start_draws(draws); }
  std::vector<Draw> finish_draws() override { return rank_->finish_draws(); }
  std::vector<std::optional<TokenLogprobs>> score(std::span<const PromptRow> rows) override {
    return rank_->score(rows);
  }
  Tensor logits() override { return rank_->logits(); }
  std::optional<Error> failure() const override { return rank_->failure(); }
  uint64_t replica_hash() override { return rank_->replica_hash(); }
  void fill_cache(uint64_t seed) override { rank_->fill_cache(seed); }
  StepTimes profile(const Batch& batch, int repeats) override { return rank_->profile(batch, repeats); }

 private:
  std::unique_ptr<Rank> rank_;
  EngineInfo info_;
};

}  // namespace

Result<std::unique_ptr<RankGroup>> create_rank_group(const ModelConfig& config, const Weights& weights,
                                                     const RankOptions& options) {
  auto rank = SPARROW_TRY(Rank::create(config, weights, options));
  return std::unique_ptr<RankGroup>(std::make_unique<RankOfProcess>(std::move(rank)));
}

bool has_usable_gpu(int ordinal) {
  return find_device(ordinal).ok();
}

}  // namespace sparrow
