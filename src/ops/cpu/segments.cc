// SPDX-License-Identifier: Apache-2.0
// Attention within segments, on the matrix product: the keys of a head are the rows of a matrix where they
// lie, its values transposed are those of another. A work item is some queries of one head of one segment:
// their scores against all keys, the exponentials, and the values' sum. Nobody else's rows have a part in it.
#include <limits>
#include <vector>

#include "ops/cpu/vision_cpu.h"

namespace sparrow::ops::cpu {
namespace {

constexpr int64_t kQueries = 64;  // of an item: enough to use each key from the cache many times

// What an item takes, in bytes, where the longest segment has `keys`.
struct Sizes {
  Sizes(const GemmEngine& by_keys, const GemmEngine& by_values, int64_t head_dim, int64_t keys)
      : query(round_up(by_keys.packed_bytes(kQueries, head_dim), 64)),
        scores(kQueries * round_up(keys, kRowGroup) * static_cast<int64_t>(sizeof(float))),
        weight(round_up(by_values.packed_bytes(kQueries, keys), 64)),
        sums(kQueries * kMaxStrip * static_cast<int64_t>(sizeof(float))),
        workspace(
            round_up(std::max(by_keys.workspace_bytes(head_dim), by_values.workspace_bytes(keys)), 64)) {}

  int64_t query, scores, weight, sums, workspace;
  int64_t all() const { return query + scores + weight + sums + workspace; }
};

// The type in which exponentials meet the values: that of the products, which is bf16 where they run on it.
DType weight_type(const Kernels& kernels, DType type) {
  return kernels.tiles == nullptr ? DType::kF32 : type;
}

class Attention {
 public:
  Attention(Exec& exec, const Kernels& kernels, const SegmentAttention& of)
      : exec_(exec),
        kernels_(kernels),
        of_(of),
        head_dim_(of.q.cols() / of.heads),
        element_(static_cast<int64_t>(size_of(of.q.dtype))),
        weight_type_(weight_type(kernels, of.q.dtype)),
        by_keys_(kernels.engine(of.q.dtype, format_of(of.k.dtype))),
        by_values_(kernels.engine(weight_type_, format_of(of.v.dtype))) {}

  void run() {
    int64_t longest = 0;
    for (size_t s = 0; s + 1 < of_.begins.size(); ++s)
      longest = std::max(longest, of_.begins[s + 1] - of_.begins[s]);
    if (longest == 0) return;
    Scratch::Scope scope(exec_.scratch);
    transposed_ = scope.take<char>(of_.v.rows() * of_.v.cols() * element_);
    transpose_values();
    const Sizes sizes(by_keys_, by_values_, head_dim_, longest);
    char* memory = scope.take<char>(exec_.pool.size() * sizes.all());
    std::vector<int64_t> first_item = {0};
    for (size_t s = 0; s + 1 < of_.begins.size(); ++s)
      first_item.push_back(first_item.back() +
                           of_.heads * ceil_div(of_.begins[s + 1] - of_.begins[s], kQueries));
    exec_.pool.parallel_for(first_item.back(), [&](int64_t item, int worker) {
      const auto after = std::upper_bound(first_item.begin(), first_item.end(), item);
      const auto segment = static_cast<size_t>(after - first_item.begin()) - 1;
      const int64_t inside = item - first_item[segment];
      const int64_t keys = of_.begins[segment + 1] - of_.begins[segment];
      const int64_t first = inside / of_.heads * kQueries;
      attend({.begin = of_.begins[segment],
              .keys = keys,
              .channel = inside % of_.heads * head_dim_,
              .first = first,
              .queries = std::min(kQueries, keys - first)},
             sizes, memory + worker * sizes.all());
    });
  }

 private:
  // Of each segment [channels of all heads][rows], where its rows are in v.
  void transpose_values() {
    const int64_t width = of_.v.cols(), segments = static_cast<int64_t>(of_.begins.size()) - 1;
    exec_.pool.parallel_for(segments * of_.heads, [&](int64_t item, int) {
      const int64_t begin = of_.begins[static_cast<size_t>(item / of_.heads)];
      const int64_t rows = of_.begins[static_cast<size_t>(item / of_.heads) + 1] - begin;
      const int64_t channel = item % of_.heads * head_dim_;
      char* to = transposed_ + (begin * width + channel * rows) * element_;
      const auto move = [&]<typename T>(T*) {
        for (int64_t r = 0; r < rows; ++r) {
          const T* from = reinterpret_cast<const T*>(row_at(of_.v, begin + r)) + channel;
          for (int64_t c = 0; c < head_dim_; ++c) reinterpret_cast<T*>(to)[c * rows + r] = from[c];
        }
      };
      element_ == 2 ? move(static_cast<uint16_t*>(nullptr)) : move(static_cast<uint32_t*>(nullptr));
    });
  }

  // Some queries of one head.
  struct Item {
    int64_t begin, keys;     // of the segment
    int64_t channel;         // the head's first
    int64_t first, queries;  // in the segment
    int64_t padded() const { return round_up(keys, kRowGroup); }
  };

  // The exponentials of the item's scores [queries, padded]; `totals` gets the sum of each row.
  void exponentials(const Item& item, char* packed, char* workspace, float* scores, float* totals) {
    const void* rows[kQueries];
    for (int64_t r = 0; r < item.queries; ++r) rows[r] = at(of_.q, item.begin + item.first + r, item.channel);
    by_keys_.pack(pack_job(rows, of_.q.dtype, item.queries, head_dim_, packed));
    for (int64_t key = 0; key < item.keys; key += kMaxStrip)
      by_keys_.multiply({.packed = packed,
                         .first_row = 0,
                         .rows = item.queries,
                         .weight = {.values = at(of_.k, item.begin, item.channel),
                                    .format = format_of(of_.k.dtype),
                                    .columns = head_dim_,
                                    .stride = of_.k.row_stride * element_},
                         .first_output = key,
                         .outputs = std::min(kMaxStrip, item.keys - key),
                         .c = scores + key,
                         .c_stride = item.padded(),
                         .workspace = workspace});
    for (int64_t r = 0; r < item.queries; ++r) {
      float* row = scores + r * item.padded();
      std::fill(row + item.keys, row + item.padded(), -std::numeric_limits<float>::infinity());
      totals[r] = kernels_.vision->exponentials(row, of_.scale, item.padded());
    }
  }

  // sums [queries, kMaxStrip] = the values, weighed by the exponentials.
  void weigh(const Item& item, float* scores, char* packed, char* workspace, float* sums) {
    const void* rows[kQueries];
    for (int64_t r = 0; r < item.queries; ++r) {
      float* row = scores + r * item.padded();
      // Narrowing from the front: nothing is overwritten before it is read.
      if (weight_type_ != DType::kF32) kernels_.row->from_f32(row, row, weight_type_, item.padded());
      rows[r] = row;
    }
    by_values_.pack(pack_job(rows, weight_type_, item.queries, item.keys, packed));
    by_values_.multiply(
        {.packed = packed,
         .first_row = 0,
         .rows = item.queries,
         .weight = {.values = transposed_ + (item.begin * of_.v.cols() + item.channel * item.keys) * element_,
                    .format = format_of(of_.v.dtype),
                    .columns = item.keys,
                    .stride = item.keys * element_},
         .first_output = 0,
         .outputs = head_dim_,
         .c = sums,
         .c_stride = kMaxStrip,
         .workspace = workspace});
  }

  void attend(const Item& item, const Sizes& sizes, char* memory) {
    char *const query = memory, *const weight = query + sizes.query + sizes.scores;
    auto* const scores = reinterpret_cast<float*>(query + sizes.query);
    auto* const sums = reinterpret_cast<float*>(weight + sizes.weight);
    char* const workspace = weight + sizes.weight + sizes.sums;
    float totals[kQueries];
    exponentials(item, query, workspace, scores, totals);
    weigh(item, scores, weight, workspace, sums);
    for (int64_t r = 0; r < item.queries; ++r) {
      float* sum = sums + r * kMaxStrip;
      for (int64_t c = 0; c < head_dim_; ++c) sum[c] /= totals[r];
      kernels_.row->from_f32(sum, at(of_.out, item.begin + item.first + r, item.channel), of_.out.dtype,
                             head_dim_);
    }
  }

  char* at(const Tensor& rows, int64_t row, int64_t channel) const {
    return row_at(rows, row) + channel * element_;
  }
  static PackJob pack_job(const void* const* rows, DType type, int64_t count, int64_t columns, void* to) {
    return {.rows = rows,
            .type = type,
            .count = count,
            .columns = columns,
            .packed = to,
            .packed_columns = columns,
            .first_row = 0,
            .first_column = 0};
  }

  Exec& exec_;
  const Kernels& kernels_;
  const SegmentAttention& of_;
  const int64_t head_dim_, element_;
  const DType weight_type_;
  const GemmEngine &by_keys_, &by_values_;
  char* transposed_ = nullptr;
};

}  // namespace

void attend_segments(Exec& exec, const Kernels& kernels, const SegmentAttention& attention) {
  Attention(exec, kernels, attention).run();
}

int64_t segment_scratch_bytes(const Kernels& kernels, const SegmentScratchQuery& query) {
  const Sizes sizes(kernels.engine(query.type, format_of(query.type)),
                    kernels.engine(weight_type(kernels, query.type), format_of(query.type)), kMaxStrip,
                    query.longest);
  return round_up(query.rows * query.width * static_cast<int64_t>(size_of(query.type)), 64) +
         query.threads * sizes.all();
}

}  // namespace sparrow::ops::cpu
