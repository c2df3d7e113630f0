// SPDX-License-Identifier: Apache-2.0
// Speed of ops::linear and ops::moe on this machine: time, GFLOP/s, bytes of weights per second, and what
// share of the machine's own read bandwidth (measured first, with the same threads) that is.
//
//   gemm_bench [--threads N] [--isa scalar|avx2|avx512|avx512-bf16|amx] [--json FILE]
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "ops/ops.h"

namespace sparrow {
namespace {

constexpr int64_t kSize = 6144;
// Far beyond any last-level cache, so that a pass over the pool finds nothing left of the pass before.
constexpr int64_t kPoolBytes = int64_t{1} << 30;
constexpr int kSamples = 20;

struct Case {
  const char* name;
  int64_t rows;
  MatrixFormat weight;
  DType activation;
};

constexpr MatrixFormat kBF16 = MatrixFormat::kBF16, kMxfp8 = MatrixFormat::kMxfp8,
                       kMxfp4 = MatrixFormat::kMxfp4, kF32 = MatrixFormat::kF32;

constexpr Case kCases[] = {
    {"bf16 M=1", 1, kBF16, DType::kBF16},   {"bf16 M=2", 2, kBF16, DType::kBF16},
    {"bf16 M=4", 4, kBF16, DType::kBF16},   {"bf16 M=16", 16, kBF16, DType::kBF16},
    {"bf16 M=64", 64, kBF16, DType::kBF16}, {"bf16 M=512", 512, kBF16, DType::kBF16},
    {"mxfp8 M=1", 1, kMxfp8, DType::kBF16}, {"mxfp8 M=512", 512, kMxfp8, DType::kBF16},
    {"mxfp4 M=1", 1, kMxfp4, DType::kBF16}, {"mxfp4 M=512", 512, kMxfp4, DType::kBF16},
    {"f32 M=1", 1, kF32, DType::kF32},      {"f32 M=64", 64, kF32, DType::kF32},
};

// A layer of experts of MiniMax-M3's sizes; rows pick four of as many as the pool holds, and use the shared
// one.
constexpr int64_t kExpertSize = 3072, kPicks = 4;
constexpr Case kExpertCases[] = {
    {"experts bf16 M=1", 1, kBF16, DType::kBF16},   {"experts bf16 M=4", 4, kBF16, DType::kBF16},
    {"experts bf16 M=64", 64, kBF16, DType::kBF16}, {"experts mxfp8 M=1", 1, kMxfp8, DType::kBF16},
    {"experts mxfp4 M=1", 1, kMxfp4, DType::kBF16},
};

struct Measured {
  std::string name;
  double ms, cv, gflops, gbytes, share;
};

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

struct Samples {
  double median, cv;
};

template <typename Body>
Samples sample(Body&& body) {
  body();
  std::vector<double> times;
  for (int i = 0; i < kSamples; ++i) {
    const auto start = std::chrono::steady_clock::now();
    body();
    times.push_back(seconds_since(start));
  }
  double mean = 0, variance = 0;
  for (const double t : times) mean += t / kSamples;
  for (const double t : times) variance += (t - mean) * (t - mean) / kSamples;
  std::sort(times.begin(), times.end());
  return {times[kSamples / 2], std::sqrt(variance) / mean};
}

// Bytes per second at which all threads together read the pool, each in `streams` places at once.
double read_bandwidth(ThreadPool& pool, const std::vector<char>& memory, int64_t streams) {
  const int64_t share = static_cast<int64_t>(memory.size()) / pool.size() / streams / 4096 * 4096;
  std::vector<uint64_t> sums(static_cast<size_t>(pool.size()) * 8);
  const Samples samples = sample([&] {
    pool.parallel_for(pool.size(), [&](int64_t part, int) {
      const char* from = memory.data() + part * streams * share;
      uint64_t sum[8] = {};
      for (int64_t i = 0; i < share; i += 64)
        for (int64_t s = 0; s < streams; ++s) {
          uint64_t line[8];
          std::memcpy(line, from + s * share + i, 64);
          for (int j = 0; j < 8; ++j) sum[j] += line[j];
        }
      for (int j = 0; j < 8; ++j) sums[static_cast<size_t>(part) * 8] += sum[j];
    });
  });
  return static_cast<double>(share * streams * pool.size()) / samples.median;
}

// The best of several ways to read: one stream does not keep enough lines in flight.
double read_bandwidth(ThreadPool& pool, const std::vector<char>& memory) {
  double best = 0;
  for (const int64_t streams : {1, 4, 8, 16}) best = std::max(best, read_bandwidth(pool, memory, streams));
  return best;
}

int64_t matrix_bytes(MatrixFormat format, int64_t values) {
  return value_bytes(format, values) + (is_mx(format) ? values / kScaleGroup : 0);
}

// The weight [out, in] at `at`, which moves past it.
ops::Weight take_weight(char*& at, MatrixFormat format, int64_t out, int64_t in) {
  ops::Weight weight{.values = Tensor(at, dtype_of(format), {out, in / values_per_element(format)}),
                     .scales = {}};
  if (is_mx(format))
    weight.scales = Tensor(at + value_bytes(format, out * in), DType::kU8, {out, in / kScaleGroup});
  at += matrix_bytes(format, out * in);
  return weight;
}

Measured run_case(Exec& exec, const Case& c, std::vector<char>& memory, double bandwidth) {
  const int64_t bytes = matrix_bytes(c.weight, kSize * kSize);
  const int64_t matrices = static_cast<int64_t>(memory.size()) / bytes;
  std::vector<char> x(static_cast<size_t>(c.rows * kSize) * size_of(c.activation), 0);
  std::vector<char> y(x.size());
  const Tensor in(x.data(), c.activation, {c.rows, kSize}), out(y.data(), c.activation, {c.rows, kSize});
  // Each sample multiplies by the next matrices of the pool: one when rows are many, enough of them to time
  // otherwise.
  const int64_t calls = c.rows >= 64 ? 1 : 2;
  int64_t next = 0;
  const Samples samples = sample([&] {
    for (int64_t i = 0; i < calls; ++i, ++next) {
      char* at = memory.data() + next % matrices * bytes;
      const ops::Weight weight = take_weight(at, c.weight, kSize, kSize);
      const ops::Projection projection{&weight, out};
      ops::linear(exec, in, {&projection, 1});
    }
  });
  const double seconds = samples.median / static_cast<double>(calls);
  const double rate = static_cast<double>(bytes) / seconds;
  return {c.name,      seconds * 1e3,
          samples.cv,  2e-9 * static_cast<double>(c.rows * kSize * kSize) / seconds,
          rate * 1e-9, rate / bandwidth};
}

Measured run_experts(Exec& exec, const Case& c, std::vector<char>& memory, double bandwidth) {
  std::vector<ops::MlpWeights> experts;
  const int64_t bytes = matrix_bytes(c.weight, 3 * kExpertSize * kSize);
  for (char* at = memory.data(); at + bytes <= memory.data() + memory.size();) {
    ops::MlpWeights& mlp = experts.emplace_back();
    mlp.gate = take_weight(at, c.weight, kExpertSize, kSize);
    mlp.up = take_weight(at, c.weight, kExpertSize, kSize);
    mlp.down = take_weight(at, c.weight, kSize, kExpertSize);
  }
  const ops::MlpWeights shared = experts.back();
  experts.pop_back();

  std::vector<char> x(static_cast<size_t>(c.rows * kSize) * size_of(c.activation), 0), y(x.size());
  std::vector<int32_t> ids(static_cast<size_t>(c.rows * kPicks));
  std::vector<float> weights(ids.size(), 0.25f);
  const Tensor in(x.data(), c.activation, {c.rows, kSize}), out(y.data(), c.activation, {c.rows, kSize});
  size_t next = 0;
  const Samples samples = sample([&] {
    for (int64_t r = 0; r < c.rows; ++r) {
      int32_t* picks = &ids[static_cast<size_t>(r * kPicks)];
      for (int64_t k = 0; k < kPicks; ++k) picks[k] = static_cast<int32_t>(next++ % experts.size());
      std::sort(picks, picks + kPicks);
    }
    ops::moe(exec, in, Tensor(ids.data(), DType::kI32, {c.rows, kPicks}),
             Tensor(weights.data(), DType::kF32, {c.rows, kPicks}), experts, shared, 1.0f, {}, out);
  });
  const int64_t used = std::min<int64_t>(c.rows * kPicks, static_cast<int64_t>(experts.size())) + 1;
  const double rate = static_cast<double>(used * bytes) / samples.median;
  const double flops = 2.0 * static_cast<double>(c.rows * (kPicks + 1) * 3 * kSize * kExpertSize);
  return {c.name,      samples.median * 1e3, samples.cv, flops * 1e-9 / samples.median,
          rate * 1e-9, rate / bandwidth};
}

void write_json(const char* path, const char* isa, int threads, double bandwidth,
                const std::vector<Measured>& all) {
  std::FILE* file = std::fopen(path, "w");
  if (file == nullptr) {
    std::fprintf(stderr, "cannot write %s\n", path);
    return;
  }
  std::fprintf(file, "{\n  \"isa\": \"%s\", \"threads\": %d, \"read_gb_per_s\": %.2f,\n  \"cases\": [\n", isa,
               threads, bandwidth * 1e-9);
  for (size_t i = 0; i < all.size(); ++i)
    std::fprintf(
        file,
        "    {\"case\": \"%s\", \"ms\": %.4f, \"cv\": %.4f, \"gflop_per_s\": %.1f, \"gb_per_s\": %.2f, "
        "\"share_of_read\": %.3f}%s\n",
        all[i].name.c_str(), all[i].ms, all[i].cv, all[i].gflops, all[i].gbytes, all[i].share,
        i + 1 < all.size() ? "," : "");
  std::fprintf(file, "  ]\n}\n");
  std::fclose(file);
}

int run(int argc, char** argv) {
  int threads = ThreadPool::default_size();
  const char* json = nullptr;
  CpuIsa isa = ops::detect_cpu_isa();
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string_view flag = argv[i], value = argv[i + 1];
    if (flag == "--threads") threads = std::max(1, std::atoi(argv[i + 1]));
    if (flag == "--json") json = argv[i + 1];
    if (flag != "--isa") continue;
    const auto named = ops::cpu_isa_named(value);
    if (!named || *named > isa) {
      std::fprintf(stderr, "--isa: %s is no instruction set of this machine\n", argv[i + 1]);
      return 2;
    }
    isa = *named;
  }
  ThreadPool pool(threads);
  Scratch scratch;
  Exec exec{pool, scratch, isa};
  // Small odd numbers in every type: no zeros, no subnormals, nothing a machine could take a short cut on.
  std::vector<char> memory(static_cast<size_t>(kPoolBytes), 0x31);
  const double bandwidth = read_bandwidth(pool, memory);
  std::printf("%s, %d threads, read bandwidth %.1f GB/s\n\n", ops::name_of(isa), threads, bandwidth * 1e-9);
  std::printf("%-18s %10s %6s %10s %8s %8s\n", "case", "ms", "cv", "GFLOP/s", "GB/s", "of read");
  std::vector<Measured> all;
  const auto report = [&](const Measured& m) {
    std::printf("%-18s %10.3f %5.1f%% %10.1f %8.2f %7.0f%%\n", m.name.c_str(), m.ms, m.cv * 100, m.gflops,
                m.gbytes, m.share * 100);
    std::fflush(stdout);
    all.push_back(m);
  };
  for (const Case& c : kCases) report(run_case(exec, c, memory, bandwidth));
  for (const Case& c : kExpertCases) report(run_experts(exec, c, memory, bandwidth));
  if (json != nullptr) write_json(json, ops::name_of(isa), threads, bandwidth, all);
  return 0;
}

}  // namespace
}  // namespace sparrow

int main(int argc, char** argv) {
  return sparrow::run(argc, argv);
}
