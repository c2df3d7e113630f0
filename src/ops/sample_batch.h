// SPDX-License-Identifier: Apache-2.0
// What the device sampler is sent and what it gives back. SampleBatch: draws, packed on the host into one
// block of bytes that it reads as it is. Plain C++, any one thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace sparrow::ops::cuda {

// An id that penalties count: how often it came in the output; 0: it is in the prompt only.
struct SeenId {
  int32_t id, count;
};

// One draw. What the fields mean and the order in which they apply is that of SamplingParams.
struct SampleSpec {
  int logits_row = 0;        // several draws may share one
  double temperature = 1.0;  // 0: greedy
  double top_p = 1.0;
  int top_k = 0;  // 0: all
  double min_p = 0.0;
  double repetition_penalty = 1.0, presence_penalty = 0.0, frequency_penalty = 0.0;
  double draw = 0.0;                  // uniform in [0, 1)
  std::span<const SeenId> seen = {};  // each id once; read only where a penalty is set
  std::span<const std::pair<int32_t, float>> bias = {};
  std::span<const int32_t> allowed = {};  // empty: all
  std::span<const int32_t> banned = {}, more_banned = {};
  std::span<const uint32_t> mask = {};  // bits by id of those allowed, 32 to a word; empty: all
};

// One draw as the device sees it, at the front of the packed bytes. Lists are ranges of 4-byte words behind
// the rows: seen ids, then biases (both as pairs), then allowed, then banned ids, then the mask.
struct PackedRow {
  double temperature, top_p, min_p, draw;
  double repetition_penalty, presence_penalty, frequency_penalty;
  int32_t logits_row, top_k;
  int32_t first_word;  // of the lists, counted from the start of the packed bytes
  int32_t num_seen, num_bias, num_allowed, num_banned;
  int32_t num_mask;  // words
};
static_assert(sizeof(PackedRow) == 88);

enum class SampleStatus : int32_t {
  kOk = 0,
  kNotFinite = 1,    // the logits hold a NaN or +infinity, or nothing but -infinity
  kNothingLeft = 2,  // allowed and banned ids exclude all
};

inline constexpr int kMaxLogprobs = 128;  // most probable ids reported for a token

// A log-probability that is wanted.
struct LogprobsRow {
  int32_t logits_row;
  int32_t id;       // whose; -1: the id that sample() drew for `sampled`
  int32_t sampled;  // row of SampleArgs::ids
  int32_t num_top;  // <= kMaxLogprobs; this many most probable ids beside
};

class SampleBatch {
 public:
  void clear();
  void add_row(const SampleSpec& spec);
  // What a row adds to bytes().
  static size_t bytes_of(const SampleSpec& spec);

  int rows() const { return static_cast<int>(rows_.size()); }
  // Every row takes the most probable id of its logits as they are: the fast kernel will do.
  bool plain_greedy() const { return plain_greedy_; }

  // The block to upload. The pack goes to (pinned) memory of at least bytes(), 16-byte aligned.
  size_t bytes() const { return rows_.size() * sizeof(PackedRow) + words_.size() * sizeof(int32_t); }
  void pack(void* out) const;

 private:
  std::vector<PackedRow> rows_;  // first_word counted from the end of the rows until they are packed
  std::vector<int32_t> words_;
  bool plain_greedy_ = true;
};

}  // namespace sparrow::ops::cuda
