// SPDX-License-Identifier: Apache-2.0
// LeaderRunner: all ranks as one runner. Lives on rank 0: tells every call to the others, then makes it on
// the local runner. Ranks answer once a step, when its ids are asked for; those of other groups then send
// what they drew. A rank that is gone, or has computed something else, ends it: failure() says so, and what
// calls give from then on is of no use. Engine thread only, but for failure().
#pragma once

#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "comm/control_link.h"
#include "comm/grid.h"
#include "engine/model_runner.h"
#include "engine/ranks/messages.h"

namespace sparrow {

struct LeaderOptions {
  int vocab_size = 0;
  int num_blocks = 0;        // that every rank has; 0: as many as this one
  int compare_every = 1000;  // steps; what ranks of a group hold alike is compared by its hash
};

class LeaderRunner final : public ModelRunner {
 public:
  // The link is borrowed.
  LeaderRunner(std::unique_ptr<ModelRunner> local, ControlLink& link, const Grid& grid,
               const LeaderOptions& options);
  ~LeaderRunner() override;  // the others stop

  const EngineInfo& info() const override { return info_; }
  void copy_blocks(std::span<const BlockCopy> copies) override;
  void encode(std::span<const EncodeJob> jobs) override;
  void run(const Batch& batch, Capture* capture) override;
  void start_draws(std::span<const DrawRequest> draws) override;
  std::vector<Draw> finish_draws() override;
  std::vector<std::optional<TokenLogprobs>> score(std::span<const PromptRow> rows) override;
  Tensor logits() override;
  std::optional<Error> failure() const override;
  std::span<const RankTimes> rank_times() const override { return rank_times_; }

 private:
  // A step whose ids have not been asked for.
  struct Pending {
    std::vector<int> groups;  // [draws]
    uint64_t replica = 0;
    double seconds = 0;
    bool compare = false;
  };

  // False: the instance has failed.
  bool tell(const Bytes& message);
  void give_up(int rank, const std::string& reason);
  // The answers to the last call of rank 0, which is left empty, and of every `stride`-th after it. None: the
  // instance has failed.
  std::vector<CallReply> collect_replies(int stride);
  std::optional<CallReply> next_reply(int rank);
  void compare(const Pending& step, std::span<const CallReply> replies);
  int group_of(int64_t logits_row) const;

  std::unique_ptr<ModelRunner> local_;
  ControlLink& link_;
  const Grid grid_;
  const LeaderOptions options_;
  EngineInfo info_;
  CallWriter calls_;
  uint64_t num_steps_ = 0;
  Pending step_;                       // the last one that ran
  std::vector<int64_t> group_logits_;  // [groups + 1] first row of each group in its logits
  std::deque<Pending> pending_;
  std::vector<RankTimes> rank_times_;
  std::vector<float> logits_memory_;

  mutable std::mutex mutex_;
  std::optional<Error> failure_;  // the first one
};

}  // namespace sparrow
