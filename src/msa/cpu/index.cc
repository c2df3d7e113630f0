// SPDX-License-Identifier: Apache-2.0
// The schedule of index(). Queries go through in waves that bound the score buffer. In a wave, the work items
// are (tile of queries of one request) x (run of 16 of its blocks in the share), so that one long decode
// request occupies all workers as well as a prompt does; then the choice is made row by row.
#include <algorithm>
#include <vector>

#include "msa/cpu/kernels.h"
#include "msa/cpu/parallel.h"
#include "msa/cpu/select.h"

namespace msa {
namespace {

constexpr int kTilesPerWorker = 4;        // in one wave: enough to even out the workers' loads
constexpr int kRowsPerSelectItem = 16;    // queries
constexpr int64_t kSerialScores = 16384;  // choosing among fewer is not worth a parallel region

int64_t max_blocks_used(const Plan& plan) {
  int64_t tokens = 0;
  for (int request = 0; request < plan.num_requests; ++request)
    tokens = std::max<int64_t>(tokens, plan.seq_lens[request]);
  return (tokens + kBlock - 1) / kBlock;
}

int64_t score_stride(const Plan& plan) {
  return (max_blocks_used(plan) + kScoreBlocks - 1) / kScoreBlocks * kScoreBlocks;
}

int queries_per_tile(const IndexParams& params) {
  return std::max(1, kScoreColumns / params.heads.kv_heads);
}

int64_t queries_per_wave(const Plan& plan, const IndexParams& params, const Workers& workers) {
  const int64_t most = int64_t{kTilesPerWorker} * workers.count * queries_per_tile(params);
  return std::min<int64_t>(most, plan.total_queries());
}

struct Run {
  int request;
  int row, queries;  // the tile
  int first_block;   // among the request's blocks in the share; a multiple of kScoreBlocks
  int num_blocks;
};

// The logical blocks of each request that are in the share, ascending.
class ShareBlocks {
 public:
  ShareBlocks(const Plan& plan, const IndexShare& share) : first_(1, 0) {
    for (int request = 0; request < plan.num_requests; ++request) {
      const int32_t* physical = plan.block_table + int64_t{request} * plan.max_blocks;
      for (int block = 0; block < (plan.seq_lens[request] + kBlock - 1) / kBlock; ++block)
        if (share.count == 1 || physical[block] % share.count == share.share) blocks_.push_back(block);
      first_.push_back(static_cast<int64_t>(blocks_.size()));
    }
  }

  const int32_t* of(int request) const { return blocks_.data() + first_[request]; }
  // The part of a range of logical blocks, as positions in of(request).
  ScoredRange within(int request, ScoredRange range) const {
    if (range.first == range.end) return {};
    const int32_t *begin = of(request), *end = blocks_.data() + first_[request + 1];
    const int32_t* first = std::lower_bound(begin, end, range.first);
    return {static_cast<int>(first - begin),
            static_cast<int>(std::lower_bound(first, end, range.end) - begin)};
  }

 private:
  std::vector<int32_t> blocks_;
  std::vector<int64_t> first_;  // [requests + 1]
};

class IndexWave {
 public:
  IndexWave(const Plan& plan, const IndexParams& params, const Kernels& kernels, const Workers& workers,
            void* workspace)
      : plan_(plan),
        params_(params),
        kernels_(kernels),
        workers_(workers),
        stride_(score_stride(plan)),
        blocks_(plan, params.share) {
    scratch_ = align_64(workspace);
    scores_ = reinterpret_cast<float*>(scratch_ + workers.count * kScratchBytes);
  }

  void run(int first_row, int end_row) {
    first_row_ = first_row;
    end_row_ = end_row;
    list_runs();
    if (!runs_.empty()) {
      std::atomic<int64_t> next{0};
      on_workers(workers_, [&](int worker) {
        kernels_.open();
        for (int64_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < int64_t(runs_.size());)
          score(runs_[i], scratch_ + worker * kScratchBytes);
        kernels_.close();
      });
    }
    const int64_t rows = end_row - first_row;
    if (rows * params_.heads.kv_heads * stride_ <= kSerialScores) return select(first_row, end_row);
    parallel_for(workers_, (rows + kRowsPerSelectItem - 1) / kRowsPerSelectItem, [&](int64_t i, int) {
      const int first = first_row + static_cast<int>(i) * kRowsPerSelectItem;
      select(first, std::min(first + kRowsPerSelectItem, end_row));
    });
  }

 private:
  int64_t position_of(int request, int row) const {
    return int64_t{plan_.seq_lens[request]} - plan_.cu_seqlens_q[request + 1] + row;
  }

  void list_runs() {
    runs_.clear();
    for (int request = 0; request < plan_.num_requests; ++request) {
      const int first = std::max(first_row_, plan_.cu_seqlens_q[request]);
      const int end = std::min(end_row_, plan_.cu_seqlens_q[request + 1]);
      for (int row = first; row < end; row += queries_per_tile(params_)) {
        const int queries = std::min(queries_per_tile(params_), end - row);
        // The last query's range contains the others'.
        const int own = static_cast<int>(position_of(request, row + queries - 1) / kBlock);
        const ScoredRange range = blocks_.within(request, scored_range(params_.selection, own));
        if (range.first == range.end) continue;
        for (int block = range.first / kScoreBlocks * kScoreBlocks; block < range.end; block += kScoreBlocks)
          runs_.push_back({request, row, queries, block, std::min(kScoreBlocks, range.end - block)});
      }
    }
  }

  void score(const Run& run, void* scratch) {
    const int heads = params_.heads.kv_heads;
    const int64_t element_bytes = params_.type == Type::kF32 ? 4 : 2;
    ScoreTask task = {
        .q = static_cast<const char*>(params_.q) + int64_t{run.row} * heads * kHeadDim * element_bytes,
        .columns = run.queries * heads,
        .heads = heads,
        .first_position = position_of(run.request, run.row),
        .k_pages = params_.k_pages,
        .num_blocks = run.num_blocks,
        .scores = scores_ + int64_t{run.row - first_row_} * heads * stride_ + run.first_block,
        .stride = stride_};
    const int32_t* physical = plan_.block_table + int64_t{run.request} * plan_.max_blocks;
    for (int i = 0; i < run.num_blocks; ++i) {
      task.blocks[i] = blocks_.of(run.request)[run.first_block + i];
      task.pages[i] = physical[task.blocks[i]] / params_.share.count;
    }
    kernels_.score(task, scratch);
  }

  void select(int first, int end) {
    const int32_t* bounds = plan_.cu_seqlens_q;
    int request = static_cast<int>(std::upper_bound(bounds, bounds + plan_.num_requests, first) - bounds) - 1;
    for (int row = first; row < end; ++row) {
      while (row >= bounds[request + 1]) ++request;
      const int own = static_cast<int>(position_of(request, row) / kBlock);
      const ScoredRange range = blocks_.within(request, scored_range(params_.selection, own));
      for (int head = 0; head < params_.heads.kv_heads; ++head) select(request, row, head, own, range);
    }
  }

  void select(int request, int row, int head, int own, const ScoredRange& range) {
    const int heads = params_.heads.kv_heads, top_k = params_.selection.top_k;
    const float* scores = scores_ + (int64_t{row - first_row_} * heads + head) * stride_;
    const int64_t at = (int64_t{row} * heads + head) * top_k;
    Candidate here[kMaxTopK];
    Candidate* best = params_.candidates != nullptr ? params_.candidates + at : here;
    best_blocks(scores + range.first, blocks_.of(request) + range.first, range.end - range.first, top_k,
                best);
    if (params_.candidates == nullptr)
      select_blocks(params_.selection, own, best, 1, 0, params_.selected + at);
  }

  const Plan& plan_;
  const IndexParams& params_;
  const Kernels& kernels_;
  const Workers& workers_;
  const int64_t stride_;
  const ShareBlocks blocks_;
  char* scratch_ = nullptr;
  float* scores_ = nullptr;  // [rows of the wave, heads, stride_]
  int first_row_ = 0, end_row_ = 0;
  std::vector<Run> runs_;
};

}  // namespace

int64_t index_bytes(const Plan& plan, const IndexParams& params, const Workers& workers) {
  return 64 + workers.count * kScratchBytes +
         queries_per_wave(plan, params, workers) * params.heads.kv_heads * score_stride(plan) * int64_t{4};
}

void run_index(const Plan& plan, const IndexParams& params, const Kernels& kernels, const Workers& workers,
               void* workspace) {
  IndexWave wave(plan, params, kernels, workers, workspace);
  const int64_t step = queries_per_wave(plan, params, workers);
  for (int64_t row = 0; row < plan.total_queries(); row += step)
    wave.run(static_cast<int>(row), static_cast<int>(std::min<int64_t>(row + step, plan.total_queries())));
}

void merge(const Plan& plan, const MergeParams& params, const Workers& workers) {
  const int top_k = params.selection.top_k;
  const int64_t share = int64_t{plan.total_queries()} * params.index_heads * top_k;
  parallel_for(workers, plan.num_requests, [&](int64_t request, int) {
    for (int row = plan.cu_seqlens_q[request]; row < plan.cu_seqlens_q[request + 1]; ++row) {
      const int position = plan.seq_lens[request] - plan.cu_seqlens_q[request + 1] + row;
      for (int head = 0; head < params.kv_heads; ++head)
        select_blocks(
            params.selection, position / kBlock,
            params.candidates + (int64_t{row} * params.index_heads + params.first_head + head) * top_k,
            params.num_shares, share, params.selected + (int64_t{row} * params.kv_heads + head) * top_k);
    }
  });
}

}  // namespace msa
