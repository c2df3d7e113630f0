// SPDX-License-Identifier: Apache-2.0
#include "comm/net/hello.h"

#include <unistd.h>

#include <array>
#include <climits>

#include "base/strf.h"

namespace sparrow {
namespace {

constexpr int kMaxSide = 1 << 15;    // of a grid: its ranks can be counted
constexpr size_t kShownDigest = 12;  // enough to tell two apart

}  // namespace

Hello hello_of(const WorldOptions& options, Purpose purpose) {
  std::array<char, HOST_NAME_MAX + 1> host{};
  gethostname(host.data(), host.size() - 1);
  return {.purpose = purpose,
          .grid = options.grid,
          .local_world = options.place.local_world,
          .host = host.data(),
          .build = options.build,
          .config_digest = options.config_digest,
          .gpu_uuid = options.gpu_uuid,
          .share_gpu = options.share_gpu};
}

Bytes pack(const Hello& hello) {
  const auto number = [](int value) { return static_cast<uint64_t>(value); };
  return Packer()
      .number(static_cast<uint64_t>(hello.purpose))
      .number(number(hello.grid.tp))
      .number(number(hello.grid.dp))
      .number(hello.grid.expert_parallel ? 1 : 0)
      .number(number(hello.grid.rank))
      .number(number(hello.local_world))
      .text(hello.host)
      .text(hello.build)
      .text(hello.config_digest)
      .text(hello.gpu_uuid)
      .number(hello.share_gpu ? 1 : 0)
      .take();
}

Result<Hello> unpack_hello(std::span<const std::byte> bytes) {
  Unpacker in(bytes);
  Hello hello;
  const int purpose = in.small_number();
  hello.grid.tp = in.small_number();
  hello.grid.dp = in.small_number();
  hello.grid.expert_parallel = in.number() != 0;
  hello.grid.rank = in.small_number();
  hello.local_world = in.small_number();
  hello.host = in.text();
  hello.build = in.text();
  hello.config_digest = in.text();
  hello.gpu_uuid = in.text();
  hello.share_gpu = in.number() != 0;
  const bool known =
      purpose >= static_cast<int>(Purpose::kControl) && purpose <= static_cast<int>(Purpose::kCollective);
  const auto sane = [](int size) { return size >= 1 && size <= kMaxSide; };
  if (!in.complete() || !known || !sane(hello.grid.tp) || !sane(hello.grid.dp) || !sane(hello.local_world))
    return Error{Errc::kCorrupt, "a greeting that is none"};
  hello.purpose = static_cast<Purpose>(purpose);
  return hello;
}

std::string name_of(const Hello& hello) {
  return strf("rank {} at {}", hello.grid.rank, hello.host);
}

std::optional<std::string> mismatch(const Hello& guest, const Hello& host) {
  const auto differ = [&](const char* what, const auto& theirs, const auto& ours) {
    return strf("{} has {} {}; {} has {}", name_of(guest), what, theirs, name_of(host), ours);
  };
  if (guest.build != host.build) return differ("build", guest.build, host.build);
  Grid same = guest.grid;
  same.rank = host.grid.rank;
  if (same != host.grid) return differ("the grid", describe(guest.grid), describe(host.grid));
  if (guest.config_digest != host.config_digest)
    return differ("the configuration", guest.config_digest.substr(0, kShownDigest),
                  host.config_digest.substr(0, kShownDigest)) +
           ": all need the same model and flags";
  if (guest.local_world != host.local_world)
    return differ("ranks on its node:", guest.local_world, host.local_world);
  if (guest.share_gpu != host.share_gpu) return differ("--share-gpu", guest.share_gpu, host.share_gpu);
  if (guest.grid.rank >= host.grid.world())
    return strf("{}: ranks of {} are 0 to {}, says {}", name_of(guest), describe(host.grid),
                host.grid.world() - 1, name_of(host));
  return std::nullopt;
}

std::optional<std::string> conflict(const Hello& a, const Hello& b) {
  if (a.grid.rank == b.grid.rank)
    return strf("rank {} came twice: from {} and from {}", a.grid.rank, a.host, b.host);
  if (!a.gpu_uuid.empty() && a.gpu_uuid == b.gpu_uuid && !a.share_gpu)
    return strf("{} and {} have the same GPU, {}; --share-gpu allows that", name_of(a), name_of(b),
                a.gpu_uuid);
  return std::nullopt;
}

}  // namespace sparrow
