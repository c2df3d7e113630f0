// SPDX-License-Identifier: Apache-2.0
#include "model/exchange/nccl_rows.h"

#include <algorithm>
#include <numeric>

#include "base/check.h"
#include "model/sharding.h"

namespace sparrow {
namespace {

constexpr size_t kBf16 = sizeof(BFloat16), kF32 = sizeof(float);
constexpr size_t kListBytes = ops::cuda::kListWords * sizeof(uint64_t);

// NCCL's messages have no const.
void* at(const void* memory, size_t offset) {
  return static_cast<std::byte*>(const_cast<void*>(memory)) + offset;
}

int few_rows(const Grid& grid) {
  return ops::cuda::few_exchange_rows(grid.world(), grid.dp);
}

int begin_of(std::span<const int> step_rows, int group) {
  return std::accumulate(step_rows.begin(), step_rows.begin() + group, 0);
}

}  // namespace

NcclShape nccl_shape(const ModelConfig& config, const Grid& grid, const GpuStepLimits& limits) {
  return {.grid = grid,
          .peers = peer_shape(config, grid, limits),
          .index_heads = config.num_kv_heads,
          .own_heads = kv_heads_per_rank(config, grid)};
}

NcclBuffers lay_out_nccl(Arena& arena, const NcclShape& shape) {
  const int64_t tp = shape.grid.tp, dp = shape.grid.dp, rows = shape.group_rows();
  const int64_t few = std::min<int64_t>(few_rows(shape.grid), rows);
  const auto hidden = static_cast<size_t>(shape.peers.hidden);
  NcclBuffers at{};
  at.parts_bytes =
      static_cast<size_t>(std::max(dp * (rows + tp), tp * dp * few)) * hidden * shape.peers.partial_bytes();
  at.parts_bytes = std::max({at.parts_bytes, static_cast<size_t>(shape.peers.vocabulary) * kF32,
                             static_cast<size_t>(shape.peers.max_lists) * kListBytes,
                             static_cast<size_t>(2 * shape.grid.world()) * Arena::kAlignment});
  at.parts = arena.take<std::byte>(static_cast<int64_t>(at.parts_bytes));
  if (dp == 1) return at;
  const int64_t shares = dp * std::max(rows / tp + 1, few) * shape.peers.hidden;
  at.sums = arena.take<float>(shares);
  at.branches = arena.take<float>(shares);
  return at;
}

bool NcclRows::is_many(std::span<const int> step_rows) const {
  return std::any_of(step_rows.begin(), step_rows.end(),
                     [&](int rows) { return rows > few_rows(shape_.grid); });
}

NcclRows::Share NcclRows::share_of(std::span<const int> step_rows, int group, int place) const {
  const int rows = step_rows[static_cast<size_t>(group)], tp = shape_.grid.tp;
  if (!is_many(step_rows)) return {0, rows};
  const auto cut = [&](int64_t at) { return static_cast<int>(at * rows / tp); };
  return {cut(place), cut(place + 1) - cut(place)};
}

int NcclRows::gather_parts(const Norm& norm) {
  const Grid& grid = shape_.grid;
  const size_t bytes = row_bytes(shape_.peers.partial_bytes());
  int total = 0;
  for (int g = 0; g < grid.dp; ++g)
    if (includes(norm.sum, g)) total += share_of(norm.step_rows, g, grid.tp_rank()).count;
  Messages sends, receives;
  for (int place = 0; place < grid.tp; ++place) {
    int row = place * total;
    for (int g = 0; g < grid.dp; ++g) {
      if (!includes(norm.sum, g)) continue;
      const Share theirs = share_of(norm.step_rows, g, place);
      const int first = theirs.first + (norm.sum == Sum::kOfAll ? begin_of(norm.step_rows, g) : 0);
      sends.push_back({place, at(places_.partial, static_cast<size_t>(first) * bytes),
                       static_cast<size_t>(theirs.count) * bytes});
      const Share ours = share_of(norm.step_rows, g, grid.tp_rank());
      receives.push_back({place, buffers_.parts + static_cast<size_t>(row) * bytes,
                          static_cast<size_t>(ours.count) * bytes});
      row += ours.count;
    }
  }
  SPARROW_CHECK_LE(static_cast<size_t>(grid.tp * total) * bytes, buffers_.parts_bytes);
  ranks_.group().exchange(sends, receives);
  return total;
}

// The group's sums of all shares, each to the group that it belongs to.
PartRows NcclRows::sum_over_groups(const Norm& norm, int rows) {
  const Grid& grid = shape_.grid;
  const size_t bytes = row_bytes(kF32);
  if (rows > 0) kernels_.sum({buffers_.parts, shape_.peers.f32_partials, grid.tp, rows}, buffers_.sums);
  const int own = share_of(norm.step_rows, grid.group(), grid.tp_rank()).count;
  Messages sends, receives;
  int row = 0;
  for (int g = 0; g < grid.dp; ++g) {
    const int count = share_of(norm.step_rows, g, grid.tp_rank()).count;
    sends.push_back(
        {g, at(buffers_.sums, static_cast<size_t>(row) * bytes), static_cast<size_t>(count) * bytes});
    row += count;
    receives.push_back(
        {g, at(buffers_.branches, static_cast<size_t>(g * own) * bytes), static_cast<size_t>(own) * bytes});
  }
  ranks_.across().exchange(sends, receives);
  return {buffers_.branches, true, grid.dp, own};
}

// Norms from those who made them to all who want them.
void NcclRows::spread(const Norm& norm, std::byte* out) {
  const Grid& grid = shape_.grid;
  const size_t bytes = row_bytes(kBf16);
  const auto message = [&](int rank, int group, int place) {
    const Share share = share_of(norm.step_rows, group, place);
    const int first = share.first + (norm.sum == Sum::kOfGroupForAll ? begin_of(norm.step_rows, group) : 0);
    return NcclComm::Message{rank, out + static_cast<size_t>(first) * bytes,
                             static_cast<size_t>(share.count) * bytes};
  };
  if (norm.sum == Sum::kOfGroupForAll && grid.dp > 1) {
    Messages sends, receives;
    for (int g = 0; g < grid.dp; ++g) {
      if (g == grid.group()) continue;
      sends.push_back(message(g, grid.group(), grid.tp_rank()));
      receives.push_back(message(g, g, grid.tp_rank()));
    }
    ranks_.across().exchange(sends, receives);
  }
  if (!is_many(norm.step_rows) || grid.tp == 1) return;
  Messages sends, receives;
  for (int place = 0; place < grid.tp; ++place) {
    if (place == grid.tp_rank()) continue;
    for (int g = 0; g < grid.dp; ++g) {
      if (norm.sum != Sum::kOfGroupForAll && g != grid.group()) continue;
      sends.push_back(message(place, g, grid.tp_rank()));
      receives.push_back(message(place, g, place));
    }
  }
  ranks_.group().exchange(sends, receives);
}

void NcclRows::add_norm(const Norm& norm) {
  const Grid& grid = shape_.grid;
  SPARROW_CHECK_EQ(static_cast<int>(norm.step_rows.size()), grid.dp);
  SPARROW_CHECK(norm.rows_wanted == nullptr || norm.sum != Sum::kOfGroupForAll);
  const size_t bytes = row_bytes(kBf16);
  const int rows = gather_parts(norm);
  PartRows parts{buffers_.parts, shape_.peers.f32_partials, grid.tp, rows};
  if (norm.sum == Sum::kOfAll && grid.dp > 1) parts = sum_over_groups(norm, rows);

  // Of rows that are wanted one by one all are made: who has which is not known here. Parts have been used
  // when their norms leave, but not while they are made.
  const Share own = share_of(norm.step_rows, grid.group(), grid.tp_rank());
  auto* out = static_cast<std::byte*>(places_.normed);
  const int first =
      own.first + (norm.sum == Sum::kOfGroupForAll ? begin_of(norm.step_rows, grid.group()) : 0);
  const size_t in_group = static_cast<size_t>(own.first) * bytes;
  if (parts.rows > 0)
    kernels_.norm(parts,
                  {.residual = norm.residual == nullptr ? nullptr : at(norm.residual, in_group),
                   .residual_out = norm.residual_out == nullptr ? nullptr : at(norm.residual_out, in_group),
                   .weight = norm.weight,
                   .out = out + static_cast<size_t>(first) * bytes});
  spread(norm, out);
  if (norm.rows_wanted == nullptr) return;
  const int group_rows = norm.step_rows[static_cast<size_t>(grid.group())];
  kernels_.copy(buffers_.parts, bytes, out, bytes, bytes, group_rows);
  kernels_.pick(buffers_.parts, group_rows, norm.rows_wanted + begin_of(norm.rows, grid.group()),
                norm.rows[static_cast<size_t>(grid.group())], out);
}

void NcclRows::collect_logits(const float* mine, int rows, int cols) {
  const Grid& grid = shape_.grid;
  const size_t row = static_cast<size_t>(cols) * kF32, all = row * static_cast<size_t>(grid.tp);
  const int slice = static_cast<int>(std::min<size_t>(buffers_.parts_bytes / all, static_cast<size_t>(rows)));
  SPARROW_CHECK(slice > 0 || rows == 0);
  for (int first = 0; first < rows; first += slice) {
    const int count = std::min(slice, rows - first);
    const size_t bytes = static_cast<size_t>(count) * row;
    const Messages sends{{0, at(mine, static_cast<size_t>(first) * row), bytes}};
    Messages receives;
    for (int place = 0; place < grid.tp && grid.leads_group(); ++place)
      receives.push_back({place, buffers_.parts + static_cast<size_t>(place) * bytes, bytes});
    ranks_.group().exchange(sends, receives);
    for (const NcclComm::Message& came : receives)
      kernels_.copy(
          at(places_.logits, static_cast<size_t>(first) * all + static_cast<size_t>(came.rank) * row), all,
          came.data, row, row, count);
  }
}

void NcclRows::exchange_lists(const uint64_t* mine, int rows) {
  const Grid& grid = shape_.grid;
  const auto first_head = [&](int place) { return place * shape_.index_heads / grid.tp; };
  const size_t width = static_cast<size_t>(shape_.own_heads) * kListBytes;
  const size_t bytes = static_cast<size_t>(rows) * width;
  const int own = first_head(grid.tp_rank());
  Messages sends, receives;
  for (int place = 0; place < grid.tp; ++place) {
    // Own heads come first in `mine`, then the others by their ids.
    const int head = first_head(place), column = head == own  ? 0
                                                 : head < own ? shape_.own_heads + head
                                                              : head;
    const auto to = static_cast<size_t>(place) * bytes;
    kernels_.copy(buffers_.parts + to, width, at(mine, static_cast<size_t>(column) * kListBytes),
                  static_cast<size_t>(shape_.index_heads) * kListBytes, width, rows);
    sends.push_back({place, buffers_.parts + to, bytes});
    receives.push_back({place, at(places_.lists, to), bytes});
  }
  ranks_.group().exchange(sends, receives);
}

void NcclRows::hand_out_ids(const int32_t* ids, int count) {
  const size_t bytes = static_cast<size_t>(count) * sizeof(int32_t);
  Messages sends, receives;
  for (int place = 1; place < shape_.grid.tp && shape_.grid.leads_group(); ++place)
    sends.push_back({place, at(ids, 0), bytes});
  if (!shape_.grid.leads_group()) receives.push_back({0, places_.ids, bytes});
  if (shape_.grid.tp > 1) ranks_.group().exchange(sends, receives);
}

void NcclRows::connect() {
  for (NcclComm* const comm : {&ranks_.group(), &ranks_.across()}) {
    Messages sends, receives;
    for (int r = 0; r < comm->size(); ++r) {
      sends.push_back({r, buffers_.parts, sizeof(float)});
      receives.push_back({r, buffers_.parts + static_cast<size_t>(r + 1) * Arena::kAlignment, sizeof(float)});
    }
    comm->exchange(sends, receives);
  }
}

}  // namespace sparrow
