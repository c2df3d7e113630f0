// SPDX-License-Identifier: Apache-2.0
#include "comm/launch.h"

#include <unistd.h>

#include <charconv>
#include <utility>

#include "base/strf.h"

namespace sparrow {
namespace {

constexpr int kMaxRanks = 1 << 16;

Error invalid(std::string message) {
  return {Errc::kInvalidArgument, std::move(message)};
}

Result<int> parse_number(std::string_view text, std::string_view name, int least, int most) {
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error == std::errc() && end == text.data() + text.size() && value >= least && value <= most)
    return value;
  return invalid(strf("{} must be a number from {} to {}, got \"{}\"", name, least, most, text));
}

// A launcher's variables. nullptr: it has none for that.
struct Launcher {
  const char *rank, *world, *local_rank, *local_world, *nodes;
  bool needs_world = true;  // a rank without it makes no sense
};

constexpr Launcher kLaunchers[] = {
    {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", nullptr},
    {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
     "OMPI_COMM_WORLD_LOCAL_SIZE", nullptr},
    // Batch scripts have SLURM_NTASKS and a rank, too, and run once: only steps know the number of their own
    // tasks.
    {"SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", nullptr, "SLURM_STEP_NUM_NODES", false},
    {"PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS", nullptr},
};

class Environment {
 public:
  explicit Environment(const GetEnv& getenv) : getenv_(getenv) {}

  // "" where it is not set.
  std::string_view text(const char* name) const {
    const char* const value = name == nullptr ? nullptr : getenv_(name);
    return value == nullptr ? std::string_view() : value;
  }
  bool has(const char* name) const { return !text(name).empty(); }
  Result<int> number(const char* name, int least, int most) const {
    return parse_number(text(name), name, least, most);
  }

  // Nullopt: this launcher did not start us, or it started nobody else.
  Result<std::optional<RankPlace>> place(const Launcher& launcher) const {
    if (!has(launcher.world)) {
      if (launcher.needs_world && has(launcher.rank))
        return invalid(
            strf("{} {} is set and {} is not", launcher.rank, text(launcher.rank), launcher.world));
      return std::optional<RankPlace>();
    }
    RankPlace place{.world = SPARROW_TRY(number(launcher.world, 1, kMaxRanks))};
    if (place.world == 1) return std::optional<RankPlace>();
    if (!has(launcher.rank))
      return invalid(strf("{} {} is set and {} is not", launcher.world, text(launcher.world), launcher.rank));
    place.rank = SPARROW_TRY(number(launcher.rank, 0, kMaxRanks));
    if (place.rank >= place.world)
      return invalid(
          strf("{} {} does not exist: {} is {}", launcher.rank, place.rank, launcher.world, place.world));
    SPARROW_TRY(fill_node(place, launcher));
    return std::optional(std::move(place));
  }

  // Where MASTER_ADDR says; "" where it says nothing.
  Result<std::string> master() const {
    if (!has("MASTER_ADDR")) return std::string();
    if (!has("MASTER_PORT"))
      return invalid(strf("MASTER_ADDR {} is set and MASTER_PORT is not", text("MASTER_ADDR")));
    int port = SPARROW_TRY(number("MASTER_PORT", 1, 65535));
    // Torchrun's agent listens there itself.
    if (text("TORCHELASTIC_USE_AGENT_STORE") == "True") ++port;
    const std::string_view host = text("MASTER_ADDR");
    const bool is_v6 = host.find(':') != std::string_view::npos && !host.starts_with('[');
    return is_v6 ? strf("[{}]:{}", host, port) : strf("{}:{}", host, port);
  }

  // A name that all ranks of a node have and those of another job have not.
  std::string job() const {
    if (has("SPARROW_JOB")) return std::string(text("SPARROW_JOB"));  // of who started them
    if (has("PMIX_NAMESPACE")) return std::string(text("PMIX_NAMESPACE"));
    if (has("SLURM_STEP_NUM_TASKS") && has("SLURM_JOB_ID"))
      return strf("slurm-{}.{}", text("SLURM_JOB_ID"), text("SLURM_STEP_ID"));
    return strf("parent-{}", ::getppid());
  }

 private:
  Status fill_node(RankPlace& place, const Launcher& launcher) const {
    place.local_world = place.world;
    if (has(launcher.local_world)) {
      place.local_world = SPARROW_TRY(number(launcher.local_world, 1, place.world));
    } else if (has(launcher.nodes)) {
      const int nodes = SPARROW_TRY(number(launcher.nodes, 1, place.world));
      if (place.world % nodes != 0)
        return invalid(strf("{} {} cannot be shared by {} {} equally", launcher.world, place.world,
                            launcher.nodes, nodes));
      place.local_world = place.world / nodes;
    }
    place.local_rank = place.rank % place.local_world;
    if (has(launcher.local_rank))
      place.local_rank = SPARROW_TRY(number(launcher.local_rank, 0, place.local_world - 1));
    if (place.rank % place.local_world == place.local_rank) return Ok{};
    return invalid(strf("{} {} with {} {}: ranks of a node must be neighbours, {} on each", launcher.rank,
                        place.rank, launcher.local_rank, place.local_rank, place.local_world));
  }

  const GetEnv& getenv_;
};

Result<std::optional<RankPlace>> place_by_flags(const PlaceFlags& flags) {
  if (!flags.rank && !flags.world_size) return std::optional<RankPlace>();
  if (!flags.rank) return invalid(strf("--world-size {} without --rank", *flags.world_size));
  if (!flags.world_size) return invalid(strf("--rank {} without --world-size", *flags.rank));
  RankPlace place{.rank = *flags.rank, .world = *flags.world_size};
  if (place.rank < 0 || place.rank >= place.world)
    return invalid(strf("--rank {} does not exist: --world-size is {}", place.rank, place.world));
  const int nodes = flags.num_nodes.value_or(1);
  if (nodes < 1 || place.world % nodes != 0)
    return invalid(strf("--world-size {} cannot be shared by --nnodes {} equally", place.world, nodes));
  place.local_world = place.world / nodes;
  place.local_rank = place.rank % place.local_world;
  if (flags.node_rank && place.rank / place.local_world != *flags.node_rank)
    return invalid(strf("--rank {} is on node {} of {}, and --node-rank is {}", place.rank,
                        place.rank / place.local_world, nodes, *flags.node_rank));
  return std::optional(std::move(place));
}

// Where ranks meet: what the flag says; else, with several nodes, what the environment says.
Status fill_rendezvous(RankPlace& place, const PlaceFlags& flags, const Environment& environment) {
  const bool many_nodes = place.local_world < place.world;
  place.rendezvous = flags.rendezvous;
  if (place.rendezvous.empty() && many_nodes) place.rendezvous = SPARROW_TRY(environment.master());
  if (place.rendezvous.empty() && many_nodes)
    return invalid(strf("{} ranks on {} nodes need --rendezvous host:port, an address of rank 0's node",
                        place.world, place.world / place.local_world));
  if (!flags.rendezvous.empty()) SPARROW_TRY(parse_host_port(flags.rendezvous, "--rendezvous"));
  return Ok{};
}

}  // namespace

Status check_token(const RankPlace& place, std::string_view token) {
  if (!token.empty() || place.world == place.local_world) return Ok{};
  return invalid(strf(
      "ranks on {} nodes need a token: --token-file or SPARROW_TOKEN, the same on all (openssl rand -hex 32)",
      place.world / place.local_world));
}

Result<HostPort> parse_host_port(std::string_view text, std::string_view name) {
  const size_t colon = text.rfind(':');
  const std::string_view host = text.substr(0, colon);
  const bool is_bracketed = host.size() > 2 && host.starts_with('[') && host.ends_with(']');
  if (colon == std::string_view::npos || host.empty() ||
      (!is_bracketed && host.find_first_of(":[]") != std::string_view::npos))
    return invalid(strf("{} must be host:port (IPv6: [address]:port), got \"{}\"", name, text));
  const int port = SPARROW_TRY(parse_number(text.substr(colon + 1), strf("the port of {}", name), 1, 65535));
  return HostPort{std::string(is_bracketed ? host.substr(1, host.size() - 2) : host), port};
}

Result<std::optional<RankPlace>> place_of(const PlaceFlags& flags, const GetEnv& getenv) {
  const Environment environment(getenv);
  std::optional<RankPlace> place = SPARROW_TRY(place_by_flags(flags));
  const char* world_from = "--world-size";
  // Who starts a node's ranks itself is no rank, whatever started it.
  const bool starts_ranks = !place && flags.num_nodes.has_value();
  for (const Launcher& launcher : kLaunchers) {
    if (place || starts_ranks) break;
    place = SPARROW_TRY(environment.place(launcher));
    world_from = launcher.world;
  }
  if (!place) return place;
  if (place->world != flags.world)
    return invalid(
        strf("{} is {}, and the grid has {} ranks: --tensor-parallel-size times "
             "--data-parallel-size must be as many as were started",
             world_from, place->world, flags.world));
  SPARROW_TRY(fill_rendezvous(*place, flags, environment));
  place->job = environment.job();
  return place;
}

Result<std::vector<RankPlace>> local_places(const PlaceFlags& flags, const GetEnv& getenv,
                                            const std::string& job) {
  const int nodes = flags.num_nodes.value_or(1), node = flags.node_rank.value_or(0);
  if (flags.node_rank && !flags.num_nodes) return invalid(strf("--node-rank {} without --nnodes", node));
  if (nodes > 1 && !flags.node_rank) return invalid(strf("--nnodes {} without --node-rank", nodes));
  if (nodes < 1 || flags.world % nodes != 0)
    return invalid(strf("--nnodes {}: the grid's {} ranks cannot be shared equally", nodes, flags.world));
  if (node < 0 || node >= nodes)
    return invalid(strf("--node-rank {} does not exist: --nnodes is {}", node, nodes));
  const int local_world = flags.world / nodes;
  std::vector<RankPlace> places;
  for (int i = 0; i < local_world; ++i) {
    RankPlace place{.rank = node * local_world + i,
                    .world = flags.world,
                    .local_rank = i,
                    .local_world = local_world,
                    .job = job};
    SPARROW_TRY(fill_rendezvous(place, flags, Environment(getenv)));
    places.push_back(std::move(place));
  }
  return places;
}

}  // namespace sparrow
