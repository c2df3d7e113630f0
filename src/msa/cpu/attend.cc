// SPDX-License-Identifier: Apache-2.0
// The schedule of attend(). A work item is (tile of a request's queries) x (KV head); inside it the selection
// is turned round to block -> queries, and every block's keys and values are read once for all of the tile's
// queries that chose it. Each query meets its blocks in ascending order whatever the tile.
//
// Dense attention is cut every kSegmentBlocks blocks into partial sums that are merged in ascending order.
// Where there are fewer items than workers, the segments of an item run in parallel; elsewhere one after the
// other: the same numbers either way.
#include <algorithm>
#include <vector>

#include "msa/cpu/kernels.h"
#include "msa/cpu/parallel.h"

namespace msa {
namespace {

constexpr int kMaxTileUnits =
    128;                      // their q and o (1.5 MB) stay in a core's L2 cache while blocks stream through
constexpr int kMinTile = 16;  // queries: fewer would read each block too often

struct Shape {
  int group, units_per_query;
  int tile;         // most queries of an item
  int tile_units;   // most units of an item
  int max_blocks;   // of any request
  int segments;     // of the longest request
  int64_t tiles;    // over all requests; items = tiles * kv_heads
  bool split;       // segments of an item run in parallel
  int64_t entries;  // of a worker's block -> units lists
};

Shape shape_of(const Plan& plan, const AttendParams& params, const Workers& workers) {
  Shape s = {};
  s.group = params.heads.query_heads / params.heads.kv_heads;
  s.units_per_query = (s.group + kUnitHeads - 1) / kUnitHeads;
  int64_t longest = 0;
  int most_queries = 0;
  for (int r = 0; r < plan.num_requests; ++r) {
    longest = std::max<int64_t>(longest, plan.seq_lens[r]);
    most_queries = std::max(most_queries, plan.cu_seqlens_q[r + 1] - plan.cu_seqlens_q[r]);
  }
  s.max_blocks = static_cast<int>((longest + kBlock - 1) / kBlock);
  const int64_t even = int64_t{plan.total_queries()} * params.heads.kv_heads / (4 * workers.count);
  const int64_t most = std::max(1, kMaxTileUnits / s.units_per_query);
  s.tile = static_cast<int>(std::min<int64_t>({std::max<int64_t>(even, kMinTile), most, most_queries}));
  s.tile = std::max(s.tile, 1);
  s.tile_units = s.tile * s.units_per_query;
  for (int r = 0; r < plan.num_requests; ++r)
    s.tiles += (plan.cu_seqlens_q[r + 1] - plan.cu_seqlens_q[r] + s.tile - 1) / s.tile;
  s.segments =
      params.selected != nullptr ? 1 : std::max(1, (s.max_blocks + kSegmentBlocks - 1) / kSegmentBlocks);
  s.split = s.segments > 1 && s.tiles * params.heads.kv_heads < 2 * workers.count;
  s.entries = int64_t{s.tile_units} * (params.selected != nullptr ? params.top_k : 1);
  return s;
}

int64_t round_64(int64_t bytes) {
  return (bytes + 63) / 64 * 64;
}

int64_t list_bytes(const Shape& s) {
  return round_64((int64_t{s.max_blocks} + 2 + s.entries) * int64_t{sizeof(int32_t)});
}

int64_t num_units(const Shape& s, const AttendParams& params, const Workers& workers) {
  if (s.split) return s.tiles * params.heads.kv_heads * s.segments * s.tile_units;
  return int64_t{workers.count} * s.tile_units * (s.segments > 1 ? 2 : 1);
}

struct Item {
  int request, kv_head;
  int row, queries;
  int64_t first_position;
};

class Attention {
 public:
  Attention(const Plan& plan, const AttendParams& params, const Kernels& kernels, const Workers& workers,
            void* workspace)
      : plan_(plan),
        params_(params),
        kernels_(kernels),
        workers_(workers),
        s_(shape_of(plan, params, workers)) {
    scratch_ = align_64(workspace);
    lists_ = scratch_ + workers.count * kScratchBytes;
    units_ = reinterpret_cast<AttendUnit*>(lists_ + workers.count * list_bytes(s_));
    tile_bounds_.reserve(plan.num_requests + 1);
    for (int r = 0; r <= plan.num_requests; ++r)
      tile_bounds_.push_back(r == 0 ? 0
                                    : tile_bounds_.back() +
                                          (plan.cu_seqlens_q[r] - plan.cu_seqlens_q[r - 1] + s_.tile - 1) /
                                              s_.tile);
  }

  void run() {
    const int64_t items = s_.tiles * params_.heads.kv_heads;
    if (!s_.split) {
      // Later tiles see more keys: the heavy ones go first, so that the workers finish together.
      claim(items, [&](int64_t i, int worker) { run_item(item_at(items - 1 - i), worker); });
      return;
    }
    claim(items * s_.segments, [&](int64_t i, int worker) {
      const Item item = item_at(i / s_.segments);
      AttendUnit* units = units_ + i * s_.tile_units;
      prepare(item, units);
      run_segment(item, static_cast<int>(i % s_.segments), units, worker);
    });
    claim(items, [&](int64_t i, int) {
      AttendUnit* first = units_ + i * s_.segments * s_.tile_units;
      const Item item = item_at(i);
      for (int segment = 1; segment < s_.segments; ++segment)
        merge(item, first, first + int64_t{segment} * s_.tile_units);
      finish(item, first);
    });
  }

 private:
  template <typename F>
  void claim(int64_t count, F&& body) {
    std::atomic<int64_t> next{0};
    on_workers(workers_, [&](int worker) {
      kernels_.open();
      for (int64_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < count;) body(i, worker);
      kernels_.close();
    });
  }

  Item item_at(int64_t i) const {
    // Neighbouring items share a KV head's pages, not a tile: a worker's caches see one head at a time.
    const int64_t tile = i % s_.tiles;
    const int request = static_cast<int>(std::upper_bound(tile_bounds_.begin(), tile_bounds_.end(), tile) -
                                         tile_bounds_.begin()) -
                        1;
    const int first = plan_.cu_seqlens_q[request], end = plan_.cu_seqlens_q[request + 1];
    const int row = first + static_cast<int>(tile - tile_bounds_[request]) * s_.tile;
    return {.request = request,
            .kv_head = static_cast<int>(i / s_.tiles),
            .row = row,
            .queries = std::min(s_.tile, end - row),
            .first_position = int64_t{plan_.seq_lens[request]} - end + row};
  }

  int64_t last_block(const Item& item) const { return (item.first_position + item.queries - 1) / kBlock; }
  int64_t element_bytes() const { return params_.type == Type::kF32 ? 4 : 2; }
  int64_t tile_bytes() const { return int64_t{kBlock} * kHeadDim * element_bytes(); }
  int64_t head_offset(const Item& item, int unit) const {
    const int64_t row = item.row + unit / s_.units_per_query;
    const int64_t head = int64_t{item.kv_head} * s_.group + int64_t{unit % s_.units_per_query} * kUnitHeads;
    return (row * params_.heads.query_heads + head) * kHeadDim * element_bytes();
  }

  void prepare(const Item& item, AttendUnit* units) {
    for (int u = 0; u < item.queries * s_.units_per_query; ++u) {
      units[u].position = item.first_position + u / s_.units_per_query;
      units[u].heads = std::min(kUnitHeads, s_.group - u % s_.units_per_query * kUnitHeads);
      units[u].blocks = 0;
      kernels_.pack(units[u], static_cast<const char*>(params_.q) + head_offset(item, u));
    }
  }

  void run_item(const Item& item, int worker) {
    AttendUnit* units = units_ + int64_t{worker} * s_.tile_units * (s_.segments > 1 ? 2 : 1);
    AttendUnit* merged = units + s_.tile_units;
    const int count = item.queries * s_.units_per_query;
    prepare(item, units);
    const int segments =
        params_.selected != nullptr ? 1 : static_cast<int>(last_block(item) / kSegmentBlocks) + 1;
    if (segments > 1)
      for (int u = 0; u < count; ++u) merged[u].blocks = 0;
    for (int segment = 0; segment < segments; ++segment) {
      run_segment(item, segment, units, worker);
      if (segments == 1) continue;
      merge(item, merged, units);
      for (int u = 0; u < count; ++u) units[u].blocks = 0;
    }
    finish(item, segments > 1 ? merged : units);
  }

  void merge(const Item& item, AttendUnit* into, const AttendUnit* from) {
    for (int u = 0; u < item.queries * s_.units_per_query; ++u) {
      if (from[u].blocks == 0) continue;
      if (into[u].blocks == 0)
        into[u] = from[u];
      else
        kernels_.merge(into[u], from[u]);
    }
  }

  void finish(const Item& item, const AttendUnit* units) {
    for (int u = 0; u < item.queries * s_.units_per_query; ++u)
      kernels_.finish(units[u], static_cast<char*>(params_.out) + head_offset(item, u));
  }

  void run_segment(const Item& item, int segment, AttendUnit* units, int worker) {
    int32_t* starts = reinterpret_cast<int32_t*>(lists_ + worker * list_bytes(s_));
    int32_t* list = starts + s_.max_blocks + 2;
    if (params_.selected != nullptr) {
      invert(item, starts, list);
      const auto count_of = [&](int64_t block) { return starts[block + 1] - starts[block]; };
      const int64_t end = last_block(item) + 1;
      const auto next_used = [&](int64_t block) {
        while (block < end && count_of(block) == 0) ++block;
        return block;
      };
      for (int64_t block = next_used(0), next; block < end; block = next) {
        next = next_used(block + 1);
        run_block(item, block, next < end ? next : -1, units, list + starts[block], count_of(block), worker);
      }
      return;
    }
    const int count = item.queries * s_.units_per_query;
    for (int u = 0; u < count; ++u) list[u] = u;
    const int64_t first = int64_t{segment} * kSegmentBlocks;
    const int64_t end = std::min(last_block(item) + 1, first + kSegmentBlocks);
    for (int64_t block = first; block < end; ++block) {
      const int64_t blind =
          std::max<int64_t>(0, block * kBlock - item.first_position);  // queries before the block
      const int skipped = static_cast<int>(blind) * s_.units_per_query;
      run_block(item, block, block + 1 < end ? block + 1 : -1, units, list + skipped, count - skipped,
                worker);
    }
  }

  // list[starts[n] .. starts[n + 1]) becomes the units that chose block n, ascending.
  void invert(const Item& item, int32_t* starts, int32_t* list) const {
    const int64_t blocks = last_block(item) + 1;
    std::fill(starts, starts + blocks + 2, 0);
    const auto each_choice = [&](auto&& visit) {
      for (int i = 0; i < item.queries; ++i) {
        const int32_t* ids = params_.selected +
                             (int64_t{item.row + i} * params_.heads.kv_heads + item.kv_head) * params_.top_k;
        for (int k = 0; k < params_.top_k && ids[k] >= 0; ++k) visit(i, ids[k]);
      }
    };
    each_choice([&](int, int32_t block) { starts[block + 2] += s_.units_per_query; });
    for (int64_t n = 2; n < blocks + 2; ++n) starts[n] += starts[n - 1];
    each_choice([&](int query, int32_t block) {
      for (int u = 0; u < s_.units_per_query; ++u) list[starts[block + 1]++] = query * s_.units_per_query + u;
    });
  }

  const char* k_of(const Item& item, int64_t block) const {
    const int64_t page = plan_.block_table[int64_t{item.request} * plan_.max_blocks + block];
    return static_cast<const char*>(params_.kv_pages) +
           (page * params_.heads.kv_heads + item.kv_head) * 2 * tile_bytes();
  }

  // `next` is the block that follows in this item, or -1.
  void run_block(const Item& item, int64_t block, int64_t next, AttendUnit* units, const int32_t* list,
                 int count, int worker) {
    const char* k = k_of(item, block);
    const int64_t keys = plan_.seq_lens[item.request] - block * kBlock;
    kernels_.attend({.k = k,
                     .v = k + tile_bytes(),
                     .next = next < 0 ? nullptr : k_of(item, next),
                     .first_key = block * kBlock,
                     .keys = static_cast<int>(std::min<int64_t>(kBlock, keys)),
                     .scale = params_.scale,
                     .units = units,
                     .list = list,
                     .count = count},
                    scratch_ + worker * kScratchBytes);
  }

  const Plan& plan_;
  const AttendParams& params_;
  const Kernels& kernels_;
  const Workers& workers_;
  const Shape s_;
  char* scratch_ = nullptr;
  char* lists_ = nullptr;
  AttendUnit* units_ = nullptr;
  std::vector<int64_t> tile_bounds_;  // [num_requests + 1] first tile of each request
};

}  // namespace

int64_t attend_bytes(const Plan& plan, const AttendParams& params, const Workers& workers) {
  const Shape s = shape_of(plan, params, workers);
  return 64 + workers.count * (kScratchBytes + list_bytes(s)) +
         num_units(s, params, workers) * int64_t{sizeof(AttendUnit)};
}

void run_attend(const Plan& plan, const AttendParams& params, const Kernels& kernels, const Workers& workers,
                void* workspace) {
  if (plan.total_queries() == 0) return;
  Attention(plan, params, kernels, workers, workspace).run();
}

}  // namespace msa
