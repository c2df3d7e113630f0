// SPDX-License-Identifier: Apache-2.0
// ThreadComm: every rank leaves its arguments on a table; the last to come does the work for all.
#include "comm/thread_comm.h"

#include <condition_variable>
#include <cstring>
#include <functional>
#include <mutex>
#include <numeric>
#include <utility>

#include "base/check.h"
#include "comm/tree_sum.h"

namespace sparrow {
namespace {

// All communicators of an instance share one: work is done under its lock, so nobody who waits can leave with
// a tensor that is being read.
struct Room {
  std::mutex mutex;
  std::condition_variable changed;
  bool aborted = false;
};

struct Call {
  const char* name = "";
  Tensor in, out;
  std::span<const int64_t> rows;
  int root = -1;
};

struct Table {
  std::vector<Call> calls;  // by rank
  int arrived = 0;
  uint64_t round = 0;
};

bool same_call(const Call& a, const Call& b) {
  return std::strcmp(a.name, b.name) == 0 && a.root == b.root &&
         std::vector(a.rows.begin(), a.rows.end()) == std::vector(b.rows.begin(), b.rows.end());
}

void copy(const Tensor& from, const Tensor& to) {
  SPARROW_CHECK(from.dtype == to.dtype);
  SPARROW_CHECK_EQ(byte_size(from), byte_size(to));
  std::vector<std::byte> bytes(static_cast<size_t>(byte_size(from)));
  copy_from(from, 0, bytes);
  copy_to(to, 0, bytes);
}

std::vector<float> row_sum(const std::vector<Call>& calls, int64_t row) {
  std::vector<const float*> parts;
  for (const Call& call : calls) parts.push_back(call.in.row<float>(row));
  std::vector<float> sum(static_cast<size_t>(calls[0].in.cols()));
  tree_sum(parts, calls[0].in.cols(), sum.data());
  return sum;
}

void check_sum(const std::vector<Call>& calls) {
  for (const Call& call : calls) {
    SPARROW_CHECK(call.in.dtype == DType::kF32 && call.in.device == Device::kCpu);
    SPARROW_CHECK_EQ(call.in.rows(), calls[0].in.rows());
    SPARROW_CHECK_EQ(call.in.cols(), calls[0].in.cols());
  }
}

class ThreadComm : public Communicator {
 public:
  ThreadComm(std::shared_ptr<Room> room, std::shared_ptr<Table> table, int rank)
      : room_(std::move(room)), table_(std::move(table)), rank_(rank) {}

  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(table_->calls.size()); }

  void all_reduce(const Tensor& x) override {
    meet({.name = "all_reduce", .in = x}, [](const std::vector<Call>& calls) {
      check_sum(calls);
      for (int64_t r = 0; r < calls[0].in.rows(); ++r) {
        const std::vector<float> sum = row_sum(calls, r);
        for (const Call& call : calls) std::copy(sum.begin(), sum.end(), call.in.row<float>(r));
      }
    });
  }

  void reduce_scatter_rows(const Tensor& x, std::span<const int64_t> rows, const Tensor& mine) override {
    SPARROW_CHECK_EQ(std::reduce(rows.begin(), rows.end()), x.rows());
    SPARROW_CHECK_EQ(mine.rows(), rows[static_cast<size_t>(rank_)]);
    const Call call{.name = "reduce_scatter_rows", .in = x, .out = mine, .rows = rows};
    meet(call, [](const std::vector<Call>& calls) {
      check_sum(calls);
      int64_t row = 0;
      for (size_t owner = 0; owner < calls.size(); ++owner) {
        for (int64_t r = 0; r < calls[0].rows[owner]; ++r) {
          const std::vector<float> sum = row_sum(calls, row++);
          std::copy(sum.begin(), sum.end(), calls[owner].out.row<float>(r));
        }
      }
    });
  }

  void all_gather_rows(const Tensor& mine, std::span<const int64_t> rows, const Tensor& all) override {
    SPARROW_CHECK_EQ(std::reduce(rows.begin(), rows.end()), all.rows());
    SPARROW_CHECK_EQ(mine.rows(), rows[static_cast<size_t>(rank_)]);
    const Call call{.name = "all_gather_rows", .in = mine, .out = all, .rows = rows};
    meet(call, [](const std::vector<Call>& calls) {
      int64_t row = 0;
      for (size_t owner = 0; owner < calls.size(); row += calls[0].rows[owner++])
        for (const Call& to : calls) copy(calls[owner].in, to.out.rows_at(row, calls[0].rows[owner]));
    });
  }

  void gather(const Tensor& x, int root, const Tensor& all) override {
    meet({.name = "gather", .in = x, .out = all, .root = root}, [root](const std::vector<Call>& calls) {
      const Tensor& to = calls[static_cast<size_t>(root)].out;
      SPARROW_CHECK_EQ(to.shape[0], static_cast<int64_t>(calls.size()));
      for (size_t r = 0; r < calls.size(); ++r) copy(calls[r].in, to.rows_at(static_cast<int64_t>(r), 1));
    });
  }

  void broadcast(const Tensor& x, int root) override {
    meet({.name = "broadcast", .in = x, .root = root}, [root](const std::vector<Call>& calls) {
      for (size_t r = 0; r < calls.size(); ++r)
        if (static_cast<int>(r) != root) copy(calls[static_cast<size_t>(root)].in, calls[r].in);
    });
  }

  void abort() override {
    const std::lock_guard lock(room_->mutex);
    room_->aborted = true;
    room_->changed.notify_all();
  }
  bool failed() const override {
    const std::lock_guard lock(room_->mutex);
    return room_->aborted;
  }

 private:
  void meet(const Call& call, const std::function<void(const std::vector<Call>&)>& work) {
    std::unique_lock lock(room_->mutex);
    if (room_->aborted) return;
    table_->calls[static_cast<size_t>(rank_)] = call;
    if (++table_->arrived < size()) {
      const uint64_t round = table_->round;
      room_->changed.wait(lock, [&] { return table_->round != round || room_->aborted; });
      return;
    }
    for (const Call& other : table_->calls) SPARROW_CHECK(same_call(other, call));
    work(table_->calls);
    table_->arrived = 0;
    ++table_->round;
    room_->changed.notify_all();
  }

  std::shared_ptr<Room> room_;
  std::shared_ptr<Table> table_;
  int rank_;
};

}  // namespace

std::vector<RankComms> thread_comms(const Grid& grid) {
  const auto room = std::make_shared<Room>();
  const auto table = [](int ranks) {
    return std::make_shared<Table>(Table{.calls = std::vector<Call>(static_cast<size_t>(ranks))});
  };
  std::vector<std::shared_ptr<Table>> groups, acrosses;
  for (int g = 0; g < grid.dp; ++g) groups.push_back(table(grid.tp));
  for (int t = 0; t < grid.tp; ++t) acrosses.push_back(table(grid.dp));
  const auto world = table(grid.world());
  std::vector<RankComms> ranks;
  for (int rank = 0; rank < grid.world(); ++rank) {
    const Grid at{.tp = grid.tp, .dp = grid.dp, .rank = rank};
    ranks.push_back(
        {.group = std::make_shared<ThreadComm>(room, groups[static_cast<size_t>(at.group())], at.tp_rank()),
         .across =
             std::make_shared<ThreadComm>(room, acrosses[static_cast<size_t>(at.tp_rank())], at.group()),
         .world = std::make_shared<ThreadComm>(room, world, rank)});
  }
  return ranks;
}

}  // namespace sparrow
