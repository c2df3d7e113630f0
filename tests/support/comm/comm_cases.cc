// SPDX-License-Identifier: Apache-2.0
#include "support/comm/comm_cases.h"

#include <bit>
#include <cstring>
#include <functional>
#include <random>
#include <vector>

#include "base/strf.h"

namespace sparrow {
namespace {

// Magnitudes from 2^-20 to 2^20: another order of summation shows in nearly every sum.
float value(uint64_t key) {
  key = (key ^ (key >> 30)) * 0xbf58476d1ce4e5b9u;
  key = (key ^ (key >> 27)) * 0x94d049bb133111ebu;
  key ^= key >> 31;
  const float mantissa = 1.0f + static_cast<float>(key >> 41) * 0x1p-23f;
  return std::ldexp((key & 1) != 0 ? mantissa : -mantissa, static_cast<int>((key >> 1) % 41) - 20);
}

float model_sum(std::vector<float> parts) {
  for (size_t stride = 1; stride < parts.size(); stride *= 2)
    for (size_t i = 0; i + stride < parts.size(); i += 2 * stride) parts[i] += parts[i + stride];
  return parts[0];
}

// Rows with a gap after each, which must stay as it is.
class Matrix {
 public:
  Matrix(int64_t rows, int64_t cols, int64_t gap)
      : cols_(cols),
        stride_(cols + gap),
        values_(static_cast<size_t>(rows * stride_), kPoison),
        rows_(rows) {}

  Tensor tensor() {
    Tensor view(values_.data(), DType::kF32, {rows_, cols_});
    view.row_stride = stride_;
    return view;
  }
  float& at(int64_t row, int64_t col) { return values_[static_cast<size_t>(row * stride_ + col)]; }
  bool gaps_untouched() {
    for (int64_t r = 0; r < rows_; ++r)
      for (int64_t c = cols_; c < stride_; ++c)
        if (at(r, c) != kPoison) return false;
    return true;
  }

 private:
  static constexpr float kPoison = -12345.0f;
  int64_t cols_, stride_;
  std::vector<float> values_;
  int64_t rows_;
};

struct Case {
  Communicator& comm;
  std::mt19937_64 random;  // in step on all ranks
  uint64_t* hash;

  int64_t below(int64_t n) { return static_cast<int64_t>(random() % static_cast<uint64_t>(n)); }
  static float input(uint64_t seed, int rank, int64_t row, int64_t col) {
    return value(seed ^ (static_cast<uint64_t>(rank) << 48) ^ (static_cast<uint64_t>(row) << 24) ^
                 static_cast<uint64_t>(col));
  }
  Matrix filled(uint64_t seed, int64_t rows, int64_t cols) {
    Matrix x(rows, cols, comm.rank() % 3);
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t c = 0; c < cols; ++c) x.at(r, c) = input(seed, comm.rank(), r, c);
    return x;
  }
  float sum(uint64_t seed, int64_t row, int64_t col) const {
    std::vector<float> parts;
    for (int r = 0; r < comm.size(); ++r) parts.push_back(input(seed, r, row, col));
    return model_sum(parts);
  }
  // Bits, not values: -0 is not 0 here.
  static std::string judge(Matrix& got, int64_t rows, int64_t cols,
                           const std::function<float(int64_t, int64_t)>& want) {
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t c = 0; c < cols; ++c)
        if (std::bit_cast<uint32_t>(got.at(r, c)) != std::bit_cast<uint32_t>(want(r, c)))
          return strf("row {} column {}: {} and not {}", r, c, got.at(r, c), want(r, c));
    return got.gaps_untouched() ? "" : "wrote between rows";
  }
  std::vector<int64_t> uneven_rows() {
    std::vector<int64_t> rows;
    for (int r = 0; r < comm.size(); ++r) rows.push_back(below(3) == 0 ? 0 : below(6));
    return rows;
  }

  std::string all_reduce(uint64_t seed, int64_t rows, int64_t cols) {
    Matrix x = filled(seed, rows, cols);
    comm.all_reduce(x.tensor());
    for (int64_t r = 0; hash != nullptr && r < rows; ++r)
      for (int64_t c = 0; c < cols; ++c)
        *hash = (*hash ^ std::bit_cast<uint32_t>(x.at(r, c))) * 0x9e3779b97f4a7c15u;
    return judge(x, rows, cols, [&](int64_t r, int64_t c) { return sum(seed, r, c); });
  }
  std::string reduce_scatter(uint64_t seed, int64_t cols) {
    const std::vector<int64_t> rows = uneven_rows();
    int64_t total = 0, first = 0;
    for (int r = 0; r < comm.size(); ++r) {
      if (r == comm.rank()) first = total;
      total += rows[static_cast<size_t>(r)];
    }
    const int64_t own = rows[static_cast<size_t>(comm.rank())];
    Matrix x = filled(seed, total, cols), mine(own, cols, 2);
    comm.reduce_scatter_rows(x.tensor(), rows, mine.tensor());
    return judge(mine, own, cols, [&](int64_t r, int64_t c) { return sum(seed, first + r, c); });
  }
  std::string all_gather(uint64_t seed, int64_t cols) {
    const std::vector<int64_t> rows = uneven_rows();
    std::vector<std::pair<int, int64_t>> owners;  // of each row: rank, its row
    for (int r = 0; r < comm.size(); ++r)
      for (int64_t i = 0; i < rows[static_cast<size_t>(r)]; ++i) owners.emplace_back(r, i);
    const auto total = static_cast<int64_t>(owners.size());
    Matrix mine = filled(seed, rows[static_cast<size_t>(comm.rank())], cols), all(total, cols, 1);
    comm.all_gather_rows(mine.tensor(), rows, all.tensor());
    return judge(all, total, cols, [&](int64_t r, int64_t c) {
      return input(seed, owners[static_cast<size_t>(r)].first, owners[static_cast<size_t>(r)].second, c);
    });
  }
  std::string gather(uint64_t seed, int64_t rows, int64_t cols) {
    const auto root = static_cast<int>(below(comm.size()));
    Matrix x = filled(seed, rows, cols), all(comm.size() * rows, cols, 0);
    const Tensor to(all.tensor().data, DType::kF32, {comm.size(), rows, cols});
    comm.gather(x.tensor(), root, comm.rank() == root ? to : Tensor{});
    if (comm.rank() != root) return "";
    return judge(all, comm.size() * rows, cols,
                 [&](int64_t r, int64_t c) { return input(seed, static_cast<int>(r / rows), r % rows, c); });
  }
  std::string broadcast(uint64_t seed, int64_t rows, int64_t cols) {
    const auto root = static_cast<int>(below(comm.size()));
    Matrix x = filled(seed, rows, cols);
    comm.broadcast(x.tensor(), root);
    return judge(x, rows, cols, [&](int64_t r, int64_t c) { return input(seed, root, r, c); });
  }
};

}  // namespace

std::string run_comm_cases(Communicator& comm, uint64_t seed, int calls, uint64_t* hash) {
  Case test{.comm = comm, .random = std::mt19937_64(seed), .hash = hash};
  for (int i = 0; i < calls; ++i) {
    const uint64_t key = test.random();
    const int64_t rows = test.below(5);
    // Now and then more than any transport moves at once.
    const int64_t cols = test.below(40) == 0 ? 30000 + test.below(30000) : 1 + test.below(700);
    std::string wrong;
    const int64_t kind = test.below(5);
    if (kind == 0) wrong = test.all_reduce(key, rows, cols);
    if (kind == 1) wrong = test.reduce_scatter(key, cols);
    if (kind == 2) wrong = test.all_gather(key, cols);
    if (kind == 3) wrong = test.gather(key, rows, cols);
    if (kind == 4) wrong = test.broadcast(key, rows, cols);
    if (comm.failed()) return strf("call {}: failed", i);
    if (!wrong.empty()) {
      comm.abort();  // nobody waits for a rank that has left
      return strf("call {}, kind {}, rank {}: {}", i, kind, comm.rank(), wrong);
    }
  }
  return "";
}

}  // namespace sparrow
