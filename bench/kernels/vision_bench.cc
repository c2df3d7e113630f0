// SPDX-License-Identifier: Apache-2.0
// Times the vision tower at M3's sizes with random weights, whole and by its kernels, for one image of 672 x
// 672 (2,304 patches) and for 32 of them together. The floor is the arithmetic at 809 TFLOP/s, the peer of a
// product is cuBLASLt's without what ours does at its end. `rate` is an 8192^3 product's, sustained in the
// same run.
//   vision_bench [--json] [--only SUBSTRING]
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "base/strf.h"
#include "device/cuda/check.h"
#include "model/cuda/vision/cuda_vision_tower.h"
#include "ops/cuda/gemm.h"
#include "ops/cuda/vision/attend.h"
#include "ops/cuda/vision/product.h"
#include "ops/cuda/vision/rows.h"

namespace {

using namespace sparrow;
using Bf16 = __nv_bfloat16;
using ops::cuda::TowerEnd;

constexpr double kFlopsPerUs = 809e6;  // measured on an H200, in a burst
constexpr int kImageRows = 2304, kSide = 48;
constexpr int kMatrices = 4;  // of a product, in turn: together more than the L2 holds

struct Options {
  bool json = false;
  std::string only;
};

ModelConfig m3_tower() {
  ModelConfig config;
  config.hidden_size = 6144;
  config.vision = VisionConfig{.hidden_size = 1280,
                               .num_heads = 16,
                               .num_layers = 32,
                               .intermediate_size = 5120,
                               .projector_hidden_size = 6144};
  return config;
}

// Uniform numbers with which outputs of 1,280 inputs of order 1 are of order 1.
std::vector<BFloat16> random_pool(size_t count) {
  std::vector<BFloat16> pool(count);
  uint32_t state = 1;
  for (BFloat16& x : pool) {
    state = state * 1664525u + 1013904223u;
    x = to_bf16((static_cast<float>(state >> 8) * 0x1p-24f - 0.5f) * 0.097f);
  }
  return pool;
}

// Tensors of all shapes that lie in one pool, each at a place of its own.
class PoolWeights {
 public:
  explicit PoolWeights(const ModelConfig& config)
      : pool_(random_pool(size_t{160} << 20)),
        zeros_(size_t{1} << 20),
        ones_(size_t{1} << 20, to_bf16(1.0f)) {
    const VisionConfig& v = *config.vision;
    const int64_t hidden = v.hidden_size, inner = v.intermediate_size, projected = config.hidden_size;
    const int64_t numbers = patch_numbers(v), wide = v.projector_hidden_size;
    weights_.patch = {matrix(hidden, numbers)};
    weights_.pre_norm = norm(hidden);
    for (int i = 0; i < v.num_layers; ++i)
      weights_.layers.push_back({.norm1 = norm(hidden),
                                 .norm2 = norm(hidden),
                                 .q = biased(hidden, hidden),
                                 .k = biased(hidden, hidden),
                                 .v = biased(hidden, hidden),
                                 .o = biased(hidden, hidden),
                                 .up = biased(inner, hidden),
                                 .down = biased(hidden, inner)});
    weights_.projector_up = biased(wide, hidden);
    weights_.projector_down = biased(projected, wide);
    weights_.merger_up = biased(wide, projected * merged_patches(v));
    weights_.merger_down = biased(projected, wide);
  }
  const VisionWeights& get() const { return weights_; }

 private:
  Tensor matrix(int64_t rows, int64_t cols) {
    const size_t count = static_cast<size_t>(rows * cols);
    at_ = (at_ + 7919 * 64) % (pool_.size() - count);
    return {pool_.data() + at_, DType::kBF16, {rows, cols}};
  }
  BiasedWeight biased(int64_t rows, int64_t cols) {
    return {{matrix(rows, cols)}, Tensor(zeros_.data(), DType::kF32, {rows})};
  }
  NormWeights norm(int64_t hidden) {
    return {Tensor(ones_.data(), DType::kBF16, {hidden}), Tensor(zeros_.data(), DType::kF32, {hidden})};
  }

  std::vector<BFloat16> pool_;
  std::vector<float> zeros_;
  std::vector<BFloat16> ones_;
  size_t at_ = 0;
  VisionWeights weights_;
};

struct Timing {
  double us, spread;
};

// Median of samples of so many launches each, after as long as clocks need to settle.
Timing time(const Stream& stream, int launches, const std::function<void(int)>& launch) {
  constexpr int kSamples = 21;
  constexpr double kWarmMs = 60;
  Event begin(Event::Timing::kOn), end(Event::Timing::kOn);
  std::vector<double> us;
  for (double warm_ms = 0; us.size() < kSamples;) {
    begin.record(stream.get());
    for (int i = 0; i < launches; ++i) launch(i);
    end.record(stream.get());
    end.wait();
    const double ms = Event::milliseconds_between(begin, end);
    if (warm_ms < kWarmMs)
      warm_ms += ms;
    else
      us.push_back(ms * 1e3 / launches);
  }
  std::sort(us.begin(), us.end());
  const double median = us[us.size() / 2];
  return {median, (us[us.size() * 3 / 4] - us[us.size() / 4]) / median};
}

void print(const Options& options, const std::string& name, const Timing& timing, double flops,
           double peer_us) {
  const double floor_us = flops / kFlopsPerUs;
  if (options.json)
    std::printf(
        "{\"case\":\"%s\",\"us\":%.2f,\"spread\":%.4f,\"floor_us\":%.2f,\"peer_us\":%.1f,\"tflops\":%.0f}\n",
        name.c_str(), timing.us, timing.spread, floor_us, peer_us, flops / timing.us / 1e6);
  else
    std::printf("%-36s %10.2f us +-%4.1f%%  floor %10.2f (%3.0f%%)  peer %10.1f  %4.0f TFLOP/s\n",
                name.c_str(), timing.us, 50 * timing.spread, floor_us, 100 * floor_us / timing.us, peer_us,
                flops / timing.us / 1e6);
  std::fflush(stdout);
}

class Bench {
 public:
  explicit Bench(const Options& options) : options_(options), config_(m3_tower()), pool_(config_) {}

  void run() {
    const double rate = product_rate();
    for (const int images : {1, 32}) {
      kernels(images);
      tower(images, rate);
    }
  }

 private:
  bool wants(const std::string& name) const { return name.find(options_.only) != std::string::npos; }

  DeviceBuffer random(int64_t count) const {
    const std::vector<BFloat16> numbers = random_pool(static_cast<size_t>(std::min<int64_t>(count, 1 << 24)));
    DeviceBuffer buffer = DeviceBuffer::allocate(static_cast<size_t>(count) * 2).value();
    for (int64_t at = 0; at < count; at += static_cast<int64_t>(numbers.size()))
      SPARROW_CUDA(cudaMemcpy(buffer.as<Bf16>() + at, numbers.data(),
                              static_cast<size_t>(std::min<int64_t>(count - at, numbers.size())) * 2,
                              cudaMemcpyHostToDevice));
    return buffer;
  }

  Timing cublas(const std::vector<ops::cuda::DeviceMatrix>& matrices, int rows, const Bf16* x, Bf16* out,
                int launches) {
    const auto gemm = ops::cuda::Gemm::create().value();
    if (!workspace_.data())
      workspace_ = DeviceBuffer::allocate(static_cast<size_t>(ops::cuda::kProductWorkspaceBytes)).value();
    gemm->set_workspace(workspace_.data());
    gemm->tune(matrices, rows, x, out, stream_.get());
    return time(stream_, launches, [&](int i) {
      gemm->run(matrices[static_cast<size_t>(i) % matrices.size()], rows, x, out, stream_.get());
    });
  }

  // TFLOP/s.
  double product_rate() {
    constexpr int kSize = 8192;
    const DeviceBuffer w = random(int64_t{kSize} * kSize), x = random(int64_t{kSize} * kSize),
                       out = random(int64_t{kSize} * kSize);
    const Timing timing =
        cublas({ops::cuda::bf16_matrix(w.data(), kSize, kSize)}, kSize, x.as<Bf16>(), out.as<Bf16>(), 20);
    const double flops = 2.0 * kSize * kSize * kSize;
    print(options_, "8192^3", timing, flops, 0);
    return flops / timing.us / 1e6;
  }

  void product(const char* name, int rows, int n, int k, TowerEnd end) {
    const std::string label = strf("product {} {} x {} x {}", name, rows, n, k);
    if (!wants(label)) return;
    const DeviceBuffer w = random(int64_t{kMatrices} * n * k), x = random(int64_t{rows} * k),
                       out = random(int64_t{rows} * n);
    const DeviceBuffer turns = random(int64_t{rows} * 160);
    DeviceBuffer bias = DeviceBuffer::allocate(static_cast<size_t>(n) * 4).value();
    SPARROW_CUDA(cudaMemset(bias.data(), 0, bias.bytes()));
    std::vector<ops::cuda::DeviceMatrix> matrices;
    for (int i = 0; i < kMatrices; ++i)
      matrices.push_back(ops::cuda::bf16_matrix(w.as<Bf16>() + int64_t{i} * n * k, n, k));
    const int launches = rows > 10000 ? kMatrices : 8 * kMatrices;
    const Timing ours = time(stream_, launches, [&](int i) {
      ops::cuda::tower_product(
          {.x = x.as<Bf16>(),
           .w = static_cast<const Bf16*>(matrices[static_cast<size_t>(i) % kMatrices].values),
           .bias = bias.as<float>(),
           .out = out.as<Bf16>(),
           .rows = rows,
           .n = n,
           .k = k,
           .end = end,
           .residual = out.as<Bf16>(),
           .rotary = turns.as<float2>()},
          stream_.get());
    });
    const Timing peer = cublas(matrices, rows, x.as<Bf16>(), out.as<Bf16>(), launches);
    print(options_, label, ours, 2.0 * rows * n * k, peer.us);
  }

  void attention(int images) {
    const std::string label = strf("attention {} x {}", images, kImageRows);
    if (!wants(label)) return;
    const int rows = images * kImageRows, heads = 16;
    std::vector<ops::cuda::SegmentRows> segments;
    for (int i = 0; i < images; ++i) segments.push_back({i * kImageRows, (i + 1) * kImageRows});
    const auto items = ops::cuda::segment_items(segments, heads, 132);
    const size_t bytes = items.size() * sizeof(items[0]);
    const DeviceBuffer tiles = random(int64_t{rows} * 3840), out = random(int64_t{rows} * 1280);
    const DeviceBuffer list = DeviceBuffer::allocate(bytes).value();
    SPARROW_CUDA(cudaMemcpy(list.data(), items.data(), bytes, cudaMemcpyHostToDevice));
    const Timing timing = time(stream_, images > 1 ? 4 : 32, [&](int) {
      ops::cuda::attend_segments({.heads = tiles.as<Bf16>(),
                                  .items = list.as<ops::cuda::SegmentItem>(),
                                  .out = out.as<Bf16>(),
                                  .rows = rows,
                                  .num_items = static_cast<int>(items.size()),
                                  .num_heads = heads,
                                  .scale = 10.0f},
                                 stream_.get());
    });
    print(options_, label, timing, 4.0 * rows * kImageRows * 1280, 0);
  }

  void norm(int images) {
    const std::string label = strf("norm {} x 1280", images * kImageRows);
    if (!wants(label)) return;
    const int rows = images * kImageRows;
    const DeviceBuffer x = random(int64_t{rows} * 1280), out = random(int64_t{rows} * 1280),
                       w = random(2 * 1280);
    const Timing timing = time(stream_, 32, [&](int) {
      ops::cuda::layer_norm({x.as<Bf16>(), w.as<float>(), w.as<float>(), out.as<Bf16>(), rows, 1280, 1e-5f},
                            stream_.get());
    });
    print(options_, label, timing, 0, 0);
  }

  void kernels(int images) {
    const int rows = images * kImageRows, tokens = rows / 4;
    product("qkv", rows, 3840, 1280, TowerEnd::kHeads);
    attention(images);
    product("output", rows, 1280, 1280, TowerEnd::kResidual);
    product("up", rows, 5120, 1280, TowerEnd::kGelu);
    product("down", rows, 1280, 5120, TowerEnd::kResidual);
    norm(images);
    if (images > 1) return;
    product("projector up", rows, 6144, 1280, TowerEnd::kGelu);
    product("projector down", rows, 6144, 6144, TowerEnd::kBias);
    product("merger up", tokens, 6144, 24576, TowerEnd::kGelu);
    product("merger down", tokens, 6144, 6144, TowerEnd::kBias);
    product("patches", rows, 1280, 3528, TowerEnd::kBias);
  }

  static double tower_flops() {
    const double rows = kImageRows, layers = 32;
    const double linear = 2 * rows * (4.0 * 1280 * 1280 + 2.0 * 1280 * 5120),
                 attention = 4 * rows * rows * 1280;
    const double projector = 2 * rows * 6144 * (1280 + 6144.0),
                 merger = 2 * rows / 4 * 6144 * (24576 + 6144.0);
    return layers * (linear + attention) + projector + merger + 2 * rows * 1176 * 1280;
  }

  void tower(int images, double rate) {
    const std::string label = strf("tower, {} image{}", images, images > 1 ? "s" : "");
    if (!wants(label)) return;
    const auto tower =
        CudaVisionTower::create(config_, pool_.get(), {.max_rows = int64_t{images} * kImageRows}).value();
    std::vector<float> pixels(size_t{kImageRows} * 1176);
    std::mt19937 rng(1);
    std::normal_distribution<float> normal;
    for (float& x : pixels) x = normal(rng);
    const int tokens = kImageRows / 4;
    std::vector<int32_t> rows(static_cast<size_t>(images) * tokens);
    for (size_t i = 0; i < rows.size(); ++i) rows[i] = static_cast<int32_t>(i);
    std::vector<TowerSegment> segments;
    for (int i = 0; i < images; ++i)
      segments.push_back(
          {{1, kSide, kSide}, pixels, std::span(rows).subspan(static_cast<size_t>(i) * tokens, tokens)});
    const DeviceBuffer features = DeviceBuffer::allocate(rows.size() * 6144 * 2).value();
    const auto encode = [&](int) { tower->encode(segments, features.as<Bf16>(), stream_.get()); };
    // One after the other: the next one's patches are copied while this one is computed.
    const Timing timing = time(stream_, images > 1 ? 2 : 10, encode);
    const double flops = tower_flops() * images;
    print(options_, label, timing, flops, 0);
    std::vector<double> waited;
    for (int i = 0; i < 11; ++i) {
      const auto start = std::chrono::steady_clock::now();
      encode(0);
      stream_.synchronize();
      waited.push_back(
          std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start).count());
    }
    std::sort(waited.begin(), waited.end());
    print(options_, label + ", from the host", {waited[5], (waited[8] - waited[2]) / waited[5]}, flops, 0);
    if (!options_.json)
      std::printf("%s: %.0f%% of the rate\n", label.c_str(), 100 * flops / timing.us / 1e6 / rate);
    std::vector<Bf16> host(8);
    SPARROW_CUDA(cudaMemcpy(host.data(), features.data(), 16, cudaMemcpyDeviceToHost));
    for (const Bf16 x : host)
      if (!std::isfinite(__bfloat162float(x))) std::printf("%s: no finite numbers\n", label.c_str());
  }

  const Options options_;
  const ModelConfig config_;
  const PoolWeights pool_;
  const Stream stream_;
  DeviceBuffer workspace_;
};

}  // namespace

int main(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "--json") == 0) options.json = true;
    if (std::strcmp(argv[i], "--only") == 0 && i + 1 < argc) options.only = argv[++i];
  }
  Bench(options).run();
}
