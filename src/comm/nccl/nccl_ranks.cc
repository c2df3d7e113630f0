// SPDX-License-Identifier: Apache-2.0
#include "comm/nccl/nccl_ranks.h"

#include <cstring>
#include <utility>

namespace sparrow {
namespace {

// What a rank tells the others of its library: its version, and the id that rank 0 asked it for; or why it
// has none, in words.
struct Told {
  int version = 0;
  nccl::UniqueId id{};
};

Bytes bytes_of(const Result<Told>& told) {
  if (!told.ok()) {
    const std::string& text = told.error().message;
    const auto* const first = reinterpret_cast<const std::byte*>(text.data());
    Bytes bytes(1);
    bytes.insert(bytes.end(), first, first + text.size());
    return bytes;
  }
  Bytes bytes(1 + sizeof(Told));
  bytes[0] = std::byte{1};
  std::memcpy(bytes.data() + 1, &told.value(), sizeof(Told));
  return bytes;
}

Result<Told> read(const Bytes& bytes) {
  if (!bytes.empty() && bytes[0] == std::byte{0})
    return Error{Errc::kUnsupported,
                 std::string(reinterpret_cast<const char*>(bytes.data()) + 1, bytes.size() - 1)};
  if (bytes.size() != 1 + sizeof(Told)) return Error{Errc::kCorrupt, "told nothing of its NCCL"};
  Told told;
  std::memcpy(&told, bytes.data() + 1, sizeof(told));
  return told;
}

Result<Told> ask(const Result<NcclLibrary>& library, int rank) {
  if (!library.ok()) return library.error();
  Told told;
  if (int code = library->GetVersion(&told.version); code != nccl::kSuccess)
    return Error{Errc::kUnsupported, library->describe(code)};
  if (rank > 0) return told;
  if (int code = library->GetUniqueId(&told.id); code != nccl::kSuccess)
    return Error{Errc::kIo, strf("NCCL {}: {}", library->version(), library->describe(code))};
  return told;
}

}  // namespace

Result<std::unique_ptr<NcclRanks>> NcclRanks::join(const Options& options, const Exchange& exchange) {
  Result<NcclLibrary> library = NcclLibrary::open(options.needs, options.library);
  const std::vector<Bytes> all = SPARROW_TRY(exchange(bytes_of(ask(library, options.grid.rank))));
  std::vector<Told> told;
  for (size_t r = 0; r < all.size(); ++r) {
    Result<Told> one = read(all[r]);
    if (!one.ok()) return Error{one.error().code, strf("rank {}: {}", r, one.error().message)};
    if (told.push_back(one.value()); told[r].version != told[0].version)
      return Error{Errc::kUnsupported,
                   strf("rank {} has NCCL {} and rank 0 {}: give all the same", r,
                        NcclLibrary::name_of(told[r].version), NcclLibrary::name_of(told[0].version))};
  }
  auto ranks = std::unique_ptr<NcclRanks>(new NcclRanks(options));
  ranks->version_ = library->version();
  SPARROW_TRY(ranks->make(std::make_shared<const NcclLibrary>(std::move(library).value()), told[0].id));
  ranks->watch_ = std::thread([made = ranks.get()] { made->watch(); });
  return ranks;
}

Status NcclRanks::make(std::shared_ptr<const NcclLibrary> library, const nccl::UniqueId& id) {
  const Grid& grid = options_.grid;
  world_ = SPARROW_TRY(
      NcclComm::create(std::move(library), id, grid.rank, grid.world(), options_.stream, options_.patience));
  group_ = SPARROW_TRY(world_->split(grid.group(), grid.tp_rank(), grid.tp_rank(), grid.tp));
  across_ = SPARROW_TRY(world_->split(grid.tp_rank(), grid.group(), grid.group(), grid.dp));
  return Ok{};
}

NcclRanks::~NcclRanks() {
  if (!watch_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
  }
  ending_.notify_all();
  watch_.join();
}

std::optional<Error> NcclRanks::failure() const {
  for (const NcclComm* const comm : {world_.get(), group_.get(), across_.get()})
    if (auto failed = comm->failure()) return failed;
  return std::nullopt;
}

void NcclRanks::watch() {
  std::unique_lock lock(mutex_);
  while (!ending_.wait_for(lock, options_.interval, [this] { return ends_; })) {
    const std::optional<Error> failed = failure();
    if (!failed) continue;
    if (options_.lost) options_.lost(*failed);
    // No abort: NCCL would free what a step may still use, whose launches are on their way. Whoever was told
    // ends the process, and what waits on the GPU with it.
    for (NcclComm* const comm : {across_.get(), group_.get(), world_.get()}) comm->give_up();
    return;
  }
}

}  // namespace sparrow
