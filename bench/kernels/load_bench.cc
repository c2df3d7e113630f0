// SPDX-License-Identifier: Apache-2.0
// How fast weights get from the page cache to the GPU, against what the machine can copy at all; and how long
// random weights for a whole rank take.
//   load_bench DIR [bf16|mxfp8 [ranks]]    ranks: rank 3 of 8 alone
// DIR gets a checkpoint (preset m3-layer, 20 or 13 GB) if it holds none.
#include <cuda_runtime_api.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "base/files/mapped_file.h"
#include "base/threads/thread_pool.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/random/synthetic.h"
#include "device/cuda/check.h"
#include "device/cuda/device_info.h"
#include "device/cuda/memory.h"
#include "device/cuda/stream.h"
#include "model/cuda/device_weights.h"

namespace sparrow {
namespace {

constexpr int kRuns = 3;
constexpr int kCopyThreads = 8;
constexpr size_t kCopyBytes = size_t{4} << 20;

double seconds_of(const auto& body) {
  const auto begin = std::chrono::steady_clock::now();
  body();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

// GB/s, the median of kRuns.
double rate_of(double bytes, const auto& body) {
  std::vector<double> rates;
  for (int i = 0; i < kRuns; ++i) rates.push_back(bytes / 1e9 / seconds_of(body));
  std::sort(rates.begin(), rates.end());
  return rates[kRuns / 2];
}

// What the link to the GPU carries from page-locked memory.
double pinned_rate() {
  constexpr size_t kBytes = size_t{256} << 20;
  constexpr int kCopies = 16;
  const PinnedBuffer host = PinnedBuffer::allocate(kBytes).value();
  const DeviceBuffer device = DeviceBuffer::allocate(kBytes).value();
  const Stream stream;
  return rate_of(double{kCopies} * kBytes, [&] {
    for (int i = 0; i < kCopies; ++i)
      SPARROW_CUDA(cudaMemcpyAsync(device.data(), host.data(), kBytes, cudaMemcpyHostToDevice, stream.get()));
    stream.synchronize();
  });
}

// What threads copy from mapped files into page-locked buffers.
double page_cache_rate(const std::filesystem::path& dir) {
  std::vector<MappedFile> files;
  std::vector<std::span<const std::byte>> chunks;
  for (const auto& item : std::filesystem::directory_iterator(dir)) {
    if (item.path().extension() != ".safetensors") continue;
    files.push_back(MappedFile::open(item.path()).value());
    const auto bytes = files.back().bytes();
    for (size_t at = 0; at + kCopyBytes <= bytes.size(); at += kCopyBytes)
      chunks.push_back(bytes.subspan(at, kCopyBytes));
  }
  std::vector<PinnedBuffer> buffers;
  for (int i = 0; i < kCopyThreads; ++i) buffers.push_back(PinnedBuffer::allocate(kCopyBytes).value());
  ThreadPool pool(kCopyThreads);
  return rate_of(static_cast<double>(chunks.size() * kCopyBytes), [&] {
    pool.parallel_for(static_cast<int64_t>(chunks.size()), [&](int64_t i, int worker) {
      std::memcpy(buffers[static_cast<size_t>(worker)].data(), chunks[static_cast<size_t>(i)].data(),
                  kCopyBytes);
    });
  });
}

// Files that were written have small pages in the cache, those that were read have large ones where the file
// system can (ext4 and XFS of newer kernels), which are mapped several times faster: column cuts notice. So
// the cache is filled as a server's is.
void read_from_disk(const std::filesystem::path& dir) {
  std::vector<char> window(size_t{1} << 20);
  for (const auto& item : std::filesystem::directory_iterator(dir)) {
    if (!item.is_regular_file()) continue;
    const int fd = ::open(item.path().c_str(), O_RDONLY);
    SPARROW_CHECK(fd >= 0 && ::fsync(fd) == 0);
    ::posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    while (::read(fd, window.data(), window.size()) > 0) {
    }
    ::close(fd);
  }
}

// Every run maps the files anew, as a program that starts does. The median, and the bytes that were read.
double load_seconds(const std::filesystem::path& dir, const Grid& grid, const DeviceLoadOptions& options,
                    uint64_t& bytes) {
  const auto progress = [&](uint64_t, uint64_t total) { bytes = total; };
  std::vector<double> times;
  for (int i = 0; i < kRuns; ++i) {
    const Checkpoint model = Checkpoint::open(dir, {.prefault = false, .check_scales = false}).value();
    std::optional<Result<DeviceWeights>> weights;  // freeing them is not timed
    times.push_back(seconds_of([&] {
      weights.emplace(load_device_weights(model.config(), grid, model.weights(), progress, options));
    }));
    SPARROW_CHECK(weights->ok());
  }
  std::sort(times.begin(), times.end());
  return times[kRuns / 2];
}

// A rank of the released model has fifty times the bytes of one of m3-layer, so what a load costs before its
// first byte is told apart: it is what a model of next to no bytes takes.
void bench_load(const std::filesystem::path& dir, const Grid& grid, const DeviceLoadOptions& options,
                double ceiling) {
  uint64_t bytes = 0, few = 0;
  const double seconds = load_seconds(dir, grid, options, bytes);
  const double setup = load_seconds(dir / "tiny", {}, options, few);
  const auto rate = [&](double time) { return static_cast<double>(bytes) / 1e9 / time; };
  std::printf(
      "load rank %d of %d, %2d threads, %d x %5.1f MiB: %6.2f GB, %6.2f GB/s (%3.0f%% of what can be "
      "copied); "
      "without %4.1f ms of setup %6.2f GB/s (%3.0f%%)\n",
      grid.rank, grid.world(), options.threads, options.buffers_per_thread,
      static_cast<double>(options.buffer_bytes) / (1 << 20), static_cast<double>(bytes) / 1e9, rate(seconds),
      100 * rate(seconds) / ceiling, 1e3 * setup, rate(seconds - setup),
      100 * rate(seconds - setup) / ceiling);
  std::fflush(stdout);
}

void bench_dummy() {
  // One layer's shapes are the preset's; 57 more make a rank of the released model.
  const SyntheticConfig texts = synthetic_config("m3-layer", MatrixFormat::kBF16).value();
  ModelConfig config = parse_config(texts.config_json, texts.generation_config_json).value();
  config.num_layers = 60;
  config.layer_is_moe.resize(60, 1);
  config.layer_is_sparse.resize(60, 1);
  double gib = 0;
  const double seconds = seconds_of([&] {
    const auto weights = dummy_device_weights(config, {.tp = 8}, 1);
    if (!weights.ok()) {
      std::printf("%s\n", weights.error().message.c_str());
      return;
    }
    gib = static_cast<double>(weights->memory.bytes()) / (1 << 30);
  });
  std::printf("dummy weights: %.2f GiB in %.2f s\n", gib, seconds);
}

// The link limits one rank. A rank of eight maps all pages of the matrices that are cut by columns: where
// pages are small, as in /dev/shm, that limits it.
void bench_loads(const std::filesystem::path& dir, bool ranks_alone, double ceiling) {
  for (const int threads : {8, 12})
    for (const size_t mib : {4, 8, 16})
      if (!ranks_alone) bench_load(dir, {}, {.threads = threads, .buffer_bytes = mib << 20}, ceiling);
  if (!ranks_alone) bench_load(dir, {.tp = 2, .rank = 1}, {.threads = 12}, ceiling);
  const Grid eight{.tp = 8, .rank = 3};
  for (const int threads : {12, 16})
    for (const size_t mib : {1, 2, 4})
      bench_load(dir, eight, {.threads = threads, .buffer_bytes = mib << 20}, ceiling);
  std::printf("read from disk again in %.1f s\n", seconds_of([&] { read_from_disk(dir); }));
  for (const int threads : {12, 16}) bench_load(dir, eight, {.threads = threads}, ceiling);
}

int run(const std::filesystem::path& dir, DType dtype, bool ranks_alone) {
  const auto info = use_device(0);
  if (!info.ok()) return std::fprintf(stderr, "%s\n", info.error().message.c_str()), 1;
  if (!std::filesystem::exists(dir / "config.json")) {
    const Status made =
        write_synthetic_checkpoint({.preset = "m3-layer", .dir = dir, .format = format_of(dtype)});
    if (!made.ok()) return std::fprintf(stderr, "%s\n", made.error().message.c_str()), 1;
  }
  if (!std::filesystem::exists(dir / "tiny"))
    SPARROW_CHECK(write_synthetic_checkpoint({.dir = dir / "tiny", .format = format_of(dtype)}).ok());
  if (const auto model = Checkpoint::open(dir); !model.ok())
    return std::fprintf(stderr, "%s\n", model.error().message.c_str()), 1;

  const double pinned = pinned_rate(), page_cache = page_cache_rate(dir);
  std::printf("%s\npinned to device %.2f GB/s, page cache to pinned, %d threads %.2f GB/s\n",
              info->name.c_str(), pinned, kCopyThreads, page_cache);
  const double ceiling = std::min(pinned, page_cache);
  bench_loads(dir, ranks_alone, ceiling);
  if (!ranks_alone) bench_dummy();
  return 0;
}

}  // namespace
}  // namespace sparrow

int main(int argc, char** argv) {
  if (argc < 2) return std::fprintf(stderr, "usage: load_bench DIR [bf16|mxfp8 [ranks]]\n"), 2;
  const bool mxfp8 = argc > 2 && std::string_view(argv[2]) == "mxfp8";
  return sparrow::run(argv[1], mxfp8 ? sparrow::DType::kF8E4M3 : sparrow::DType::kBF16,
                      argc > 3 && std::string_view(argv[3]) == "ranks");
}
