// SPDX-License-Identifier: Apache-2.0
// Lists of blocks between ranks that take turns on one stream: each has those of its own index heads from all
// ranks of its group.
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "device/cuda/check.h"
#include "device/cuda/memory.h"
#include "ops/cuda/comm/exchange.h"
#include "ops/cuda/comm/peer_buffers.h"

namespace sparrow::test {
namespace {

using namespace ops::cuda;

constexpr int kHeads = 4;

struct Case {
  int tp, groups, rows;
};

uint64_t word(int rank, int row, int head, int at, int turn) {
  return uint64_t(turn) << 48 | uint64_t(rank) << 40 | uint64_t(row) << 16 | uint64_t(head) << 8 |
         uint64_t(at);
}

class ListsBed {
 public:
  explicit ListsBed(const Case& c) : c_(c), ranks_(c.tp * c.groups), own_(std::max(1, kHeads / c.tp)) {
    const PeerShape shape{.hidden = 64,
                          .vocabulary = 64,
                          .max_rows = 1,
                          .max_logits = 1,
                          .max_draws = 1,
                          .max_lists = int64_t{c.rows} * c.tp * own_};
    for (int r = 0; r < ranks_; ++r) {
      shared_.push_back(DeviceBuffer::allocate(static_cast<size_t>(peer_bytes(shape))).value());
      SPARROW_CUDA(cudaMemset(shared_.back().data(), 0, shared_.back().bytes()));
      Arena arena(shared_.back().data());
      lists_.push_back(lay_out_peers<BFloat16>(arena, shape).lists);
      mine_.push_back(DeviceBuffer::allocate(size_t(c.rows) * kHeads * kListWords * 8).value());
    }
  }

  int first_head(int rank) const { return rank % c_.tp * kHeads / c_.tp; }

  // Own heads first, the others by their ids.
  void fill(int turn) {
    for (int r = 0; r < ranks_; ++r) {
      std::vector<int> order;
      for (int h = 0; h < own_; ++h) order.push_back(first_head(r) + h);
      for (int h = 0; h < kHeads; ++h)
        if (h < first_head(r) || h >= first_head(r) + own_) order.push_back(h);
      std::vector<uint64_t> lists;
      for (int row = 0; row < c_.rows; ++row)
        for (const int head : order)
          for (int at = 0; at < kListWords; ++at) lists.push_back(word(r, row, head, at, turn));
      SPARROW_CUDA(cudaMemcpy(mine_[r].data(), lists.data(), lists.size() * 8, cudaMemcpyHostToDevice));
    }
  }

  void exchange() {
    for (const int phase : {kGive, kTake})
      for (int r = 0; r < ranks_; ++r) {
        const int first = r / c_.tp * c_.tp;
        ListsArgs args{.peers = {},
                       .ranks = {first, first + c_.tp},
                       .mine = reinterpret_cast<const uint64_t*>(mine_[r].data()),
                       .all = lists_[r],
                       .rows = c_.rows,
                       .index_heads = kHeads,
                       .own_heads = own_,
                       .phases = phase};
        args.peers.rank = r, args.peers.size = ranks_;
        for (int p = 0; p < ranks_; ++p) args.peers.memory[p] = shared_[p].data();
        for (int place = 0; place < c_.tp; ++place) args.first_head[place] = first_head(place);
        exchange_lists(args, nullptr);
      }
    SPARROW_CUDA(cudaDeviceSynchronize());
  }

  void expect(int turn) const {
    for (int r = 0; r < ranks_; ++r) {
      std::vector<uint64_t> got(size_t(c_.tp) * c_.rows * own_ * kListWords);
      SPARROW_CUDA(cudaMemcpy(got.data(), lists_[r], got.size() * 8, cudaMemcpyDeviceToHost));
      size_t i = 0;
      for (int place = 0; place < c_.tp; ++place)
        for (int row = 0; row < c_.rows; ++row)
          for (int h = 0; h < own_; ++h)
            for (int at = 0; at < kListWords; ++at, ++i)
              ASSERT_EQ(got[i], word(r / c_.tp * c_.tp + place, row, first_head(r) + h, at, turn))
                  << "rank " << r << ", place " << place << ", row " << row << ", head " << h;
    }
  }

 private:
  const Case c_;
  const int ranks_, own_;
  std::vector<DeviceBuffer> shared_, mine_;
  std::vector<uint64_t*> lists_;
};

TEST(Lists, ReachTheRanksWhoseHeadsTheyAre) {
  for (const Case& c : {Case{2, 1, 5}, Case{4, 1, 1}, Case{8, 1, 300}, Case{4, 2, 33}, Case{1, 2, 3}}) {
    SCOPED_TRACE(testing::Message() << c.tp << " x " << c.groups << ", " << c.rows << " rows");
    ListsBed bed(c);
    for (const int turn : {1, 2, 3}) {
      bed.fill(turn);
      bed.exchange();
      bed.expect(turn);
    }
  }
}

}  // namespace
}  // namespace sparrow::test
