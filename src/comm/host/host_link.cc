// SPDX-License-Identifier: Apache-2.0
#include "comm/host/host_link.h"

#include <utility>

#include "base/check.h"

namespace sparrow {

HostLink::HostLink(int rank, std::byte* memory, const NodeMemory& layout, std::vector<Fd> messages,
                   Life& life, Peers& peers)
    : rank_(rank),
      layout_(layout),
      messages_(std::move(messages)),
      life_(life),
      peers_(peers),
      // Rank 0 writes itself; on other nodes the relay writes, and the first rank reads like the others.
      ring_(memory + layout.ring(), NodeMemory::kRing, node() == 0 ? 1 : 0, layout.local_world),
      replies_(static_cast<size_t>(layout.local_world)) {
  for (int l = 0; l < layout.local_world; ++l)
    reply_rings_.emplace_back(memory + layout.reply_ring(l), NodeMemory::kReplyRing, 0, 1);
  if (node() != 0 && local() == 0) relay_ = std::thread([this] { relay(); });
}

HostLink::~HostLink() {
  closing_ = true;
  if (relay_.joinable()) relay_.join();
}

void HostLink::relay() {
  const GiveUp give_up = [this] { return closing_ || life_.failed(); };
  for (;;) {
    const Result<Frame> frame = receive_frame(messages_[0], kMaxFrame, give_up);
    if (!frame.ok()) {
      if (!give_up() && !life_.said_goodbye(0)) peers_.fail_later(rank_, frame.error().message);
      return;
    }
    if (!ring_.write(frame->payload, give_up)) return;
  }
}

Status HostLink::send(std::span<const std::byte> message) {
  SPARROW_CHECK_EQ(rank_, 0);
  const GiveUp give_up = [this] {
    // A follower that waits for room in its own ring would never read ours.
    for (int l = 1; l < layout_.local_world; ++l)
      reply_rings_[static_cast<size_t>(l)].drain(0, replies_[static_cast<size_t>(l)]);
    return life_.failed() || life_.any_left();
  };
  if (life_.failed() || life_.any_left()) return life_.error();
  for (const Fd& socket : messages_) {
    if (!socket) continue;
    const Status sent = send_frame(socket, FrameType::kMessage, message, give_up);
    if (!sent.ok()) return life_.failed() ? life_.error() : sent.error();
  }
  if (layout_.local_world > 1 && !ring_.write(message, give_up)) return life_.error();
  return Ok{};
}

Result<Bytes> HostLink::receive() {
  SPARROW_CHECK(rank_ != 0);
  Bytes message;
  if (life_.failed()) return life_.error();
  if (!ring_.read(local(), message, [this] { return life_.failed() || life_.has_left(0); }))
    return life_.error(0);
  return message;
}

Status HostLink::reply(std::span<const std::byte> message) {
  SPARROW_CHECK(rank_ != 0);
  if (life_.failed() || life_.has_left(0)) return life_.error(0);
  if (node() != 0) {
    peers_.post(0, FrameType::kReply, message);
    return Ok{};
  }
  const GiveUp give_up = [this] { return life_.failed() || life_.has_left(0); };
  if (!reply_rings_[static_cast<size_t>(local())].write(message, give_up)) return life_.error(0);
  return Ok{};
}

Result<Bytes> HostLink::receive_reply(int rank) {
  SPARROW_CHECK(rank_ == 0 && rank > 0 && rank < world());
  if (life_.failed()) return life_.error();
  if (rank >= layout_.local_world) return peers_.take(rank, FrameType::kReply);
  Ring& ring = reply_rings_[static_cast<size_t>(rank)];
  Bytes& taken = replies_[static_cast<size_t>(rank)];
  Bytes message;
  while (!Ring::take(taken, message)) {
    if (!ring.wait(0, [&] { return life_.failed() || life_.has_left(rank); })) return life_.error(rank);
    ring.drain(0, taken);
  }
  return message;
}

}  // namespace sparrow
