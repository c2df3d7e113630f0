// SPDX-License-Identifier: Apache-2.0
#include "comm/world.h"

#include <algorithm>
#include <utility>

#include "base/strf.h"
#include "comm/host/host_comm.h"
#include "comm/host/host_link.h"
#include "comm/host/node_exchange.h"
#include "comm/host/node_memory.h"
#include "comm/host/peers.h"
#include "comm/host/rendezvous.h"
#include "comm/thread_comm.h"

namespace sparrow {
namespace {

class HostWorld : public World {
 public:
  HostWorld(const WorldOptions& options, const NodeMemory& layout, Meeting meeting)
      : grid_(options.grid),
        layout_(layout),
        memory_(std::move(meeting.memory)),
        life_(options.grid.world()),
        peers_(life_, options.grid.rank, std::move(meeting.control), options.ping_timeout),
        link_(options.grid.rank, memory_.data(), layout, std::move(meeting.messages), life_, peers_) {}

  const Grid& grid() const override { return grid_; }
  ControlLink& link() override { return link_; }
  RankComms comms() override { return comms_; }
  Result<std::vector<Bytes>> exchange(std::span<const std::byte> mine) override;
  std::unique_ptr<LoadPacer> load_pacer(std::vector<char> reads) override;

  Status connect_comms(const WorldOptions& options, const std::string& address);

 private:
  std::shared_ptr<Communicator> communicator(int kind, const std::vector<int>& members, NodeSockets sockets);

  const Grid grid_;
  const NodeMemory layout_;
  SharedMemory memory_;
  Life life_;
  Peers peers_;
  HostLink link_;
  RankComms comms_;
};

Result<std::vector<Bytes>> HostWorld::exchange(std::span<const std::byte> mine) {
  const int world = grid_.world();
  std::vector<Bytes> all;
  if (grid_.rank != 0) {
    peers_.post(0, FrameType::kExchange, mine);
    const Bytes payload = SPARROW_TRY(peers_.take(0, FrameType::kPeers));
    Unpacker in(payload);
    for (int r = 0; r < world; ++r) {
      const auto bytes = in.raw();
      all.emplace_back(bytes.begin(), bytes.end());
    }
    if (!in.complete()) return Error{Errc::kCorrupt, "rank 0 sent an exchange that is none"};
    return all;
  }
  all.emplace_back(mine.begin(), mine.end());
  for (int r = 1; r < world; ++r) all.push_back(SPARROW_TRY(peers_.take(r, FrameType::kExchange)));
  Packer packer;
  for (const Bytes& bytes : all) packer.raw(bytes);
  const Bytes payload = packer.take();
  for (int r = 1; r < world; ++r) peers_.post(r, FrameType::kPeers, payload);
  return all;
}

std::unique_ptr<LoadPacer> HostWorld::load_pacer(std::vector<char> reads) {
  if (layout_.local_world == 1 || reads.size() > NodeMemory::kPacedFiles) return nullptr;
  return std::make_unique<LoadPacer>(memory_.data() + layout_.load_pacer(), layout_.local_world,
                                     std::move(reads), [this] { return life_.failed() || life_.any_left(); });
}

std::shared_ptr<Communicator> HostWorld::communicator(int kind, const std::vector<int>& members,
                                                      NodeSockets sockets) {
  if (members.size() == 1) return thread_comms({})[0].world;
  const int node = grid_.rank / layout_.local_world;
  std::vector<int> here, nodes;
  for (size_t i = 0; i < members.size(); ++i) {
    nodes.push_back(members[i] / layout_.local_world);
    if (nodes.back() == node) here.push_back(static_cast<int>(i));
  }
  const auto rank = std::find(members.begin(), members.end(), grid_.rank) - members.begin();
  const int first = members[static_cast<size_t>(here[0])] % layout_.local_world;
  std::unique_ptr<NodeSlots> others;
  if (!sockets.empty()) others = std::make_unique<NodeSlots>(nodes, node, std::move(sockets), life_);
  return std::make_shared<HostComm>(memory_.data() + layout_.communicator(kind, first), members,
                                    static_cast<int>(rank), here, life_, peers_, std::move(others));
}

Status HostWorld::connect_comms(const WorldOptions& options, const std::string& address) {
  std::vector<int> group, across, world;
  for (int r = 0; r < grid_.world(); ++r) {
    const Grid other{.tp = grid_.tp, .dp = grid_.dp, .rank = r};
    if (other.group() == grid_.group()) group.push_back(r);
    if (other.tp_rank() == grid_.tp_rank()) across.push_back(r);
    world.push_back(r);
  }
  std::vector<NodeSockets> sockets(3);
  if (layout_.world > layout_.local_world)
    sockets = SPARROW_TRY(connect_nodes(*this, options, address, {group, across, world}, life_));
  comms_.group = communicator(0, group, std::move(sockets[0]));
  comms_.across = communicator(1, across, std::move(sockets[1]));
  comms_.world = communicator(2, world, std::move(sockets[2]));
  return Ok{};
}

}  // namespace

Result<std::unique_ptr<World>> World::join(const WorldOptions& options) {
  const NodeMemory layout{.world = options.grid.world(), .local_world = options.place.local_world};
  if (layout.local_world > Ring::kMaxReaders)
    return Error{Errc::kUnsupported,
                 strf("{} ranks on one node; {} are the most", layout.local_world, Ring::kMaxReaders)};
  Meeting meeting = SPARROW_TRY(meet(options, layout.bytes()));
  const std::string address = meeting.address;
  auto world = std::make_unique<HostWorld>(options, layout, std::move(meeting));
  SPARROW_TRY(world->connect_comms(options, address));
  return std::unique_ptr<World>(std::move(world));
}

}  // namespace sparrow
