// SPDX-License-Identifier: Apache-2.0
#include "comm/host/node_exchange.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/strf.h"

namespace sparrow {
namespace {

constexpr size_t kSlotHead = 3 * sizeof(uint64_t);  // rank, tag, length

// One communicator as this rank sees it.
struct Membership {
  const std::vector<int>& members;
  int rank, local_world;

  int node_of(int member) const { return member / local_world; }
  bool several_nodes() const { return node_of(members.front()) != node_of(members.back()); }
  bool leads() const { return members.front() == rank; }
  // The first of its node speaks for it.
  bool speaks() const {
    const auto same_node = [&](int member) { return node_of(member) == node_of(rank); };
    return *std::find_if(members.begin(), members.end(), same_node) == rank;
  }
  size_t num_other_nodes() const {
    size_t changes = 0;
    for (size_t i = 1; i < members.size(); ++i)
      changes += node_of(members[i]) != node_of(members[i - 1]) ? 1 : 0;
    return changes;
  }
};

}  // namespace

NodeSlots::NodeSlots(std::vector<int> nodes, int node, NodeSockets sockets, const Life& life)
    : nodes_(std::move(nodes)),
      node_(node),
      sockets_(std::move(sockets)),
      give_up_([&life] { return life.failed() || life.any_left(); }) {}

Status NodeSlots::exchange(std::span<HostComm::Slot> slots) {
  const bool leads = nodes_[0] == node_;
  if (!leads) SPARROW_TRY(send(nodes_[0], slots));
  for (const auto& [node, socket] : sockets_) SPARROW_TRY(receive(socket, slots));
  for (const auto& [node, socket] : sockets_)
    if (leads) SPARROW_TRY(send(node, slots));
  return Ok{};
}

// The leader sends all that the other node does not have, the others what their node has.
Status NodeSlots::send(int to_node, std::span<const HostComm::Slot> slots) {
  Packer packer;
  for (size_t r = 0; r < slots.size(); ++r) {
    const bool wanted = nodes_[0] == node_ ? nodes_[r] != to_node : nodes_[r] == node_;
    if (!wanted) continue;
    packer.number(r).number(slots[r].tag).raw({slots[r].data, static_cast<size_t>(slots[r].bytes)});
  }
  return send_frame(sockets_.at(to_node), FrameType::kSlots, packer.take(), give_up_);
}

Status NodeSlots::receive(const Fd& socket, std::span<HostComm::Slot> slots) {
  const size_t most = slots.size() * (HostComm::kSlot + kSlotHead);
  const Frame frame = SPARROW_TRY(receive_frame(socket, most, give_up_));
  Unpacker in(frame.payload);
  while (frame.type == FrameType::kSlots && in.more()) {
    const auto rank = static_cast<size_t>(in.small_number());
    const uint64_t tag = in.number();
    const auto data = in.raw();
    if (rank >= slots.size() || nodes_[rank] == node_ || data.size() > HostComm::kSlot) break;
    slots[rank].tag = tag;
    slots[rank].bytes = data.size();
    std::copy(data.begin(), data.end(), slots[rank].data);
  }
  if (!in.complete()) return Error{Errc::kCorrupt, peer_name(socket) + " sent slots that are none"};
  return Ok{};
}

Result<std::vector<NodeSockets>> connect_nodes(World& world, const WorldOptions& options,
                                               const std::string& address,
                                               const std::vector<std::vector<int>>& communicators,
                                               const Life& life) {
  const auto deadline = at_deadline(std::chrono::steady_clock::now() + options.join_timeout);
  const GiveUp give_up = [&] { return deadline() || life.failed() || life.any_left(); };
  std::vector<Membership> all;
  for (const auto& members : communicators)
    all.push_back({members, options.grid.rank, options.place.local_world});
  const auto leads = [](const Membership& of) { return of.several_nodes() && of.leads(); };
  std::vector<Fd> listeners;
  if (std::any_of(all.begin(), all.end(), leads)) listeners.push_back(SPARROW_TRY(listen_tcp(0)));
  const int port = listeners.empty() ? 0 : port_of(listeners[0]);
  const Bytes mine = Packer().text(address).number(static_cast<uint64_t>(port)).take();
  std::optional<Door> door;
  if (!listeners.empty()) door.emplace(std::move(listeners), options.token, give_up);
  const std::vector<Bytes> everybody = SPARROW_TRY(world.exchange(mine));

  std::vector<NodeSockets> sockets(all.size());
  for (size_t i = 0; i < all.size(); ++i) {
    const int leader = all[i].members.front();
    if (!all[i].several_nodes() || !all[i].speaks() || all[i].leads()) continue;
    Unpacker in(everybody[static_cast<size_t>(leader)]);
    const std::string host = in.text();
    const int at = in.small_number();
    Fd socket = SPARROW_TRY(enter(connect_tcp(host, at, give_up), options.token,
                                  hello_of(options, Purpose::kCollective), give_up));
    SPARROW_TRY(send_frame(socket, FrameType::kSlots, Packer().number(i).take(), give_up));
    sockets[i][all[i].node_of(leader)] = std::move(socket);
  }
  size_t expected = 0;
  for (const Membership& of : all) expected += leads(of) ? of.num_other_nodes() : 0;
  while (expected > 0) {
    if (give_up()) return Error{Errc::kIo, "the other nodes did not connect for collective calls"};
    std::optional<Guest> guest = door->next();
    if (!guest || guest->hello.purpose != Purpose::kCollective) continue;
    const Frame frame = SPARROW_TRY(receive_frame(guest->socket, kMaxGreeting, give_up));
    const uint64_t i = Unpacker(frame.payload).number();
    const int node = guest->hello.node();
    if (i >= all.size() || !leads(all[i]) || sockets[i].count(node) != 0) continue;
    sockets[i][node] = std::move(guest->socket);
    --expected;
  }
  return sockets;
}

}  // namespace sparrow
