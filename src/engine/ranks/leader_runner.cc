// SPDX-License-Identifier: Apache-2.0
#include "engine/ranks/leader_runner.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>

#include "engine/ranks/rank_failure.h"

namespace sparrow {
namespace {

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace

LeaderRunner::LeaderRunner(std::unique_ptr<ModelRunner> local, ControlLink& link, const Grid& grid,
                           const LeaderOptions& options)
    : local_(std::move(local)),
      link_(link),
      grid_(grid),
      options_(options),
      info_(local_->info()),
      calls_(/*draws_elsewhere=*/grid.dp > 1),
      rank_times_(grid.world()) {
  SPARROW_CHECK(link.rank() == 0 && grid.rank == 0);
  SPARROW_CHECK_EQ(link.world(), grid.world());
  if (options_.num_blocks > 0) {
    SPARROW_CHECK_LE(options_.num_blocks, info_.num_blocks);
    info_.num_blocks = options_.num_blocks;
    info_.cache_tokens = int64_t{info_.num_blocks} * kBlockTokens;
  }
  info_.num_ranks = grid.world();
}

LeaderRunner::~LeaderRunner() {
  tell(calls_.plain(Call::kStop));
}

bool LeaderRunner::tell(const Bytes& message) {
  if (const auto failed = local_->failure()) give_up(grid_.rank, failed->message);
  if (failure()) return false;
  const Status sent = link_.send(message);
  if (!sent.ok()) give_up(grid_.rank, sent.error().message);
  return sent.ok();
}

void LeaderRunner::give_up(int rank, const std::string& reason) {
  // Whatever is noticed here, a failure that the link knows of came first.
  link_.fail(rank, reason);
  const auto first = link_.failure();
  const std::lock_guard lock(mutex_);
  if (!failure_) failure_ = rank_failure(first.value_or(ControlLink::Failure{rank, reason}));
}

std::optional<Error> LeaderRunner::failure() const {
  {
    const std::lock_guard lock(mutex_);
    if (failure_) return failure_;
  }
  if (const auto known = link_.failure()) return rank_failure(*known);
  if (const auto failed = local_->failure()) return rank_failure({grid_.rank, failed->message});
  return std::nullopt;
}

void LeaderRunner::copy_blocks(std::span<const BlockCopy> copies) {
  if (!copies.empty() && tell(calls_.copy_blocks(copies))) local_->copy_blocks(copies);
}

void LeaderRunner::encode(std::span<const EncodeJob> jobs) {
  if (!jobs.empty() && tell(calls_.encode(jobs))) local_->encode(jobs);
}

void LeaderRunner::run(const Batch& batch, Capture* capture) {
  step_ = {.compare = num_steps_++ % static_cast<uint64_t>(options_.compare_every) == 0};
  group_logits_.clear();
  for (int group = 0; group <= grid_.dp; ++group) group_logits_.push_back(group_begin(batch, group).logit);
  if (!tell(calls_.run(batch, step_.compare))) return;
  const auto start = std::chrono::steady_clock::now();
  local_->run(batch, capture);
  step_.seconds = seconds_since(start);
  if (step_.compare) step_.replica = local_->replica_hash();
}

int LeaderRunner::group_of(int64_t logits_row) const {
  const auto after = std::upper_bound(group_logits_.begin(), group_logits_.end(), logits_row);
  return static_cast<int>(after - group_logits_.begin()) - 1;
}

void LeaderRunner::start_draws(std::span<const DrawRequest> draws) {
  for (const DrawRequest& draw : draws) step_.groups.push_back(group_of(draw.row));
  pending_.push_back(std::exchange(step_, {}));
  if (tell(calls_.start_draws(draws))) local_->start_draws(draws);
}

std::vector<Draw> LeaderRunner::finish_draws() {
  const Pending step = std::move(pending_.front());
  pending_.pop_front();
  std::vector<Draw> draws;
  if (tell(calls_.plain(Call::kFinishDraws))) {
    std::vector<Draw> mine = local_->finish_draws();
    if (const auto failed = local_->failure()) give_up(grid_.rank, failed->message);
    std::vector<CallReply> replies = collect_replies(/*stride=*/1);
    if (!replies.empty()) {
      replies[0].draws = std::move(mine);
      compare(step, replies);
      std::vector<size_t> next(grid_.dp);
      for (const int group : step.groups) {
        std::vector<Draw>& of_group = replies[group * grid_.tp].draws;
        if (next[group] == of_group.size()) {
          give_up(group * grid_.tp, strf("drew {} ids and was asked for more", of_group.size()));
          break;
        }
        draws.push_back(std::move(of_group[next[group]++]));
      }
    }
  }
  if (const auto failed = failure()) draws.assign(step.groups.size(), Draw{*failed, std::nullopt});
  return draws;
}

std::optional<CallReply> LeaderRunner::next_reply(int rank) {
  if (failure()) return std::nullopt;
  const auto message = link_.receive_reply(rank);
  if (!message.ok()) {
    give_up(rank, message.error().message);
    return std::nullopt;
  }
  auto reply = read_reply(message.value(), options_.vocab_size);
  if (!reply.ok()) {
    give_up(rank, reply.error().message);
    return std::nullopt;
  }
  if (reply->serial != calls_.chain().serial() || reply->chain != calls_.chain().hash()) {
    give_up(rank, strf("answers call {}, and {} was made: it has followed other calls", reply->serial,
                       calls_.chain().serial()));
    return std::nullopt;
  }
  return std::move(reply).value();
}

std::vector<CallReply> LeaderRunner::collect_replies(int stride) {
  std::vector<CallReply> replies(1);
  for (int rank = stride; rank < grid_.world(); rank += stride) {
    auto reply = next_reply(rank);
    if (!reply) return {};
    replies.push_back(std::move(*reply));
  }
  return failure() ? std::vector<CallReply>() : replies;
}

void LeaderRunner::compare(const Pending& step, std::span<const CallReply> replies) {
  for (int rank = 0; rank < grid_.world(); ++rank) {
    rank_times_[rank] =
        rank == 0 ? RankTimes{step.seconds, local_->peer_wait_seconds()} : replies[rank].times;
    if (!step.compare) continue;
    const int first = rank / grid_.tp * grid_.tp;
    const auto hash_of = [&](int r) { return r == 0 ? step.replica : replies[r].replica; };
    if (hash_of(rank) != hash_of(first))
      return give_up(rank, strf("computed something else than rank {} in one of the last steps", first));
  }
}

std::vector<std::optional<TokenLogprobs>> LeaderRunner::score(std::span<const PromptRow> rows) {
  std::vector<std::optional<TokenLogprobs>> scores(rows.size());
  if (!tell(calls_.score(rows))) return scores;
  std::vector<std::optional<TokenLogprobs>> mine = local_->score(rows);
  std::vector<CallReply> replies = collect_replies(/*stride=*/grid_.tp);
  if (replies.empty()) return scores;
  replies[0].scores = std::move(mine);
  std::vector<size_t> next(grid_.dp);
  for (size_t i = 0; i < rows.size(); ++i) {
    const int group = group_of(rows[i].row);
    auto& of_group = replies[group].scores;
    if (next[group] == of_group.size()) {
      give_up(group * grid_.tp, strf("scored {} rows and was asked for more", of_group.size()));
      break;
    }
    scores[i] = std::move(of_group[next[group]++]);
  }
  return scores;
}

Tensor LeaderRunner::logits() {
  if (grid_.dp == 1) return local_->logits();
  const int64_t rows = group_logits_.back(), vocab = options_.vocab_size;
  logits_memory_.assign(rows * vocab, 0.0f);
  const Tensor all(logits_memory_.data(), DType::kF32, {rows, vocab});
  if (!tell(calls_.plain(Call::kLogits))) return all;
  const Tensor mine = local_->logits();
  std::memcpy(logits_memory_.data(), mine.data, sizeof(float) * mine.rows() * vocab);
  const std::vector<CallReply> replies = collect_replies(/*stride=*/grid_.tp);
  for (size_t group = 1; group < replies.size(); ++group) {
    const std::vector<float>& logits = replies[group].logits;
    const int64_t first = group_logits_[group], count = group_logits_[group + 1] - first;
    if (static_cast<int64_t>(logits.size()) != count * vocab)
      give_up(static_cast<int>(group) * grid_.tp, strf("sent {} logits for {} rows", logits.size(), count));
    else
      std::copy(logits.begin(), logits.end(), logits_memory_.begin() + first * vocab);
  }
  return all;
}

}  // namespace sparrow
