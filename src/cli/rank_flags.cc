// SPDX-License-Identifier: Apache-2.0
#include "cli/rank_flags.h"

#include "base/files/mapped_file.h"

namespace sparrow::cli {
namespace {

constexpr size_t kMinTokenBytes = 16, kMaxTokenBytes = 4096;

std::string trimmed(std::string_view text) {
  constexpr std::string_view kSpace = " \t\r\n";
  const size_t first = text.find_first_not_of(kSpace);
  if (first == std::string_view::npos) return {};
  return std::string(text.substr(first, text.find_last_not_of(kSpace) - first + 1));
}

}  // namespace

PlaceFlags RankFlags::place() const {
  return {.world = grid.world(),
          .rank = rank,
          .world_size = world_size,
          .num_nodes = num_nodes,
          .node_rank = node_rank,
          .rendezvous = rendezvous};
}

Status RankFlags::check_alone() const {
  const std::pair<const char*, std::optional<int>> about_ranks[] = {{"--rank", rank},
                                                                    {"--world-size", world_size},
                                                                    {"--nnodes", num_nodes},
                                                                    {"--node-rank", node_rank},
                                                                    {"--join-timeout", join_timeout_seconds}};
  for (const auto& [flag, value] : about_ranks)
    if (value)
      return Error{
          Errc::kInvalidArgument,
          strf("{} {}: the grid has one rank; --tensor-parallel-size and --data-parallel-size say how many",
               flag, *value)};
  if (no_peer_memory)
    return Error{Errc::kInvalidArgument, "--no-peer-memory: the grid has one rank, which exchanges nothing"};
  return Ok{};
}

Status RankFlags::check_device(std::string_view device) const {
  if (!no_peer_memory || device == "auto" || device == "cuda") return Ok{};
  return Error{Errc::kInvalidArgument,
               strf("--no-peer-memory: it is about GPUs, and the device is {}", device)};
}

Result<std::string> read_token(const RankFlags& flags, const GetEnv& getenv) {
  std::string token, from;
  if (!flags.token_file.empty()) {
    const MappedFile file = SPARROW_TRY(MappedFile::open(flags.token_file));
    const auto bytes = file.bytes();
    token =
        trimmed({reinterpret_cast<const char*>(bytes.data()), std::min(bytes.size(), 2 * kMaxTokenBytes)});
    from = strf("--token-file {}", flags.token_file.string());
  } else if (const char* text = getenv("SPARROW_TOKEN")) {
    token = trimmed(text);
    from = "SPARROW_TOKEN";
  } else {
    return std::string();
  }
  if (token.size() >= kMinTokenBytes && token.size() <= kMaxTokenBytes) return token;
  return Error{Errc::kInvalidArgument,
               strf("{} has {} characters: a token has {} to {} (openssl rand -hex 32)", from, token.size(),
                    kMinTokenBytes, kMaxTokenBytes)};
}

}  // namespace sparrow::cli
