// SPDX-License-Identifier: Apache-2.0
// ThreadLink: a queue to each follower and one back.
#include <condition_variable>
#include <deque>
#include <mutex>
#include <utility>

#include "base/check.h"
#include "base/strf.h"
#include "comm/thread_comm.h"

namespace sparrow {
namespace {

constexpr size_t kMaxBehind = 1024;  // messages that a follower may leave unread before rank 0 waits

struct Post {
  explicit Post(int world) : to(static_cast<size_t>(world)), from(static_cast<size_t>(world)) {}

  std::mutex mutex;
  std::condition_variable changed;
  std::vector<std::deque<Bytes>> to, from;  // by rank
  std::optional<ControlLink::Failure> failure;
};

class ThreadLink : public ControlLink {
 public:
  ThreadLink(std::shared_ptr<Post> post, int rank) : post_(std::move(post)), rank_(rank) {}

  int rank() const override { return rank_; }
  int world() const override { return static_cast<int>(post_->to.size()); }

  Status send(std::span<const std::byte> message) override {
    SPARROW_CHECK_EQ(rank_, 0);
    std::unique_lock lock(post_->mutex);
    for (size_t r = 1; r < post_->to.size(); ++r) {
      auto& queue = post_->to[r];
      post_->changed.wait(lock, [&] { return queue.size() < kMaxBehind || post_->failure; });
      if (post_->failure) return failed();
      queue.emplace_back(message.begin(), message.end());
    }
    post_->changed.notify_all();
    return Ok{};
  }
  Result<Bytes> receive() override {
    SPARROW_CHECK(rank_ != 0);
    return take(post_->to[static_cast<size_t>(rank_)]);
  }
  Status reply(std::span<const std::byte> message) override {
    SPARROW_CHECK(rank_ != 0);
    const std::lock_guard lock(post_->mutex);
    if (post_->failure) return failed();
    post_->from[static_cast<size_t>(rank_)].emplace_back(message.begin(), message.end());
    post_->changed.notify_all();
    return Ok{};
  }
  Result<Bytes> receive_reply(int rank) override {
    SPARROW_CHECK(rank_ == 0 && rank > 0 && rank < world());
    return take(post_->from[static_cast<size_t>(rank)]);
  }

  void fail(int rank, const std::string& reason) override {
    const std::lock_guard lock(post_->mutex);
    if (!post_->failure) post_->failure = Failure{rank, reason};
    post_->changed.notify_all();
  }
  std::optional<Failure> failure() const override {
    const std::lock_guard lock(post_->mutex);
    return post_->failure;
  }

 private:
  Error failed() const {
    return {Errc::kStopped, strf("rank {}: {}", post_->failure->rank, post_->failure->reason)};
  }
  Result<Bytes> take(std::deque<Bytes>& queue) {
    std::unique_lock lock(post_->mutex);
    post_->changed.wait(lock, [&] { return !queue.empty() || post_->failure; });
    if (post_->failure) return failed();
    Bytes message = std::move(queue.front());
    queue.pop_front();
    post_->changed.notify_all();
    return message;
  }

  std::shared_ptr<Post> post_;
  int rank_;
};

}  // namespace

std::vector<std::unique_ptr<ControlLink>> thread_links(int world) {
  const auto post = std::make_shared<Post>(world);
  std::vector<std::unique_ptr<ControlLink>> links;
  for (int rank = 0; rank < world; ++rank) links.push_back(std::make_unique<ThreadLink>(post, rank));
  return links;
}

}  // namespace sparrow
