// SPDX-License-Identifier: Apache-2.0
// The exchange of ranks whose GPUs open each other's memory.
#include <algorithm>
#include <initializer_list>
#include <utility>

#include "base/check.h"
#include "comm/cuda/peer_memory.h"
#include "device/cuda/check.h"
#include "model/cuda/exchange/rank_exchange.h"
#include "model/sharding.h"
#include "ops/cuda/comm/exchange.h"

namespace sparrow {
namespace {

class PeerExchange final : public RankExchange {
 public:
  // Nobody else has opened the memory yet.
  PeerExchange(const ModelConfig& config, const GpuStepLimits& limits, const Grid& grid,
               std::unique_ptr<PeerMemory> memory)
      : RankExchange(grid),
        hidden_(config.hidden_size),
        eps_(config.rms_norm_eps),
        index_heads_(config.num_kv_heads),
        own_heads_(kv_heads_per_rank(config, grid)),
        memory_(std::move(memory)) {
    Arena arena(memory_->of(memory_->rank()));
    const ops::cuda::PeerShape shape = peer_shape(config, grid, limits);
    buffers_ = ops::cuda::lay_out_peers<__nv_bfloat16>(arena, shape);
    SPARROW_CUDA(
        cudaMemset(buffers_.mailbox, 0xff, ops::cuda::mailbox_bytes(hidden_, shape.partial_bytes())));
    SPARROW_CUDA(cudaDeviceSynchronize());
  }

  Status meet(const Everybody& everybody) override {
    const Bytes handle = SPARROW_TRY(memory_->handle());
    return memory_->open(SPARROW_TRY(everybody(handle)));
  }
  bool is_group() const override { return memory_->is_open(); }
  int ranks_on_gpu() const override { return memory_->ranks_on_gpu(); }
  std::optional<Error> failure() const override {
    const std::optional<int> missed = memory_->missed_rank();
    if (!missed) return std::nullopt;
    return Error{Errc::kIo, strf("a GPU waited for rank {} in vain", *missed)};
  }
  size_t device_bytes() const override { return memory_->device_bytes(); }
  bool takes_turns() const override { return memory_->takes_turns(); }
  void begin_turn() const override { memory_->begin_turn(); }
  void end_turn() const override { memory_->end_turn(); }

  bool is_many(std::span<const int> step_rows) const override;
  void add_norm(const Norm& norm, cudaStream_t stream, const Mark& mark) override;
  void collect_logits(const float* mine, int rows, int cols, cudaStream_t stream, const Mark& mark) override;
  void exchange_lists(const uint64_t* mine, int rows, cudaStream_t stream, const Mark& mark) override;
  void hand_out_ids(const int32_t* ids, int count, cudaStream_t stream) override;

 private:
  ops::cuda::Peers peers() const;
  ops::cuda::RowGroups groups_of(const Norm& norm) const;
  // Launches the phases, one by one where ranks take turns.
  template <typename Launch>
  void in_phases(std::initializer_list<int> phases, const Mark& mark, const Launch& launch) const;

  const int hidden_;
  const float eps_;
  const int index_heads_, own_heads_;  // of the group, of this rank
  const std::unique_ptr<PeerMemory> memory_;
};

ops::cuda::Peers PeerExchange::peers() const {
  ops::cuda::Peers p{.memory = {},
                     .mailbox = buffers_.mailbox,
                     .rank = memory_->rank(),
                     .size = memory_->size(),
                     .report = memory_->report(),
                     .shared_gpu = shares_gpu()};
  for (int r = 0; r < p.size; ++r) p.memory[r] = memory_->of(r);
  return p;
}

template <typename Launch>
void PeerExchange::in_phases(std::initializer_list<int> phases, const Mark& mark,
                             const Launch& launch) const {
  if (mark) mark(true);
  if (!memory_->takes_turns()) return launch(ops::cuda::kAllPhases);
  for (const int phase : phases) {
    if (phase != *phases.begin()) {
      if (mark) mark(false);
      memory_->meet();
      if (mark) mark(true);
    }
    launch(phase);
  }
}

bool PeerExchange::is_many(std::span<const int> step_rows) const {
  int few = ops::cuda::few_exchange_rows(grid_.world(), grid_.dp);
  // A cluster for each row waits for those of all other ranks: where these run on the same GPU, so many rows
  // find room there at the same time.
  constexpr int kRowsOfGpu = 64;
  if (const int ranks = memory_->most_ranks_on_gpu(); ranks > 1 && !memory_->takes_turns())
    few = std::min(few, kRowsOfGpu / ranks / grid_.dp);
  return std::any_of(step_rows.begin(), step_rows.end(), [&](int rows) { return rows > few; });
}

ops::cuda::RowGroups PeerExchange::groups_of(const Norm& norm) const {
  SPARROW_CHECK_EQ(static_cast<int>(norm.step_rows.size()), grid_.dp);
  SPARROW_CHECK_EQ(norm.rows.size(), norm.step_rows.size());
  const ops::cuda::RankRange all{0, grid_.world()};
  ops::cuda::RowGroups groups{.count = 0, .ranks = all};
  int first_step_row = 0;  // of the group
  for (int g = 0; g < grid_.dp; first_step_row += norm.step_rows[static_cast<size_t>(g++)]) {
    if (norm.sum == Sum::kOfGroup && g != grid_.group()) continue;
    const ops::cuda::RankRange group{g * grid_.tp, (g + 1) * grid_.tp};
    const int at = groups.count++;
    groups.first_row[at + 1] = groups.first_row[at] + norm.rows[static_cast<size_t>(g)];
    groups.sources[at] = norm.sum == Sum::kOfAll ? all : group;
    groups.destinations[at] = norm.sum == Sum::kOfGroupForAll ? all : group;
    groups.keepers[at] = group;
    if (norm.sum == Sum::kOfGroup) groups.ranks = group;
    groups.first_partial_row[at] = norm.sum == Sum::kOfAll ? first_step_row : 0;
    groups.first_out_row[at] = norm.sum == Sum::kOfGroupForAll ? first_step_row : 0;
    groups.first_mailbox_row[at] = g * ops::cuda::few_exchange_rows(grid_.world(), grid_.dp);
  }
  return groups;
}

void PeerExchange::add_norm(const Norm& norm, cudaStream_t stream, const Mark& mark) {
  using namespace ops::cuda;
  ExchangeArgs args{.peers = peers(),
                    .groups = groups_of(norm),
                    .partial = buffers_.partial(),
                    .residual = norm.residual,
                    .residual_out = norm.residual_out,
                    .row_list = norm.rows_wanted,
                    .weight = norm.weight,
                    .out = buffers_.normed,
                    .hidden = hidden_,
                    .eps = eps_,
                    .f32_partials = buffers_.sums != nullptr,
                    .many = is_many(norm.step_rows)};
  args.rows = args.groups.first_row[args.groups.count];
  // What a group does by itself starts with its own part of the list.
  if (norm.rows_wanted != nullptr && norm.sum == Sum::kOfGroup)
    for (int g = 0; g < grid_.group(); ++g) args.row_list += norm.rows[static_cast<size_t>(g)];
  const auto launch = [&](int phases) {
    args.phases = phases;
    exchange_norm(args, stream);
  };
  args.many ? in_phases({kGive, kTake, kLeave}, mark, launch) : in_phases({kGive, kTake}, mark, launch);
}

void PeerExchange::collect_logits(const float* mine, int rows, int cols, cudaStream_t stream,
                                  const Mark& mark) {
  using namespace ops::cuda;
  const int first = grid_.group() * grid_.tp;
  in_phases({kGive, kTake, kLeave}, mark, [&](int phases) {
    collect_columns({.peers = peers(),
                     .ranks = {first, first + grid_.tp},
                     .x = mine,
                     .all = buffers_.logits,
                     .rows = rows,
                     .cols = cols,
                     .phases = phases},
                    stream);
  });
}

void PeerExchange::exchange_lists(const uint64_t* mine, int rows, cudaStream_t stream, const Mark& mark) {
  using namespace ops::cuda;
  const int first = grid_.group() * grid_.tp;
  ListsArgs args{.peers = peers(),
                 .ranks = {first, first + grid_.tp},
                 .mine = mine,
                 .all = buffers_.lists,
                 .rows = rows,
                 .index_heads = index_heads_,
                 .own_heads = own_heads_};
  for (int place = 0; place < grid_.tp; ++place) args.first_head[place] = place * index_heads_ / grid_.tp;
  in_phases({kGive, kTake}, mark, [&](int phases) {
    args.phases = phases;
    ops::cuda::exchange_lists(args, stream);
  });
}

void PeerExchange::hand_out_ids(const int32_t* ids, int count, cudaStream_t stream) {
  using namespace ops::cuda;
  const int first = grid_.group() * grid_.tp;
  in_phases({kGive, kTake}, {}, [&](int phases) {
    ops::cuda::hand_out_ids({.peers = peers(),
                             .ranks = {first, first + grid_.tp},
                             .ids = ids,
                             .everywhere = buffers_.ids,
                             .count = count,
                             .phases = phases},
                            stream);
  });
}

}  // namespace

Result<std::unique_ptr<RankExchange>> create_peer_exchange(const ModelConfig& config,
                                                           const GpuStepLimits& limits, const Grid& grid) {
  auto memory = SPARROW_TRY(PeerMemory::create(
      grid.rank, grid.world(), static_cast<size_t>(ops::cuda::peer_bytes(peer_shape(config, grid, limits)))));
  return std::unique_ptr<RankExchange>(
      std::make_unique<PeerExchange>(config, limits, grid, std::move(memory)));
}

}  // namespace sparrow
