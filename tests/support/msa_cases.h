// SPDX-License-Identifier: Apache-2.0
// Sequences in paged caches for the tests of msa: random contents, scattered pages, NaN wherever nothing was
// written.
#pragma once

#include <cstdint>
#include <random>
#include <vector>

#include "msa/msa.h"

namespace msa::testing {

// Instruction sets to test against the reference: all that work here.
std::vector<Isa> fast_isas();

// Workers that are threads started for each region.
Workers thread_workers(int* count);

enum class Values {
  kUniform,   // in [-1, 1], rounded to bf16
  kIntegers,  // -2 ... 2: index scores are exact in every order of summation, and ties abound
};

struct CaseOptions {
  Type type = Type::kBF16;
  HeadShape heads;
  std::vector<int> lengths;  // tokens of each sequence
  Values values = Values::kUniform;
  uint32_t seed = 1;
  uint32_t page_seed = 1;  // order of physical pages only
  float query_gain = 1;    // multiplies attention queries: large gains make softmax peaky
};

// A run of queries of one sequence; the cache then holds the sequence up to the run's end.
struct Chunk {
  int sequence, first, count;
};

// The metadata of one step and its queries, gathered from the sequences. The plan points into the vectors.
struct Step {
  Step() = default;
  Step(Step&&) = default;
  Step& operator=(Step&&) = default;

  std::vector<int32_t> cu_seqlens_q, seq_lens, block_table;
  std::vector<uint8_t> index_q, q;
  Plan plan;
};

class Sequences {
 public:
  explicit Sequences(const CaseOptions& options);

  // Writes keys and values of the chunks' tokens and of all tokens before; later tokens stay NaN unless an
  // earlier step wrote them.
  Step step(const std::vector<Chunk>& chunks);

  void set_index_key(int sequence, int token, int channel, float x);
  void set_index_query(int sequence, int token, int head, int channel, float x);

  IndexParams index_params(const Step& step, const Selection& selection, int32_t* selected) const;
  AttendParams attend_params(const Step& step, const int32_t* selected, int top_k, void* out) const;
  int64_t element_bytes() const { return options_.type == Type::kF32 ? 4 : 2; }
  const CaseOptions& options() const { return options_; }

 private:
  struct Sequence {
    int length = 0, written = 0;
    std::vector<int32_t> pages;
    std::vector<float> index_q, index_k, q, k, v;  // by token
  };
  void write(Sequence& sequence, int end);
  void put(std::vector<uint8_t>& bytes, int64_t element, const float* from, int64_t count) const;

  CaseOptions options_;
  std::vector<Sequence> sequences_;
  std::vector<uint8_t> index_pages_, kv_pages_;
};

// index() and attend() into poisoned outputs, with a poisoned workspace of exactly the size asked for.
std::vector<int32_t> run_index(const Sequences& sequences, const Step& step, const Selection& selection,
                               Isa isa, int workers = 1);
std::vector<uint8_t> run_attend(const Sequences& sequences, const Step& step, const int32_t* selected,
                                int top_k, Isa isa, int workers = 1);

// A random legal selection for each query and KV head: ascending, with the own block.
std::vector<int32_t> random_selection(const Step& step, int kv_heads, int top_k, uint32_t seed);

std::vector<float> to_floats(Type type, const std::vector<uint8_t>& bytes);

}  // namespace msa::testing
