// SPDX-License-Identifier: Apache-2.0
#include "support/msa_cases.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <numeric>
#include <thread>

namespace msa::testing {
namespace {

uint16_t bf16_of(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  if (std::isnan(x)) return 0x7fff;
  return static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

float float_of(uint16_t bits) {
  return std::bit_cast<float>(uint32_t{bits} << 16);
}

std::vector<float> random_values(std::mt19937& random, int64_t count, Values values, float gain) {
  std::vector<float> x(count);
  for (float& value : x) {
    if (values == Values::kIntegers)
      value = static_cast<float>(static_cast<int>(random() % 5) - 2);
    else
      value = float_of(bf16_of((static_cast<float>(random() >> 8) * 0x1p-23f - 1.0f) * gain));
  }
  return x;
}

}  // namespace

std::vector<Isa> fast_isas() {
  std::vector<Isa> isas;
  for (const Isa isa : {Isa::kAvx2, Isa::kAvx512, Isa::kAvx512Bf16, Isa::kAmx})
    if (isa <= detect_isa()) isas.push_back(isa);
  return isas;
}

Workers thread_workers(int* count) {
  return {.count = *count, .pool = count, .run = [](void* pool, void (*body)(void*, int), void* arg) {
            std::vector<std::thread> threads;
            for (int worker = 1; worker < *static_cast<int*>(pool); ++worker)
              threads.emplace_back(body, arg, worker);
            body(arg, 0);
            for (std::thread& thread : threads) thread.join();
          }};
}

Sequences::Sequences(const CaseOptions& options) : options_(options) {
  std::mt19937 random(options.seed);
  const auto values = [&](int64_t tokens, int64_t heads, float gain) {
    return random_values(random, tokens * heads * kHeadDim, options_.values, gain);
  };
  int num_pages = 1;  // one that nothing uses
  for (const int length : options.lengths) {
    Sequence s;
    s.length = length;
    s.index_q = values(length, options.heads.kv_heads, 1);
    s.index_k = values(length, 1, 1);
    s.q = values(length, options.heads.query_heads, options.query_gain);
    s.k = values(length, options.heads.kv_heads, 1);
    s.v = values(length, options.heads.kv_heads, 1);
    s.pages.resize((length + kBlock - 1) / kBlock);
    num_pages += static_cast<int>(s.pages.size());
    sequences_.push_back(std::move(s));
  }
  std::vector<int32_t> order(num_pages);
  std::iota(order.begin(), order.end(), 0);
  std::mt19937 page_random(options.page_seed);
  std::shuffle(order.begin(), order.end(), page_random);
  auto next = order.begin();
  for (Sequence& s : sequences_)
    for (int32_t& page : s.pages) page = *next++;
  // All ones are a NaN in both types.
  index_pages_.assign(int64_t{num_pages} * kBlock * kHeadDim * element_bytes(), 0xff);
  kv_pages_.assign(int64_t{num_pages} * options.heads.kv_heads * 2 * kBlock * kHeadDim * element_bytes(),
                   0xff);
}

void Sequences::put(std::vector<uint8_t>& bytes, int64_t element, const float* from, int64_t count) const {
  for (int64_t i = 0; i < count; ++i) {
    if (options_.type == Type::kF32) {
      std::memcpy(bytes.data() + (element + i) * 4, from + i, 4);
    } else {
      const uint16_t bits = bf16_of(from[i]);
      std::memcpy(bytes.data() + (element + i) * 2, &bits, 2);
    }
  }
}

void Sequences::write(Sequence& s, int end) {
  const int64_t heads = options_.heads.kv_heads;
  for (; s.written < end; ++s.written) {
    const int64_t token = s.written, page = s.pages[token / kBlock], row = token % kBlock;
    put(index_pages_, (page * kBlock + row) * kHeadDim, s.index_k.data() + token * kHeadDim, kHeadDim);
    for (int64_t head = 0; head < heads; ++head) {
      const int64_t from = (token * heads + head) * kHeadDim;
      const int64_t tile = (page * heads + head) * 2 * kBlock + row;
      put(kv_pages_, tile * kHeadDim, s.k.data() + from, kHeadDim);
      put(kv_pages_, (tile + kBlock) * kHeadDim, s.v.data() + from, kHeadDim);
    }
  }
}

Step Sequences::step(const std::vector<Chunk>& chunks) {
  Step step;
  size_t max_blocks = 1;
  for (const Chunk& chunk : chunks)
    max_blocks = std::max(max_blocks, sequences_[chunk.sequence].pages.size());
  step.cu_seqlens_q.push_back(0);
  for (const Chunk& chunk : chunks) {
    Sequence& s = sequences_[chunk.sequence];
    write(s, chunk.first + chunk.count);
    step.cu_seqlens_q.push_back(step.cu_seqlens_q.back() + chunk.count);
    step.seq_lens.push_back(chunk.first + chunk.count);
    std::vector<int32_t> row = s.pages;
    row.resize(max_blocks, -1);
    step.block_table.insert(step.block_table.end(), row.begin(), row.end());
    const auto append = [&](std::vector<uint8_t>& bytes, const std::vector<float>& values, int64_t heads) {
      const int64_t at = static_cast<int64_t>(bytes.size()) / element_bytes(), width = heads * kHeadDim;
      bytes.resize(bytes.size() + chunk.count * width * element_bytes());
      put(bytes, at, values.data() + chunk.first * width, chunk.count * width);
    };
    append(step.index_q, s.index_q, options_.heads.kv_heads);
    append(step.q, s.q, options_.heads.query_heads);
  }
  step.plan = {.num_requests = static_cast<int>(chunks.size()),
               .cu_seqlens_q = step.cu_seqlens_q.data(),
               .seq_lens = step.seq_lens.data(),
               .block_table = step.block_table.data(),
               .max_blocks = static_cast<int>(max_blocks)};
  return step;
}

void Sequences::set_index_key(int sequence, int token, int channel, float x) {
  sequences_[sequence].index_k[int64_t{token} * kHeadDim + channel] = x;
}

void Sequences::set_index_query(int sequence, int token, int head, int channel, float x) {
  sequences_[sequence].index_q[(int64_t{token} * options_.heads.kv_heads + head) * kHeadDim + channel] = x;
}

IndexParams Sequences::index_params(const Step& step, const Selection& selection, int32_t* selected) const {
  return {.type = options_.type,
          .heads = options_.heads,
          .selection = selection,
          .q = step.index_q.data(),
          .k_pages = index_pages_.data(),
          .selected = selected};
}

AttendParams Sequences::attend_params(const Step& step, const int32_t* selected, int top_k, void* out) const {
  return {.type = options_.type,
          .heads = options_.heads,
          .top_k = top_k,
          .q = step.q.data(),
          .kv_pages = kv_pages_.data(),
          .selected = selected,
          .out = out};
}

std::vector<int32_t> run_index(const Sequences& sequences, const Step& step, const Selection& selection,
                               Isa isa, int workers) {
  std::vector<int32_t> selected(
      int64_t{step.plan.total_queries()} * sequences.options().heads.kv_heads * selection.top_k, -77);
  const IndexParams params = sequences.index_params(step, selection, selected.data());
  const Workers team = thread_workers(&workers);
  std::vector<uint8_t> workspace(index_workspace_bytes(step.plan, params, isa, team), 0xff);
  index(step.plan, params, isa, team, workspace.data());
  return selected;
}

std::vector<uint8_t> run_attend(const Sequences& sequences, const Step& step, const int32_t* selected,
                                int top_k, Isa isa, int workers) {
  std::vector<uint8_t> out(step.q.size(), 0xff);
  const AttendParams params = sequences.attend_params(step, selected, top_k, out.data());
  const Workers team = thread_workers(&workers);
  std::vector<uint8_t> workspace(attend_workspace_bytes(step.plan, params, isa, team), 0xff);
  attend(step.plan, params, isa, team, workspace.data());
  return out;
}

std::vector<int32_t> random_selection(const Step& step, int kv_heads, int top_k, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<int32_t> selected;
  for (int request = 0; request < step.plan.num_requests; ++request)
    for (int row = step.cu_seqlens_q[request]; row < step.cu_seqlens_q[request + 1]; ++row)
      for (int head = 0; head < kv_heads; ++head) {
        const int own = (step.seq_lens[request] - step.cu_seqlens_q[request + 1] + row) / kBlock;
        std::vector<int32_t> ids(own);
        std::iota(ids.begin(), ids.end(), 0);
        std::shuffle(ids.begin(), ids.end(), random);
        ids.resize(std::min(own, top_k - 1));
        ids.push_back(own);
        std::sort(ids.begin(), ids.end());
        ids.resize(top_k, -1);
        selected.insert(selected.end(), ids.begin(), ids.end());
      }
  return selected;
}

std::vector<float> to_floats(Type type, const std::vector<uint8_t>& bytes) {
  std::vector<float> x(bytes.size() / (type == Type::kF32 ? 4 : 2));
  if (type == Type::kF32) {
    std::memcpy(x.data(), bytes.data(), bytes.size());
    return x;
  }
  for (size_t i = 0; i < x.size(); ++i) {
    uint16_t bits;
    std::memcpy(&bits, bytes.data() + i * 2, 2);
    x[i] = float_of(bits);
  }
  return x;
}

}  // namespace msa::testing
