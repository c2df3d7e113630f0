// SPDX-License-Identifier: Apache-2.0
#include "engine/ranks/follow.h"

#include <chrono>
#include <deque>
#include <utility>

#include "engine/ranks/rank_failure.h"
#include "model/vision/segments.h"

namespace sparrow {
namespace {

class Follower {
 public:
  Follower(ModelRunner& runner, ControlLink& link, const Grid& grid, const CallLimits& limits)
      : runner_(runner), link_(link), grid_(grid), calls_(limits) {}

  // True: stop.
  Result<bool> next() {
    const Bytes message = SPARROW_TRY(link_.receive());
    const ReceivedCall& call = *SPARROW_TRY(calls_.read(message));
    switch (call.call) {
      case Call::kRun:
        run(call);
        break;
      case Call::kCopyBlocks:
        runner_.copy_blocks(call.copies);
        break;
      case Call::kEncode:
        runner_.encode(call.jobs);
        break;
      case Call::kStartDraws:
        steps_.push_back(std::exchange(last_, {}));
        runner_.start_draws(call.draws);
        break;
      case Call::kFinishDraws:
        SPARROW_TRY(finish_draws());
        break;
      case Call::kScore: {
        CallReply reply{.scores = runner_.score(call.rows)};
        if (grid_.leads_group()) SPARROW_TRY(send(std::move(reply)));
        break;
      }
      case Call::kLogits:
        if (grid_.leads_group()) SPARROW_TRY(send({.logits = logits()}));
        break;
      case Call::kStop:
        return true;
    }
    if (auto failed = runner_.failure()) return *std::move(failed);
    return false;
  }

 private:
  void run(const ReceivedCall& call) {
    const auto start = std::chrono::steady_clock::now();
    runner_.run(call.batch);
    last_.times.step_seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    last_.times.peer_wait_seconds = runner_.peer_wait_seconds();
    if (call.compare) last_.replica = runner_.replica_hash();
  }

  Status finish_draws() {
    if (steps_.empty()) return Error{Errc::kCorrupt, "rank 0 asks for ids of a step that it did not tell"};
    CallReply reply = std::move(steps_.front());
    steps_.pop_front();
    reply.draws = runner_.finish_draws();
    // What was drawn without its peers is no answer.
    if (auto failed = runner_.failure()) return *std::move(failed);
    if (!grid_.leads_group()) reply.draws.clear();
    return send(std::move(reply));
  }

  std::vector<float> logits() {
    const Tensor logits = runner_.logits();
    const auto* first = logits.row<float>(0);
    return {first, first + logits.rows() * logits.cols()};
  }

  Status send(CallReply reply) {
    reply.serial = calls_.chain().serial();
    reply.chain = calls_.chain().hash();
    return link_.reply(write_reply(reply));
  }

  ModelRunner& runner_;
  ControlLink& link_;
  const Grid grid_;
  CallReader calls_;
  CallReply last_;               // of the last step that ran
  std::deque<CallReply> steps_;  // whose ids have not been asked for
};

}  // namespace

CallLimits call_limits(const ModelConfig& config, const EngineInfo& info, const EngineOptions& options) {
  const int groups = options.grid.dp;
  CallLimits limits{.vocab_size = config.vocab_size,
                    .num_blocks = info.num_blocks * groups,
                    .num_groups = groups,
                    .max_step_tokens = options.max_step_tokens * groups,
                    .max_step_sequences = options.max_step_sequences * groups,
                    .feature_tokens = info.feature_tokens};
  if (config.vision) {
    limits.patch_numbers = patch_numbers(*config.vision);
    limits.merge_side = config.vision->spatial_merge_size;
  }
  return limits;
}

Status follow(ModelRunner& runner, ControlLink& link, const Grid& grid, const CallLimits& limits) {
  Follower follower(runner, link, grid, limits);
  for (;;) {
    const Result<bool> stop = follower.next();
    if (stop.ok() && stop.value()) return Ok{};
    if (stop.ok()) continue;
    link.fail(grid.rank, stop.error().message);
    const auto first = link.failure();
    if (!first) return stop.error();
    return rank_failure(*first);
  }
}

}  // namespace sparrow
