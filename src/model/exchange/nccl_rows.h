// SPDX-License-Identifier: Apache-2.0
// NcclRows: what a rank's forward pass exchanges with others over NCCL, where ranks are on several nodes or
// cannot open each other's memory. NCCL moves rows and never sums them: our own kernels do, as one binary
// tree over the ranks, in f32, and so a step has the bits of one whose ranks share memory. Host code: the
// kernels are the caller's.
//
// Few rows: the group's ranks send theirs to each other, and each adds up all. Many rows: each adds up its
// share, keeps the residual of that alone, and sends the norms to the others. Across groups, ranks of the
// same place talk to each other: what leaves a node leaves it once, and already summed over the group.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "comm/nccl/nccl_ranks.h"
#include "device/arena.h"
#include "model/exchange/row_sum.h"
#include "model/step_buffers.h"

namespace sparrow {

// Rows that are summed: [sources, rows, hidden].
struct PartRows {
  const void* parts = nullptr;
  bool is_f32 = false;  // else bf16
  int sources = 1;      // 1, 2, 4 or 8
  int rows = 0;
};

// What a device does with rows that came, all of them bf16 but for sums. In the order of NCCL's stream.
class RowKernels {
 public:
  virtual ~RowKernels() = default;

  // sums [rows, hidden] = the tree over the parts.
  virtual void sum(const PartRows& parts, float* sums) = 0;
  struct Norm {
    const void* residual = nullptr;  // [rows, hidden]; nullptr: none
    void* residual_out = nullptr;    // nullptr: not wanted
    const void* weight = nullptr;    // [hidden]
    void* out = nullptr;             // [rows, hidden]
  };
  // residual_out = bf16(residual + the tree over the parts), out = its norm.
  virtual void norm(const PartRows& parts, const Norm& norm) = 0;
  // out[i] = rows[list[i]], i < count.
  virtual void pick(const void* rows, int num_rows, const int32_t* list, int count, void* out) = 0;
  // As cudaMemcpy2D does.
  virtual void copy(void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width,
                    int rows) = 0;
};

struct NcclShape {
  Grid grid;
  ops::cuda::PeerShape peers;          // of all groups
  int index_heads = 0, own_heads = 0;  // of the group, of this rank

  int group_rows() const { return peers.max_rows / grid.dp; }
};

NcclShape nccl_shape(const ModelConfig& config, const Grid& grid, const GpuStepLimits& limits);

// Where messages lie, for the largest step.
struct NcclBuffers {
  std::byte* parts;        // what came from the group; whatever else is on its way
  float *sums, *branches;  // of several groups: sums over this one; those of all for our own rows
  size_t parts_bytes;
};
NcclBuffers lay_out_nccl(Arena& arena, const NcclShape& shape);
inline int64_t nccl_bytes(const NcclShape& shape) {
  Arena counted;
  lay_out_nccl(counted, shape);
  return static_cast<int64_t>(counted.used());
}
// And of what steps leave and find, which lies before them.
inline int64_t exchanged_bytes(const NcclShape& shape) {
  Arena counted;
  ops::cuda::lay_out_peers<BFloat16>(counted, shape.peers);
  return static_cast<int64_t>(counted.used());
}

class NcclRows {
 public:
  // What a step leaves and finds, as in PeerBuffers.
  struct Places {
    const void* partial = nullptr;
    void* normed = nullptr;
    float* logits = nullptr;
    int32_t* ids = nullptr;
    uint64_t* lists = nullptr;
  };
  // All borrowed.
  NcclRows(const NcclShape& shape, const NcclRanks& ranks, RowKernels& kernels, const NcclBuffers& buffers,
           const Places& places)
      : shape_(shape), ranks_(ranks), kernels_(kernels), buffers_(buffers), places_(places) {}

  // As in RankExchange, whose words these are.
  using Sum = RowSum;
  struct Norm {
    Sum sum = Sum::kOfGroup;
    std::span<const int> step_rows;
    const void* residual = nullptr;
    void* residual_out = nullptr;
    const void* weight = nullptr;
    const int32_t* rows_wanted = nullptr;
    std::span<const int> rows;
  };
  bool is_many(std::span<const int> step_rows) const;
  void add_norm(const Norm& norm);
  void collect_logits(const float* mine, int rows, int cols);
  void exchange_lists(const uint64_t* mine, int rows);
  void hand_out_ids(const int32_t* ids, int count);

  // A word from each to each. NCCL takes the memory for its connections when they are first used.
  void connect();

 private:
  using Messages = std::vector<NcclComm::Message>;
  struct Share {
    int first = 0, count = 0;
  };
  // Of a group's rows: those that the rank at this place adds up.
  Share share_of(std::span<const int> step_rows, int group, int place) const;
  // The group's parts of our shares come together; gives how many rows each source has sent.
  int gather_parts(const Norm& norm);
  PartRows sum_over_groups(const Norm& norm, int rows);
  void spread(const Norm& norm, std::byte* out);
  bool includes(Sum sum, int group) const { return sum == Sum::kOfAll || group == shape_.grid.group(); }
  size_t row_bytes(size_t number_bytes) const {
    return static_cast<size_t>(shape_.peers.hidden) * number_bytes;
  }

  const NcclShape shape_;
  const NcclRanks& ranks_;
  RowKernels& kernels_;
  const NcclBuffers buffers_;
  const Places places_;
};

}  // namespace sparrow
