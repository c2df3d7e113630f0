// SPDX-License-Identifier: Apache-2.0
// Times the experts of one layer of a TP8 rank (128 experts of 384 channels, a shared one, hidden 6144, top
// 4, uniform random routing), a dense MLP of it, and its linear layers of few rows: medians of graph replays,
// whole and in parts. Prints bytes, flops and the floor (the weights of the experts that were hit, inputs and
// results once at 4,459 GB/s, or the arithmetic at 809 TFLOP/s); the peer is PyTorch's grouped product,
// without the shared expert, or 0.
//   moe_bench [--json] [--only SUBSTRING] [--once]
#include <cuda_bf16.h>

#include <numeric>
#include <random>

#include "bench.cuh"
#include "ops/cuda/linear_small.h"
#include "ops/cuda/moe/families.h"

namespace {

using namespace bench;
using namespace sparrow::ops::cuda;

constexpr MoeShape kRank{6144, 384, 128, 4}, kMlp{6144, 1536, 0, 0};

template <typename T>
T* allocate(int64_t count) {
  T* data = nullptr;
  CHECK(cudaMalloc(&data, count * sizeof(T)));
  return data;
}

struct Work {
  double bytes = 0, flops = 0;
  double floor_us() const { return std::max(bytes / kReadBytesPerUs, flops / kFlopsPerUs); }
};

void print(const Options& options, const std::string& name, const Timing& t, const Work& work,
           double peer_us) {
  if (name.find(options.only) == std::string::npos) return;
  print_line(options, name, t, work.floor_us(), peer_us);
  if (!options.json)
    std::printf("%44s %.0f GB/s, %.0f TFLOP/s\n", "", work.bytes / t.us / 1e3, work.flops / t.us / 1e6);
}

struct Layer {
  MoeShape shape;
  int slots;  // sets of weights, so that none stays in the L2
  __nv_bfloat16 *gate_up, *down;

  Layer(const MoeShape& s, int num_slots) : shape(s), slots(num_slots) {
    const int64_t count = int64_t{s.num_experts + 1} * s.inter * s.hidden * slots;
    gate_up = allocate<__nv_bfloat16>(2 * count), down = allocate<__nv_bfloat16>(count);
    fill_random<<<4096, 256>>>(reinterpret_cast<uint32_t*>(gate_up), count, 1, false);
    fill_random<<<4096, 256>>>(reinterpret_cast<uint32_t*>(down), count / 2, 2, false);
  }
  ~Layer() {
    CHECK(cudaFree(gate_up));
    CHECK(cudaFree(down));
  }
};

// Uniform routing of `rows` rows, one after the other for each slot.
std::vector<int32_t> random_routing(const MoeShape& shape, int64_t rows) {
  std::mt19937 rng(7);
  std::vector<int32_t> ids, order(shape.num_experts);
  std::iota(order.begin(), order.end(), 0);
  for (int64_t r = 0; r < rows; ++r) {
    for (int k = 0; k < shape.top_k; ++k) std::swap(order[k], order[k + rng() % (order.size() - k)]);
    std::sort(order.begin(), order.begin() + shape.top_k);
    ids.insert(ids.end(), order.begin(), order.begin() + shape.top_k);
  }
  return ids;
}

double experts_hit(const MoeShape& shape, const std::vector<int32_t>& ids, int rows, int slots) {
  double hit = 0;
  for (int s = 0; s < slots; ++s) {
    std::vector<bool> seen(shape.num_experts);
    for (int i = 0; i < rows * shape.top_k; ++i) seen[ids[size_t(s) * rows * shape.top_k + i]] = true;
    hit += std::count(seen.begin(), seen.end(), true);
  }
  return hit / slots + 1;
}

using Family = void (*)(const MoeShape&, const MoeArgs&, cudaStream_t, unsigned);

void run_moe(const Layer& layer, const std::string& name, int rows, Family family, double peer_us,
             const Options& options, cudaStream_t stream) {
  const MoeShape& s = layer.shape;
  // 129 experts are 30 times the L2: different routings over the same weights are cold enough.
  const int routings = s.num_experts == 0 ? layer.slots : rows <= 256 ? 8 : 1;
  const std::vector<int32_t> ids = random_routing(s, int64_t{rows} * routings);
  int32_t* ids_device = s.num_experts == 0 ? nullptr : upload(ids);
  float* weights = upload(std::vector<float>(size_t(rows) * std::max(s.top_k, 1), 0.25f));
  auto *x = allocate<__nv_bfloat16>(int64_t{rows} * s.hidden),
       *out = allocate<__nv_bfloat16>(int64_t{rows} * s.hidden);
  fill_random<<<1024, 256>>>(reinterpret_cast<uint32_t*>(x), int64_t{rows} * s.hidden / 2, 3, false);
  auto* workspace =
      allocate<uint8_t>(std::max(moe_many_workspace_bytes(s, rows), moe_few_workspace_bytes(s, rows)));
  CHECK(cudaMemset(workspace, 0, kMoeBarrierBytes));
  CHECK(cudaDeviceSynchronize());
  MoeArgs args{.x = x, .weights = weights, .alpha = 1.702f, .limit = 7, .beta = 1, .scaling = 2};
  args.out = out, args.workspace = workspace, args.rows = rows;
  const auto time = [&](unsigned parts) {
    return time_launches(stream, routings, options.once, [&](int i) {
      const int64_t weights_at = s.num_experts == 0 ? int64_t{i} * s.inter * s.hidden : 0;
      args.gate_up = bf16_matrix(layer.gate_up + 2 * weights_at, (s.num_experts + 1) * 2 * s.inter, s.hidden);
      args.down = bf16_matrix(layer.down + weights_at, (s.num_experts + 1) * s.hidden, s.inter);
      args.ids = ids_device + size_t(i) * rows * s.top_k;
      family(s, args, stream, parts);
      return cudaGetLastError();
    });
  };
  const double hit = s.num_experts == 0 ? 1 : experts_hit(s, ids, rows, routings);
  const double places = double(rows) * (s.top_k + 1), matrix = double(s.hidden) * s.inter;
  const Work gate_up{hit * matrix * 4 + double(rows) * s.hidden * 2 + places * s.inter * 2,
                     places * matrix * 4};
  const Work down{hit * matrix * 2 + places * s.inter * 2 + double(rows) * s.hidden * 2, places * matrix * 2};
  print(options, name + "/all", time(kMoeAll), {gate_up.bytes + down.bytes, gate_up.flops + down.flops},
        peer_us);
  print(options, name + "/gate_up", time(kMoeGateUp), gate_up, 0);
  if (family == moe_many) {
    // The experts' rows go through memory between the second product and the sum.
    const double expert_rows = s.num_experts == 0 ? 0 : places * s.hidden * 2;
    print(options, name + "/sorted_products", time(kMoeRoute | kMoeGateUp | kMoeDown),
          {gate_up.bytes + down.bytes + expert_rows, gate_up.flops + down.flops}, peer_us);
    print(options, name + "/route", time(kMoeRoute), {places * 8, 0}, 0);
    print(options, name + "/down", time(kMoeDown), {down.bytes + expert_rows, down.flops}, 0);
    if (s.num_experts > 0)
      print(options, name + "/sum", time(kMoeCombine), {expert_rows + double(rows) * s.hidden * 2, 0}, 0);
  } else {
    print(options, name + "/down", time(kMoeDown), down, 0);
  }
  for (void* data : {static_cast<void*>(x), static_cast<void*>(out), static_cast<void*>(workspace),
                     static_cast<void*>(ids_device), static_cast<void*>(weights)})
    CHECK(cudaFree(data));
}

void run_linear(int out_features, int in_features, int rows, const Options& options, cudaStream_t stream) {
  const std::string name = "linear/" + std::to_string(out_features) + "x" + std::to_string(in_features) +
                           "/B" + std::to_string(rows);
  if (name.find(options.only) == std::string::npos) return;
  const int64_t count = int64_t{out_features} * in_features;
  const auto slots = static_cast<int>(std::clamp<int64_t>(kRotateBytes / (count * 2) + 1, 2, 40));
  auto *w = allocate<__nv_bfloat16>(count * slots), *x = allocate<__nv_bfloat16>(int64_t{rows} * in_features),
       *out = allocate<__nv_bfloat16>(int64_t{rows} * out_features);
  fill_random<<<4096, 256>>>(reinterpret_cast<uint32_t*>(w), count * slots / 2, 1, false);
  fill_random<<<64, 256>>>(reinterpret_cast<uint32_t*>(x), int64_t{rows} * in_features / 2, 2, false);
  CHECK(cudaDeviceSynchronize());
  const Timing t = time_launches(stream, slots, options.once, [&](int i) {
    linear_small(bf16_matrix(w + i * count, out_features, in_features), x, out, rows, stream);
    return cudaGetLastError();
  });
  print(options, name, t, {count * 2.0 + 2.0 * rows * (in_features + out_features), 2.0 * count * rows}, 0);
  for (void* data : {w, x, out}) CHECK(cudaFree(data));
}

}  // namespace

int main(int argc, char** argv) {
  const Options options = parse_options(argc, argv);
  cudaStream_t stream;
  CHECK(cudaStreamCreate(&stream));
  const auto wanted = [&](const std::string& name) {
    return name.find(options.only) != std::string::npos || options.only.find(name) != std::string::npos;
  };
  for (const auto& [out_features, in_features] :
       std::vector<std::pair<int, int>>{{1408, 6144}, {1280, 6144}, {6144, 1024}, {25008, 6144}})
    for (const int rows : {1, 8, 16, 32, 64}) run_linear(out_features, in_features, rows, options, stream);
  {
    const Layer layer(kMlp, 5);
    for (const int rows : {1, 8, 16, 32, 64, 128, 256, 8192}) {
      const std::string name = "mlp/B" + std::to_string(rows);
      if (wanted(name))
        run_moe(layer, name, rows, rows <= kLinearSmallRows ? mlp_few : moe_many, 0, options, stream);
    }
  }
  const Layer layer(kRank, 1);
  struct Case {
    int rows;
    double peer_us;
  };
  for (const Case c :
       {Case{1, 83.7}, Case{2, 0}, Case{4, 0}, Case{8, 0}, Case{16, 348}, Case{32, 0}, Case{64, 584}}) {
    const std::string name = "moe/few/B" + std::to_string(c.rows);
    if (wanted(name)) run_moe(layer, name, c.rows, moe_few, c.peer_us, options, stream);
  }
  for (const Case c : {Case{32, 0}, Case{64, 584}, Case{128, 0}, Case{256, 0}, Case{1024, 654}, Case{2048, 0},
                       Case{4096, 0}, Case{8192, 1119}}) {
    const std::string name = "moe/many/B" + std::to_string(c.rows);
    if (wanted(name)) run_moe(layer, name, c.rows, moe_many, c.peer_us, options, stream);
  }
  return 0;
}
