// SPDX-License-Identifier: Apache-2.0
// Times MSA on the CPU with the heads of MiniMax-M3 (64 query, 4 KV, bf16): index, sparse attention and dense
// attention of whole-prompt prefill and of single-token decode. Prints a table; --json FILE writes the same
// as a JSON array.
//
//   attention_bench [--threads N] [--isa scalar|avx2|avx512|avx512-bf16|amx] [--tokens N] [--max-tokens N]
//                   [--repeats N] [--cpu-time] [--json FILE]
#include <time.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/threads/thread_pool.h"
#include "ops/ops.h"

namespace {

using msa::kBlock;
using msa::kHeadDim;

constexpr msa::HeadShape kHeads = {64, 4};
constexpr int kTopK = 16;
constexpr int kChunk = 2048;  // queries of a prefill step
constexpr int64_t kColdBytes = int64_t{1}
                               << 30;  // decode rotates over caches of this size: each layer's is cold

struct Result {
  std::string name;
  double index_ms, sparse_ms, dense_ms;        // medians
  double index_rate, sparse_rate, dense_rate;  // GFLOP/s for prefill, GB/s for decode
  double ratio() const { return dense_ms / (index_ms + sparse_ms); }
};

class RandomBits {
 public:
  // Uniform in about [-1, 1) as bf16: random sign and mantissa under a few exponents.
  void fill(uint16_t* out, int64_t count) {
    for (int64_t i = 0; i < count; ++i) {
      state_ = state_ * 6364136223846793005u + 1442695040888963407u;
      const float x = static_cast<float>(static_cast<int32_t>(state_ >> 32)) * 0x1p-31f;
      uint32_t bits;
      std::memcpy(&bits, &x, 4);
      out[i] = static_cast<uint16_t>(bits >> 16);
    }
  }

 private:
  uint64_t state_ = 1;
};

// The caches of `layers` layers and the queries of one step.
struct Fixture {
  Fixture(int64_t tokens, int64_t queries, int64_t layers)
      : blocks(tokens / kBlock),
        num_layers(layers),
        table(blocks),
        out(queries * kHeads.query_heads * kHeadDim) {
    RandomBits random;
    const auto allocate = [&](std::unique_ptr<uint16_t[]>& to, int64_t count) {
      to.reset(new uint16_t[count]);
      random.fill(to.get(), count);
    };
    allocate(index_q, queries * kHeads.kv_heads * kHeadDim);
    allocate(q, queries * kHeads.query_heads * kHeadDim);
    allocate(index_k, layers * blocks * kBlock * kHeadDim);
    allocate(kv, layers * blocks * kHeads.kv_heads * 2 * kBlock * kHeadDim);
    // Pages in an order that no stride explains.
    for (int64_t i = 0; i < blocks; ++i) table[i] = static_cast<int32_t>(i);
    uint64_t state = 7;
    for (int64_t i = blocks - 1; i > 0; --i) {
      state = state * 6364136223846793005u + 1442695040888963407u;
      std::swap(table[i], table[(state >> 33) % static_cast<uint64_t>(i + 1)]);
    }
    selected.resize(queries * kHeads.kv_heads * kTopK);
  }

  int64_t blocks, num_layers;
  std::vector<int32_t> table;
  std::unique_ptr<uint16_t[]> index_q, q, index_k, kv;
  std::vector<int32_t> selected;
  std::vector<uint16_t> out;
};

class Bench {
 public:
  Bench(int threads, msa::Isa isa, bool cpu_time) : pool_(threads), cpu_time_(cpu_time), isa_(isa) {
    workers_ = {
        .count = pool_.size(), .pool = &pool_, .run = [](void* pool, void (*body)(void*, int), void* arg) {
          static_cast<sparrow::ThreadPool*>(pool)->run(body, arg);
        }};
  }

  // `repeats` 0: by the length.
  Result prefill(int64_t tokens, int repeats) {
    Fixture f(tokens, kChunk, 1);
    double flops_index = 0, flops_sparse = 0, flops_dense = 0;
    for (int64_t p = 0; p < tokens; ++p) {
      const int64_t whole = p / kBlock * kBlock, own = p - whole + 1;
      flops_dense += 512.0 * kHeads.query_heads * static_cast<double>(p + 1);
      flops_sparse += 512.0 * kHeads.query_heads *
                      static_cast<double>(std::min<int64_t>(whole, (kTopK - 1) * kBlock) + own);
      if (p >= kTopK * kBlock) flops_index += 256.0 * kHeads.kv_heads * static_cast<double>(whole);
    }
    if (repeats == 0) repeats = tokens <= 4096 ? 7 : tokens <= 8192 ? 3 : 1;
    std::vector<double> index, sparse, dense;
    for (int i = 0; i < repeats; ++i) {
      double times[3] = {};
      for (int64_t end = kChunk; end <= tokens; end += kChunk) step(f, kChunk, end, 0, times);
      index.push_back(times[0]);
      sparse.push_back(times[1]);
      dense.push_back(times[2]);
    }
    return result("prefill " + std::to_string(tokens), index, sparse, dense, flops_index, flops_sparse,
                  flops_dense);
  }

  Result decode(int64_t tokens) {
    const int64_t kv_bytes = tokens * kHeads.kv_heads * 2 * kHeadDim * 2;
    Fixture f(tokens, 1, std::clamp<int64_t>(kColdBytes / kv_bytes, 2, 16));
    std::vector<double> index, sparse, dense;
    for (int i = 0; i < 48; ++i) {
      double times[3] = {};
      step(f, 1, tokens, i % f.num_layers, times);
      index.push_back(times[0]);
      sparse.push_back(times[1]);
      dense.push_back(times[2]);
    }
    const double sparse_bytes = std::min<double>(kTopK * kBlock, static_cast<double>(tokens)) * 2048;
    return result("decode " + std::to_string(tokens), index, sparse, dense,
                  static_cast<double>(tokens) * kHeadDim * 2, sparse_bytes, static_cast<double>(kv_bytes));
  }

 private:
  double milliseconds() const {
    timespec now;
    clock_gettime(cpu_time_ ? CLOCK_PROCESS_CPUTIME_ID : CLOCK_MONOTONIC, &now);
    const double ms = static_cast<double>(now.tv_sec) * 1e3 + static_cast<double>(now.tv_nsec) * 1e-6;
    return cpu_time_ ? ms / pool_.size() : ms;
  }

  double timed(const std::function<void()>& body) const {
    const double start = milliseconds();
    body();
    return milliseconds() - start;
  }

  static Result result(std::string name, std::vector<double>& index, std::vector<double>& sparse,
                       std::vector<double>& dense, double index_work, double sparse_work, double dense_work) {
    const auto median = [](std::vector<double>& x) {
      std::nth_element(x.begin(), x.begin() + x.size() / 2, x.end());
      return x[x.size() / 2];
    };
    const double i = median(index), s = median(sparse), d = median(dense);
    return {std::move(name), i, s, d, index_work / i * 1e-6, sparse_work / s * 1e-6, dense_work / d * 1e-6};
  }

  // One step of `queries` queries that end at `seq_len`; adds the milliseconds of index, sparse and dense
  // attention.
  void step(Fixture& f, int queries, int64_t seq_len, int64_t layer, double* times) {
    const int32_t cu_seqlens[2] = {0, queries}, length = static_cast<int32_t>(seq_len);
    const msa::Plan plan = {.num_requests = 1,
                            .cu_seqlens_q = cu_seqlens,
                            .seq_lens = &length,
                            .block_table = f.table.data(),
                            .max_blocks = static_cast<int>(f.blocks)};
    const msa::IndexParams index = {.heads = kHeads,
                                    .selection = {.top_k = kTopK},
                                    .q = f.index_q.get(),
                                    .k_pages = f.index_k.get() + layer * f.blocks * kBlock * kHeadDim,
                                    .selected = f.selected.data()};
    const int64_t layer_elements = f.blocks * kHeads.kv_heads * 2 * kBlock * kHeadDim;
    msa::AttendParams attend = {.heads = kHeads,
                                .q = f.q.get(),
                                .kv_pages = f.kv.get() + layer * layer_elements,
                                .selected = f.selected.data(),
                                .out = f.out.data()};
    msa::AttendParams dense = attend;
    dense.selected = nullptr;
    const int64_t bytes = std::max({msa::index_workspace_bytes(plan, index, isa_, workers_),
                                    msa::attend_workspace_bytes(plan, attend, isa_, workers_),
                                    msa::attend_workspace_bytes(plan, dense, isa_, workers_)});
    if (static_cast<int64_t>(workspace_.size()) < bytes) workspace_.resize(bytes);
    times[0] += timed([&] { msa::index(plan, index, isa_, workers_, workspace_.data()); });
    times[1] += timed([&] { msa::attend(plan, attend, isa_, workers_, workspace_.data()); });
    times[2] += timed([&] { msa::attend(plan, dense, isa_, workers_, workspace_.data()); });
  }

  sparrow::ThreadPool pool_;
  bool cpu_time_;
  msa::Workers workers_;
  msa::Isa isa_;
  std::vector<uint8_t> workspace_;
};

void write_json(const char* path, const std::vector<Result>& results) {
  std::FILE* file = std::fopen(path, "w");
  if (file == nullptr) {
    std::fprintf(stderr, "cannot write %s\n", path);
    std::exit(1);
  }
  std::fprintf(file, "[\n");
  for (size_t i = 0; i < results.size(); ++i) {
    const Result& r = results[i];
    const char* unit = r.name.starts_with("decode") ? "GB/s" : "GFLOP/s";
    std::fprintf(file,
                 "  {\"case\": \"%s\", \"index_ms\": %.4f, \"sparse_ms\": %.4f, \"dense_ms\": %.4f, "
                 "\"index_rate\": %.1f, \"sparse_rate\": %.1f, \"dense_rate\": %.1f, \"rate_unit\": \"%s\", "
                 "\"dense_over_sparse\": %.3f}%s\n",
                 r.name.c_str(), r.index_ms, r.sparse_ms, r.dense_ms, r.index_rate, r.sparse_rate,
                 r.dense_rate, unit, r.ratio(), i + 1 < results.size() ? "," : "");
  }
  std::fprintf(file, "]\n");
  std::fclose(file);
}

}  // namespace

int main(int argc, char** argv) {
  const char* json = nullptr;
  int threads = sparrow::ThreadPool::default_size();
  int64_t max_tokens = 131072, only = 0;
  int repeats = 0;
  bool cpu_time = false;
  sparrow::CpuIsa isa = sparrow::ops::detect_cpu_isa();
  for (int i = 1; i < argc; ++i) {
    const bool has_value = i + 1 < argc;
    if (has_value && std::strcmp(argv[i], "--json") == 0) {
      json = argv[++i];
    } else if (has_value && std::strcmp(argv[i], "--threads") == 0) {
      threads = std::max(1, std::atoi(argv[++i]));
    } else if (has_value && std::strcmp(argv[i], "--isa") == 0 && sparrow::ops::cpu_isa_named(argv[i + 1])) {
      isa = *sparrow::ops::cpu_isa_named(argv[++i]);
    } else if (has_value && std::strcmp(argv[i], "--max-tokens") == 0) {
      max_tokens = std::atoll(argv[++i]);
    } else if (has_value && std::strcmp(argv[i], "--tokens") == 0) {
      only = std::max<int64_t>(kChunk, std::atoll(argv[++i]) / kChunk * kChunk);
    } else if (has_value && std::strcmp(argv[i], "--repeats") == 0) {
      repeats = std::max(1, std::atoi(argv[++i]));
    } else if (std::strcmp(argv[i], "--cpu-time") == 0) {
      cpu_time = true;
    } else {
      std::fprintf(
          stderr,
          "usage: attention_bench [--threads N] [--isa scalar|avx2|avx512|avx512-bf16|amx]\n"
          "                       [--tokens N] [--max-tokens N] [--repeats N] [--cpu-time] [--json FILE]\n");
      return 2;
    }
  }
  Bench bench(threads, static_cast<msa::Isa>(isa), cpu_time);
  std::printf("MSA, 64 query heads, 4 KV heads, bf16, %s, %d threads. Rates: prefill GFLOP/s, decode GB/s.\n",
              sparrow::ops::name_of(isa), threads);
  std::printf("%-16s %12s %8s %12s %8s %12s %8s %14s\n", "case", "index ms", "rate", "sparse ms", "rate",
              "dense ms", "rate", "dense / (i+s)");
  std::vector<Result> results;
  const auto report = [&](const Result& r) {
    std::printf("%-16s %12.3f %8.1f %12.3f %8.1f %12.3f %8.1f %14.2f\n", r.name.c_str(), r.index_ms,
                r.index_rate, r.sparse_ms, r.sparse_rate, r.dense_ms, r.dense_rate, r.ratio());
    std::fflush(stdout);
    results.push_back(r);
  };
  if (only > 0) {
    report(bench.decode(only));
    report(bench.prefill(only, repeats));
  } else {
    for (const int64_t tokens : {8192, 32768, 131072})
      if (tokens <= max_tokens) report(bench.decode(tokens));
    for (const int64_t tokens : {2048, 4096, 8192, 16384, 32768})
      if (tokens <= max_tokens) report(bench.prefill(tokens, repeats));
  }
  if (json != nullptr) write_json(json, results);
  return 0;
}
