// SPDX-License-Identifier: Apache-2.0
// Speed of ops::linear on this machine: time, GFLOP/s, bytes of weights per second, and what share of the
// machine's own read bandwidth (measured first, with the same threads) that is.
//
//   gemm_bench [--threads N] [--isa scalar|avx2|avx512|amx] [--json FILE]
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
  DType weight, activation;
};

constexpr Case kCases[] = {
    {"bf16 M=1", 1, DType::kBF16, DType::kBF16},    {"bf16 M=2", 2, DType::kBF16, DType::kBF16},
    {"bf16 M=4", 4, DType::kBF16, DType::kBF16},    {"bf16 M=16", 16, DType::kBF16, DType::kBF16},
    {"bf16 M=64", 64, DType::kBF16, DType::kBF16},  {"bf16 M=512", 512, DType::kBF16, DType::kBF16},
    {"mxfp8 M=1", 1, DType::kF8E4M3, DType::kBF16}, {"mxfp8 M=512", 512, DType::kF8E4M3, DType::kBF16},
    {"f32 M=1", 1, DType::kF32, DType::kF32},       {"f32 M=64", 64, DType::kF32, DType::kF32},
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
    pool.run([&](int worker) {
      const char* from = memory.data() + worker * streams * share;
      uint64_t sum[8] = {};
      for (int64_t i = 0; i < share; i += 64)
        for (int64_t s = 0; s < streams; ++s) {
          uint64_t line[8];
          std::memcpy(line, from + s * share + i, 64);
          for (int j = 0; j < 8; ++j) sum[j] += line[j];
        }
      for (int j = 0; j < 8; ++j) sums[static_cast<size_t>(worker) * 8] += sum[j];
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

Measured run_case(Exec& exec, const Case& c, std::vector<char>& memory, double bandwidth) {
  const int64_t values_bytes = kSize * kSize * static_cast<int64_t>(size_of(c.weight));
  const int64_t scales_bytes = c.weight == DType::kF8E4M3 ? kSize * kSize / 32 : 0;
  const int64_t bytes = values_bytes + scales_bytes;
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
      ops::Weight weight{.values = Tensor(at, c.weight, {kSize, kSize}), .scales = {}};
      if (scales_bytes > 0) weight.scales = Tensor(at + values_bytes, DType::kU8, {kSize, kSize / 32});
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
    if (flag == "--isa") isa = ops::cpu_isa_named(value).value_or(isa);
  }
  ThreadPool pool(threads);
  Scratch scratch;
  Exec exec{pool, scratch, isa};
  // Small odd numbers in every type: no zeros, no subnormals, nothing a machine could take a short cut on.
  std::vector<char> memory(static_cast<size_t>(kPoolBytes), 0x31);
  const double bandwidth = read_bandwidth(pool, memory);
  std::printf("%s, %d threads, read bandwidth %.1f GB/s\n\n", ops::name_of(isa), threads, bandwidth * 1e-9);
  std::printf("%-14s %10s %6s %10s %8s %8s\n", "case", "ms", "cv", "GFLOP/s", "GB/s", "of read");
  std::vector<Measured> all;
  for (const Case& c : kCases) {
    const Measured m = run_case(exec, c, memory, bandwidth);
    std::printf("%-14s %10.3f %5.1f%% %10.1f %8.2f %7.0f%%\n", m.name.c_str(), m.ms, m.cv * 100, m.gflops,
                m.gbytes, m.share * 100);
    std::fflush(stdout);
    all.push_back(m);
  }
  if (json != nullptr) write_json(json, ops::name_of(isa), threads, bandwidth, all);
  return 0;
}

}  // namespace
}  // namespace sparrow

int main(int argc, char** argv) {
  return sparrow::run(argc, argv);
}
