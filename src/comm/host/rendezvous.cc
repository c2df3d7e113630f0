// SPDX-License-Identifier: Apache-2.0
#include "comm/host/rendezvous.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/strf.h"

namespace sparrow {
namespace {

constexpr std::chrono::seconds kRefusalTime{2};  // for a refusal that is on its way
constexpr std::chrono::seconds kLateStart{5};    // rank 0 may have begun to wait so much later than others

std::string seconds(std::chrono::milliseconds time) {
  return strf("{} s", static_cast<double>(time.count()) / 1000);
}

class Rendezvous {
 public:
  Rendezvous(const WorldOptions& options, HostPort at, size_t memory_bytes)
      : options_(options),
        at_(std::move(at)),
        memory_bytes_(memory_bytes),
        deadline_(at_deadline(std::chrono::steady_clock::now() + options.join_timeout)),
        last_word_(at_deadline(std::chrono::steady_clock::now() + options.join_timeout + kLateStart)) {
    meeting_.control.resize(static_cast<size_t>(world()));
    meeting_.messages.resize(static_cast<size_t>(num_nodes()));
  }

  Result<Meeting> host();
  Result<Meeting> visit();

 private:
  int world() const { return options_.grid.world(); }
  int local_world() const { return options_.place.local_world; }
  int num_nodes() const { return world() / local_world(); }
  int node() const { return options_.grid.rank / local_world(); }
  bool first_of_node() const { return options_.place.local_rank == 0; }
  std::string node_socket() const { return strf("sparrow-{}-{}-{}", geteuid(), options_.place.job, node()); }

  // Rank 0.
  std::optional<std::string> receive(Guest guest);
  std::optional<std::string> gone() const;
  bool all_here() const { return expected_ == 0; }
  std::string missing(const Door& door) const;
  Error refuse(const std::string& reason, Door& door);
  // Others.
  Result<Fd> connect(Purpose purpose);
  Result<Fd> connect_to_node();
  Status share_memory();
  Status serve_memory();
  bool refused();
  Status verdict(const GiveUp& give_up);
  Error explain(const Error& error);

  Status hand_out_memory(const Fd& socket) {
    SPARROW_TRY(send_frame(socket, FrameType::kMemory, {}, deadline_));
    return send_fd(socket, meeting_.memory.fd(), deadline_);
  }

  const WorldOptions& options_;
  const HostPort at_;
  const size_t memory_bytes_;
  const GiveUp deadline_;
  const GiveUp last_word_;  // rank 0's: who is missing it knows, unless the others leave before it says so
  Meeting meeting_;
  std::vector<Hello> hellos_;             // rank 0: its own, then those who came for control
  Fd odd_one_;                            // rank 0: of whoever cannot join
  int expected_ = 0;                      // rank 0: connections that have not come yet
  std::optional<Result<Frame>> verdict_;  // others: what rank 0 said
};

Result<Meeting> Rendezvous::host() {
  std::vector<Fd> listeners;
  if (local_world() > 1) listeners.push_back(SPARROW_TRY(listen_unix(node_socket())));
  if (num_nodes() > 1) listeners.push_back(SPARROW_TRY(listen_tcp(at_.port)));
  meeting_.memory = SPARROW_TRY(SharedMemory::create(memory_bytes_));
  expected_ = (world() - 1) + (local_world() - 1) + (num_nodes() - 1);
  hellos_.push_back(hello_of(options_, Purpose::kControl));
  Door door(std::move(listeners), options_.token, deadline_);
  while (!all_here()) {
    std::optional<Guest> guest = door.next();
    std::optional<std::string> wrong = guest ? receive(std::move(*guest)) : gone();
    if (!wrong && deadline_()) wrong = missing(door);
    if (wrong) return refuse(*wrong, door);
  }
  for (int r = 1; r < world(); ++r)
    SPARROW_TRY(send_frame(meeting_.control[static_cast<size_t>(r)], FrameType::kWorld, {}, deadline_));
  meeting_.address = at_.host;
  return std::move(meeting_);
}

// What is wrong with the guest, if anything.
std::optional<std::string> Rendezvous::receive(Guest guest) {
  const Hello& hello = guest.hello;
  std::optional<std::string> wrong = mismatch(hello, hellos_[0]);
  const auto rank = static_cast<size_t>(hello.grid.rank);
  Fd* place = nullptr;
  if (!wrong && hello.purpose == Purpose::kControl) {
    for (size_t i = 0; i < hellos_.size() && !wrong; ++i) wrong = conflict(hello, hellos_[i]);
    place = &meeting_.control[rank];
  } else if (!wrong && hello.purpose == Purpose::kMessages) {
    place = &meeting_.messages[static_cast<size_t>(hello.node())];
  } else if (!wrong && hello.purpose == Purpose::kMemory) {
    // Who dies here is missed soon.
    if (hello.node() == 0 && hand_out_memory(guest.socket).ok()) --expected_;
    return std::nullopt;
  }
  if (!wrong && (place == nullptr || *place)) wrong = name_of(hello) + " came twice";
  if (wrong) {
    odd_one_ = std::move(guest.socket);
    return wrong;
  }
  *place = std::move(guest.socket);
  if (hello.purpose == Purpose::kControl) hellos_.push_back(hello);
  --expected_;
  return std::nullopt;
}

std::optional<std::string> Rendezvous::gone() const {
  for (const Hello& hello : hellos_) {
    const Fd& socket = meeting_.control[static_cast<size_t>(hello.grid.rank)];
    if (socket && wait_for(socket, POLLRDHUP, {})) return name_of(hello) + " left before all were there";
  }
  return std::nullopt;
}

std::string Rendezvous::missing(const Door& door) const {
  std::string ranks;
  int count = 0;
  for (int r = 1; r < world(); ++r) {
    if (meeting_.control[static_cast<size_t>(r)]) continue;
    ranks += (count++ == 0 ? "" : ", ") + std::to_string(r);
  }
  std::string text = strf("rank{} {} of {} did not come within {}", count == 1 ? "" : "s", ranks, world(),
                          seconds(options_.join_timeout));
  if (count == 0)
    text = strf("not all of {} ranks were ready within {}", world(), seconds(options_.join_timeout));
  const std::string turned_away = door.turned_away();
  return turned_away.empty() ? text : strf("{}; turned away: {}", text, turned_away);
}

// Tells all who are there, and for a moment those who still come: they would wait for nothing.
Error Rendezvous::refuse(const std::string& reason, Door& door) {
  const Bytes payload = Packer().text(reason).take();
  const auto over = at_deadline(std::chrono::steady_clock::now() + kRefusalTime);
  const auto tell = [&](const Fd& socket) {
    return send_frame(socket, FrameType::kRefuse, payload, over).ok();
  };
  int late = world() - 1;
  if (odd_one_ && tell(odd_one_)) --late;
  for (const Fd& socket : meeting_.control)
    if (socket && tell(socket)) --late;
  while (late > 0 && !over() && !deadline_()) {
    const std::optional<Guest> guest = door.next();
    if (guest && guest->hello.purpose == Purpose::kControl && tell(guest->socket)) --late;
  }
  return {Errc::kInvalidArgument, reason};
}

Result<Fd> Rendezvous::connect(Purpose purpose) {
  const bool same_node = num_nodes() == 1;
  Result<Fd> socket =
      enter(same_node ? connect_unix(node_socket(), deadline_) : connect_tcp(at_.host, at_.port, deadline_),
            options_.token, hello_of(options_, purpose), deadline_);
  if (socket.ok()) return socket;
  const std::string where = same_node ? "on this node" : strf("at {}:{}", at_.host, at_.port);
  if (deadline_())
    return Error{Errc::kIo, strf("rank 0 of {} did not answer {} within {}: {}", world(), where,
                                 seconds(options_.join_timeout), socket.error().message)};
  return Error{Errc::kInvalidArgument,
               strf("{} cannot join rank 0 {}: {}", name_of(hello_of(options_, purpose)), where,
                    socket.error().message)};
}

Result<Meeting> Rendezvous::visit() {
  meeting_.control[0] = SPARROW_TRY(connect(Purpose::kControl));
  // On rank 0's own node a name may stand for an address of loopback.
  meeting_.address = node() == 0 ? at_.host : own_address(meeting_.control[0]);
  if (first_of_node()) {
    Result<Fd> messages = connect(Purpose::kMessages);
    if (!messages.ok()) return explain(messages.error());
    meeting_.messages[0] = std::move(messages).value();
  }
  const Status shared = first_of_node() ? serve_memory() : share_memory();
  if (!shared.ok()) return explain(shared.error());
  SPARROW_TRY(verdict(last_word_));
  return std::move(meeting_);
}

// What rank 0 says: all are there, or why they never will be.
Status Rendezvous::verdict(const GiveUp& give_up) {
  if (!verdict_) verdict_ = receive_frame(meeting_.control[0], kMaxGreeting, give_up);
  if (!verdict_->ok()) return verdict_->error();
  const Frame& frame = verdict_->value();
  if (frame.type == FrameType::kWorld) return Ok{};
  return Error{Errc::kInvalidArgument, Unpacker(frame.payload).text()};
}

bool Rendezvous::refused() {
  const bool said = verdict_ || wait_for(meeting_.control[0], POLLIN, {});
  return said && !verdict(deadline_).ok();
}

// From the first rank of this node. What rank 0 has to say meanwhile comes first.
Status Rendezvous::share_memory() {
  const GiveUp give_up = [this] { return deadline_() || refused(); };
  const Fd socket = SPARROW_TRY(enter(connect_unix(node_socket(), give_up), options_.token,
                                      hello_of(options_, Purpose::kMemory), give_up));
  const Frame frame = SPARROW_TRY(receive_frame(socket, kMaxGreeting, give_up));
  // Rank 0 may hear of this rank here first.
  if (frame.type == FrameType::kRefuse) return Error{Errc::kInvalidArgument, Unpacker(frame.payload).text()};
  if (frame.type != FrameType::kMemory) return Error{Errc::kCorrupt, "no memory from the node's first rank"};
  Fd memory = SPARROW_TRY(receive_fd(socket, give_up));
  meeting_.memory = SPARROW_TRY(SharedMemory::open(std::move(memory), memory_bytes_));
  return Ok{};
}

// To the other ranks of this node, which is not rank 0's.
Status Rendezvous::serve_memory() {
  meeting_.memory = SPARROW_TRY(SharedMemory::create(memory_bytes_));
  if (local_world() == 1) return Ok{};
  std::vector<Fd> listeners;
  listeners.push_back(SPARROW_TRY(listen_unix(node_socket())));
  Door door(std::move(listeners), options_.token, deadline_);
  for (int left = local_world() - 1; left > 0;) {
    if (deadline_() || refused()) return Error{Errc::kIo, "not all ranks of this node came"};
    const std::optional<Guest> guest = door.next();
    if (!guest || guest->hello.purpose != Purpose::kMemory) continue;
    if (hand_out_memory(guest->socket).ok()) --left;
  }
  return Ok{};
}

// What rank 0 says is wrong, if it says something: it knows more.
Error Rendezvous::explain(const Error& error) {
  const auto soon = at_deadline(std::chrono::steady_clock::now() + kRefusalTime);
  const Status said = verdict(soon);
  return said.ok() || !verdict_->ok() ? error : said.error();
}

Status check(const WorldOptions& options) {
  const auto invalid = [](std::string message) { return Error{Errc::kInvalidArgument, std::move(message)}; };
  const RankPlace& place = options.place;
  if (place.world != options.grid.world())
    return invalid(
        strf("{} ranks were started; {} has {}", place.world, describe(options.grid), options.grid.world()));
  if (place.local_world < 1 || place.world % place.local_world != 0)
    return invalid(strf("{} ranks do not divide into nodes of {}", place.world, place.local_world));
  if (place.rank < 0 || place.rank != options.grid.rank || place.local_rank != place.rank % place.local_world)
    return invalid(strf("rank {} is number {} on its node of {}: ranks of a node must be neighbours",
                        place.rank, place.local_rank, place.local_world));
  if (place.world > place.local_world && place.rendezvous.empty())
    return invalid("several nodes need --rendezvous HOST:PORT");
  return check_token(place, options.token);
}

}  // namespace

Result<Meeting> meet(const WorldOptions& options, size_t memory_bytes) {
  SPARROW_TRY(check(options));
  HostPort at;
  if (options.place.world > options.place.local_world)
    at = SPARROW_TRY(parse_host_port(options.place.rendezvous, "--rendezvous"));
  Rendezvous rendezvous(options, std::move(at), memory_bytes);
  return options.grid.rank == 0 ? rendezvous.host() : rendezvous.visit();
}

}  // namespace sparrow
