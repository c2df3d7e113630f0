// SPDX-License-Identifier: Apache-2.0
#include "model/cuda/rank_exchange.h"

#include <algorithm>

#include "base/check.h"
#include "device/cuda/check.h"
#include "model/sharding.h"

namespace sparrow {

RankExchange::RankExchange(const ModelConfig& config, const GpuStepLimits& limits, const Grid& grid,
                           PeerMemory& memory)
    : hidden_(config.hidden_size),
      eps_(config.rms_norm_eps),
      grid_(grid),
      index_heads_(config.num_kv_heads),
      own_heads_(kv_heads_per_rank(config, grid)),
      memory_(memory) {
  Arena arena(memory.of(memory.rank()));
  const ops::cuda::PeerShape shape = peer_shape(config, grid, limits);
  buffers_ = ops::cuda::lay_out_peers<__nv_bfloat16>(arena, shape);
  SPARROW_CUDA(cudaMemset(buffers_.mailbox, 0xff, ops::cuda::mailbox_bytes(hidden_, shape.partial_bytes())));
  SPARROW_CUDA(cudaDeviceSynchronize());
}

ops::cuda::Peers RankExchange::peers() const {
  ops::cuda::Peers p{.memory = {},
                     .mailbox = buffers_.mailbox,
                     .rank = memory_.rank(),
                     .size = memory_.size(),
                     .report = memory_.report(),
                     .shared_gpu = shares_gpu()};
  for (int r = 0; r < p.size; ++r) p.memory[r] = memory_.of(r);
  return p;
}

template <typename Launch>
void RankExchange::in_phases(std::initializer_list<int> phases, const Mark& mark,
                             const Launch& launch) const {
  if (mark) mark(true);
  if (!memory_.takes_turns()) return launch(ops::cuda::kAllPhases);
  for (const int phase : phases) {
    if (phase != *phases.begin()) {
      if (mark) mark(false);
      memory_.meet();
      if (mark) mark(true);
    }
    launch(phase);
  }
}

bool RankExchange::is_many(std::span<const int> step_rows) const {
  int few = ops::cuda::few_exchange_rows(grid_.world(), grid_.dp);
  // A cluster for each row waits for those of all other ranks: where these run on the same GPU, so many rows
  // find room there at the same time.
  constexpr int kRowsOfGpu = 64;
  if (const int ranks = memory_.most_ranks_on_gpu(); ranks > 1 && !memory_.takes_turns())
    few = std::min(few, kRowsOfGpu / ranks / grid_.dp);
  return std::any_of(step_rows.begin(), step_rows.end(), [&](int rows) { return rows > few; });
}

ops::cuda::RowGroups RankExchange::groups_of(const Norm& norm) const {
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

void RankExchange::add_norm(const Norm& norm, cudaStream_t stream, const Mark& mark) const {
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

void RankExchange::collect_logits(const float* mine, int rows, int cols, cudaStream_t stream,
                                  const Mark& mark) const {
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

void RankExchange::exchange_lists(const uint64_t* mine, int rows, cudaStream_t stream,
                                  const Mark& mark) const {
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

void RankExchange::hand_out_ids(const int32_t* ids, int count, cudaStream_t stream) const {
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

}  // namespace sparrow
