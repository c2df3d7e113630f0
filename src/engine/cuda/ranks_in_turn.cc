// SPDX-License-Identifier: Apache-2.0
// All ranks of a grid in one process, on one GPU and one stream: each launches its part of a step up to where
// it needs the others', and then the next one does. For tests and measurements where there is one GPU.
#include <algorithm>
#include <atomic>
#include <barrier>
#include <deque>
#include <functional>
#include <memory>
#include <set>
#include <thread>
#include <utility>

#include "device/cuda/device_info.h"
#include "device/cuda/stream.h"
#include "engine/cuda/rank.h"
#include "engine/ranks/rank_group.h"

namespace sparrow {
namespace {

// Everybody's bytes, between the threads of a process.
class Meeting {
 public:
  explicit Meeting(int ranks) : bytes_(static_cast<size_t>(ranks)), all_here_(ranks) {}

  Result<std::vector<Bytes>> exchange(int rank, std::span<const std::byte> mine) {
    bytes_[static_cast<size_t>(rank)].assign(mine.begin(), mine.end());
    all_here_.arrive_and_wait();
    std::vector<Bytes> all = bytes_;
    all_here_.arrive_and_wait();
    if (failed_) return Error{Errc::kStopped, "another rank could not be made"};
    return all;
  }
  // Nobody waits for this rank any longer.
  void fail() {
    failed_ = true;
    all_here_.arrive_and_drop();
  }

 private:
  std::vector<Bytes> bytes_;
  std::barrier<> all_here_;
  std::atomic<bool> failed_ = false;
};

class RanksInTurn final : public RankGroup {
 public:
  RanksInTurn(const Grid& grid, int vocab_size) : grid_(grid), vocab_size_(vocab_size) {}

  static Result<std::unique_ptr<RankGroup>> create(const ModelConfig& config, const Weights& weights,
                                                   const RankOptions& options) {
    SPARROW_TRY(use_device(options.gpu.ordinal));
    const int size = options.grid.world();
    auto group = std::make_unique<RanksInTurn>(options.grid, config.vocab_size);
    group->ranks_.resize(static_cast<size_t>(size));
    Meeting meeting(size);
    const auto stream = group->stream_ = std::make_shared<Stream>();
    std::vector<Status> made(static_cast<size_t>(size), Ok{});
    group->on_threads([&](int r) {
      RankOptions mine = options;
      mine.grid.rank = r;
      if (!options.gpu.exchange.nccl) mine.stream = stream;
      mine.exchange = [&meeting, r](std::span<const std::byte> bytes) { return meeting.exchange(r, bytes); };
      auto rank = Rank::create(config, weights, mine);
      if (rank.ok()) {
        group->ranks_[static_cast<size_t>(r)] = std::move(rank).value();
      } else {
        made[static_cast<size_t>(r)] = rank.error();
        meeting.fail();
      }
    });
    for (const Status& status : made)
      if (!status.ok() && status.error().code != Errc::kStopped) return status.error();
    group->info_ = group->ranks_[0]->info();
    return std::unique_ptr<RankGroup>(std::move(group));
  }

  const EngineInfo& info() const override { return info_; }
  void copy_blocks(std::span<const BlockCopy> copies) override {
    in_turn([&](Rank& rank) { rank.copy_blocks(copies); });
  }
  void encode(std::span<const EncodeJob> jobs) override {
    in_turn([&](Rank& rank) { rank.encode(jobs); });
  }
  void run(const Batch& batch, Capture* capture) override {
    first_logit_.assign(1, 0);
    for (int group = 1; group <= grid_.dp; ++group)
      first_logit_.push_back(batch.group_sequences.empty() ? static_cast<int64_t>(batch.logit_rows.size())
                                                           : group_begin(batch, group).logit);
    in_turn([&](Rank& rank) { rank.run(batch, &rank == ranks_[0].get() ? capture : nullptr); });
  }
  void start_draws(std::span<const DrawRequest> draws) override {
    std::vector<int>& groups = draw_groups_.emplace_back();
    for (const DrawRequest& draw : draws) groups.push_back(group_of(draw.row));
    in_turn([&](Rank& rank) { rank.start_draws(draws); });
  }
  std::vector<Draw> finish_draws() override {
    std::vector<std::vector<Draw>> drawn(static_cast<size_t>(grid_.dp));
    for (const auto& rank : ranks_)
      if (std::vector<Draw> mine = rank->finish_draws(); leads(*rank))
        drawn[group_of(*rank)] = std::move(mine);
    const std::vector<int> groups = std::move(draw_groups_.front());
    draw_groups_.pop_front();
    return in_order(groups, std::move(drawn));
  }
  std::vector<std::optional<TokenLogprobs>> score(std::span<const PromptRow> rows) override {
    std::vector<std::vector<std::optional<TokenLogprobs>>> scores(static_cast<size_t>(grid_.dp));
    in_turn([&](Rank& rank) {
      if (auto mine = rank.score(rows); leads(rank)) scores[group_of(rank)] = std::move(mine);
    });
    std::vector<int> groups;
    for (const PromptRow& row : rows) groups.push_back(group_of(row.row));
    return in_order(groups, std::move(scores));
  }
  Tensor logits() override {
    const int64_t cols = vocab_size_;
    logits_.resize(static_cast<size_t>(first_logit_.back() * cols));
    in_turn([&](Rank& rank) {
      const Tensor mine = rank.logits();
      if (leads(rank))
        std::copy_n(mine.as<float>(), mine.numel(), logits_.data() + first_logit_[group_of(rank)] * cols);
    });
    return Tensor(logits_.data(), DType::kF32, {first_logit_.back(), cols});
  }
  // That of the first group; 0: its ranks disagree.
  uint64_t replica_hash() override {
    std::set<uint64_t> hashes;
    for (const auto& rank : ranks_)
      if (group_of(*rank) == 0) hashes.insert(rank->replica_hash());
    return hashes.size() == 1 ? *hashes.begin() : 0;
  }
  void fill_cache(uint64_t seed) override {
    for (const auto& rank : ranks_) rank->fill_cache(seed);
  }
  // Steps replayed from a graph, the last of which tells the times.
  StepTimes profile(const Batch& batch, int repeats) override {
    for (int i = 0; i < 2; ++i) run(batch, nullptr);
    stream_->synchronize();
    std::vector<std::vector<StepMark>> marks(ranks_.size());
    const Graph graph = Graph::capture_of_threads(
        *stream_, [&] { in_turn([&](Rank& rank) { rank.launch_marked(batch, marks[rank_of(rank)]); }); });
    for (int i = 0; i < repeats; ++i) graph.launch(stream_->get());
    stream_->synchronize();
    StepTimes times = ranks_[0]->times_of(marks[0]);
    for (const auto& rank : ranks_) times.rank_us.push_back(rank->times_of(marks[rank_of(*rank)]).median_us);
    in_turn([&](Rank& rank) {
      if (&rank == ranks_[0].get())
        times.experts_hit = rank.count_experts(batch);
      else
        rank.run(batch, nullptr);
    });
    stream_->synchronize();
    ranks_[0]->measure_rates(times);
    return times;
  }

 private:
  size_t rank_of(const Rank& rank) const { return static_cast<size_t>(rank.grid().rank); }
  size_t group_of(const Rank& rank) const { return rank_of(rank) / static_cast<size_t>(grid_.tp); }
  bool leads(const Rank& rank) const { return rank_of(rank) % static_cast<size_t>(grid_.tp) == 0; }
  int group_of(int64_t logits_row) const {
    const auto after = std::upper_bound(first_logit_.begin(), first_logit_.end() - 1, logits_row);
    return static_cast<int>(after - first_logit_.begin()) - 1;
  }
  // What the groups say of their own, put together: the next thing is that group's.
  template <typename T>
  static std::vector<T> in_order(std::span<const int> groups, std::vector<std::vector<T>> of_group) {
    std::vector<size_t> next(of_group.size());
    std::vector<T> all;
    for (const int g : groups)
      all.push_back(std::move(of_group[static_cast<size_t>(g)][next[static_cast<size_t>(g)]++]));
    return all;
  }
  void on_threads(const std::function<void(int)>& body) const {
    std::vector<std::jthread> threads;
    for (int r = 0; r < static_cast<int>(ranks_.size()); ++r) threads.emplace_back(body, r);
  }
  void in_turn(const std::function<void(Rank&)>& body) const {
    on_threads([&](int r) {
      Rank& rank = *ranks_[static_cast<size_t>(r)];
      rank.exchange().begin_turn();
      body(rank);
      rank.exchange().end_turn();
    });
  }

  const Grid grid_;
  const int vocab_size_;
  std::shared_ptr<Stream> stream_;
  std::vector<std::unique_ptr<Rank>> ranks_;
  EngineInfo info_;
  std::vector<int64_t> first_logit_;          // of each group in the last step, and the end
  std::deque<std::vector<int>> draw_groups_;  // by step: whose draws they are
  std::vector<float> logits_;
};

}  // namespace

Result<std::unique_ptr<RankGroup>> create_ranks_in_turn(const ModelConfig& config, const Weights& weights,
                                                        const RankOptions& options) {
  return RanksInTurn::create(config, weights, options);
}

}  // namespace sparrow
