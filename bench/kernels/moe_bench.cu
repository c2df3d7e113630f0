// SPDX-License-Identifier: Apache-2.0
// Times the experts of one layer of a TP8 rank (128 experts of 384 channels, a shared one, hidden 6144, top
// 4, uniform random routing), a dense MLP of it, and its linear layers of few rows: medians of graph replays,
// whole and in parts. Then wider experts, as fewer ranks hold them, and all of it in MXFP8 and MXFP4. Prints
// bytes, flops and the floor (the weights of the experts that were hit, inputs and results once at 4,459
// GB/s, or the arithmetic at 809 TFLOP/s). Peers: peers.json and grouped_peer.py.
//   moe_bench [--json] [--only SUBSTRING] [--once]
#include <cuda_bf16.h>

#include <numeric>
#include <optional>
#include <random>

#include "bench.cuh"
#include "ops/cuda/linear_small.h"
#include "ops/cuda/moe/families.h"
#include "ops/cuda/mx/quantise_rows.h"

namespace {

using namespace bench;
using namespace sparrow::ops::cuda;
using sparrow::is_mx;
using sparrow::MatrixFormat;

constexpr MoeShape kRank{6144, 384, 128, 4}, kMlp{6144, 1536, 0, 0};

constexpr MatrixFormat kFormats[] = {MatrixFormat::kBF16, MatrixFormat::kMxfp8, MatrixFormat::kMxfp4};

// Channels of an expert on ranks of TP8, TP4, TP2 and TP1.
constexpr int kWidths[] = {384, 768, 1536, 3072};

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

void print(const Options& options, const std::string& name, const Timing& t, const Work& work) {
  if (name.find(options.only) == std::string::npos) return;
  print_line(options, name, t, work.floor_us(), /*peer_us=*/0);
  if (!options.json)
    std::printf("%44s %.0f GB/s, %.0f TFLOP/s\n", "", work.bytes / t.us / 1e3, work.flops / t.us / 1e6);
}

// Random codes; scales that make numbers of order 2^-4 of them.
__global__ void fill_cells(uint32_t* data, int64_t words, uint32_t seed, int cell_words, int code_words,
                           uint32_t scale) {
  for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < words;
       i += int64_t{gridDim.x} * blockDim.x) {
    uint32_t x = static_cast<uint32_t>(i) * 2654435761u + seed;
    x ^= x >> 16, x *= 0x7feb352du, x ^= x >> 15, x *= 0x846ca68bu, x ^= x >> 16;
    data[i] = i % cell_words < code_words ? x : scale * 0x01010101u;
  }
}

int64_t matrix_bytes(MatrixFormat format, int64_t rows, int64_t columns) {
  return is_mx(format) ? cell_matrix_bytes(format, rows, columns) : rows * columns * 2;
}

// Random matrices of one shape, one behind the other.
struct Matrices {
  MatrixFormat format;
  int rows, columns;
  uint8_t* values;

  Matrices(MatrixFormat f, int64_t r, int c, int slots, uint32_t seed)
      : format(f), rows(static_cast<int>(r)), columns(c) {
    const int64_t words = matrix_bytes(f, r, c) * slots / 4;
    values = allocate<uint8_t>(words * 4);
    if (is_mx(f))
      fill_cells<<<4096, 256>>>(reinterpret_cast<uint32_t*>(values), words, seed, cell_bytes(f) / 4,
                                cell_code_bytes(f) / 4, cell_scale(f, 121));
    else
      fill_random<<<4096, 256>>>(reinterpret_cast<uint32_t*>(values), words, seed, false);
  }
  ~Matrices() { CHECK(cudaFree(values)); }
  Matrices(const Matrices&) = delete;
  Matrices& operator=(const Matrices&) = delete;

  double bytes() const { return double(matrix_bytes(format, rows, columns)); }
  DeviceMatrix at(int slot) const {
    return {format, values + slot * matrix_bytes(format, rows, columns), rows, columns};
  }
};

struct Layer {
  MoeShape shape;
  int slots;  // sets of weights, so that none stays in the L2
  Matrices gate_up, down;

  Layer(const MoeShape& s, int num_slots, MatrixFormat format = MatrixFormat::kBF16)
      : shape(s),
        slots(num_slots),
        gate_up(format, int64_t{s.num_experts + 1} * 2 * s.inter, s.hidden, slots, 1),
        down(format, int64_t{s.num_experts + 1} * s.hidden, s.inter, slots, 2) {}
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

std::string prefix(MatrixFormat format) {
  return format == MatrixFormat::kMxfp8 ? "mxfp8/" : format == MatrixFormat::kMxfp4 ? "mxfp4/" : "";
}

using Family = void (*)(const MoeShape&, const MoeArgs&, cudaStream_t, unsigned);

void run_moe(const Layer& layer, const std::string& name, int rows, Family family, const Options& options,
             cudaStream_t stream, bool e4m3_tokens = false) {
  const MoeShape& s = layer.shape;
  // 129 experts are 30 times the L2: different routings over the same weights are cold enough.
  const int routings = s.num_experts == 0 ? layer.slots
                       : rows <= 256      ? std::max(8 * kRank.inter / s.inter, 2)
                                          : 1;
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
  if (e4m3_tokens) {
    args.rounded = {allocate<uint8_t>(int64_t{rows} * s.hidden), allocate<float>(rows)};
    quantise_rows({x, args.rounded, rows, s.hidden}, stream);
  }
  const auto time = [&](unsigned parts) {
    return time_launches(stream, routings, options.once, [&](int i) {
      const int slot = s.num_experts == 0 ? i : 0;
      args.gate_up = layer.gate_up.at(slot), args.down = layer.down.at(slot);
      args.ids = ids_device + size_t(i) * rows * s.top_k;
      family(s, args, stream, parts);
      return cudaGetLastError();
    });
  };
  const double hit = s.num_experts == 0 ? 1 : experts_hit(s, ids, rows, routings);
  const double places = double(rows) * (s.top_k + 1), matrix = double(s.hidden) * s.inter;
  const double share = hit / (s.num_experts + 1);  // of the weights
  const Work gate_up{share * layer.gate_up.bytes() + double(rows) * s.hidden * 2 + places * s.inter * 2,
                     places * matrix * 4};
  const Work down{share * layer.down.bytes() + places * s.inter * 2 + double(rows) * s.hidden * 2,
                  places * matrix * 2};
  print(options, name + "/all", time(kMoeAll), {gate_up.bytes + down.bytes, gate_up.flops + down.flops});
  print(options, name + "/gate_up", time(kMoeGateUp), gate_up);
  if (family == moe_many) {
    // The experts' rows go through memory between the second product and the sum.
    const double expert_rows = s.num_experts == 0 ? 0 : places * s.hidden * 2;
    print(options, name + "/sorted_products", time(kMoeRoute | kMoeGateUp | kMoeDown),
          {gate_up.bytes + down.bytes + expert_rows, gate_up.flops + down.flops});
    print(options, name + "/route", time(kMoeRoute), {places * 8, 0});
    print(options, name + "/down", time(kMoeDown), {down.bytes + expert_rows, down.flops});
    if (s.num_experts > 0)
      print(options, name + "/sum", time(kMoeCombine), {expert_rows + double(rows) * s.hidden * 2, 0});
  } else {
    print(options, name + "/down", time(kMoeDown), down);
  }
  for (void* data : {static_cast<void*>(x), static_cast<void*>(out), static_cast<void*>(workspace),
                     static_cast<void*>(ids_device), static_cast<void*>(weights),
                     static_cast<void*>(args.rounded.codes), static_cast<void*>(args.rounded.scales)})
    CHECK(cudaFree(data));
}

void run_linear(int out_features, int in_features, int rows, MatrixFormat format, const Options& options,
                cudaStream_t stream) {
  const std::string name = "linear/" + prefix(format) + std::to_string(out_features) + "x" +
                           std::to_string(in_features) + "/B" + std::to_string(rows);
  if (name.find(options.only) == std::string::npos) return;
  const int64_t bytes = matrix_bytes(format, out_features, in_features);
  const auto slots = static_cast<int>(std::clamp<int64_t>(kRotateBytes / bytes + 1, 2, 80));
  const Matrices w(format, out_features, in_features, slots, 1);
  auto *x = allocate<__nv_bfloat16>(int64_t{rows} * in_features),
       *out = allocate<__nv_bfloat16>(int64_t{rows} * out_features);
  fill_random<<<64, 256>>>(reinterpret_cast<uint32_t*>(x), int64_t{rows} * in_features / 2, 2, false);
  CHECK(cudaDeviceSynchronize());
  const Timing t = time_launches(stream, slots, options.once, [&](int i) {
    linear_small(w.at(i), x, out, rows, stream);
    return cudaGetLastError();
  });
  print(options, name, t,
        {w.bytes() + 2.0 * rows * (in_features + out_features), 2.0 * out_features * in_features * rows});
  for (void* data : {x, out}) CHECK(cudaFree(data));
}

}  // namespace

int main(int argc, char** argv) {
  const Options options = parse_options(argc, argv);
  cudaStream_t stream;
  CHECK(cudaStreamCreate(&stream));
  const auto wanted = [&](const std::string& name) {
    return name.find(options.only) != std::string::npos || options.only.find(name) != std::string::npos;
  };
  for (const MatrixFormat format : kFormats)
    for (const auto& [out_features, in_features] :
         std::vector<std::pair<int, int>>{{1408, 6144}, {1280, 6144}, {6144, 1024}, {25008, 6144}})
      for (const int rows : {1, 8, 16, 32, 64})
        if (!is_mx(format) || out_features < 25000)
          run_linear(out_features, in_features, rows, format, options, stream);
  for (const MatrixFormat format : kFormats) {
    const std::string base = "mlp/" + prefix(format) + "B";
    std::optional<Layer> layer;
    for (const int rows : {1, 8, 16, 32, 64, 128, 256, 8192}) {
      const std::string name = base + std::to_string(rows);
      if (!wanted(name)) continue;
      if (!layer) layer.emplace(kMlp, is_mx(format) ? 20 : 5, format);
      run_moe(*layer, name, rows, rows <= kLinearSmallRows ? mlp_few : moe_many, options, stream);
    }
  }
  for (const MatrixFormat format : kFormats)
    for (const int inter : kWidths) {
      const std::string base =
          "moe/" + prefix(format) + (inter == kRank.inter ? "" : "I" + std::to_string(inter) + "/");
      std::optional<Layer> layer;
      const auto run = [&](const char* family_name, Family family, int rows, bool e4m3_tokens = false) {
        const std::string name = base + family_name + "/B" + std::to_string(rows);
        if (!wanted(name)) return;
        if (!layer) layer.emplace(MoeShape{kRank.hidden, inter, kRank.num_experts, kRank.top_k}, 1, format);
        run_moe(*layer, name, rows, family, options, stream, e4m3_tokens);
      };
      for (const int rows : {1, 2, 4, 8, 16, 32, 64}) run("few", moe_few, rows);
      for (const int rows : {16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192})
        if (inter == kRank.inter || rows <= 1024) run("many", moe_many, rows);
      // Cells as above have one scale for all: their rows are folded.
      for (const int rows : {1024, 2048, 4096, 8192, 16384})
        if (format == MatrixFormat::kMxfp8) run("e4m3", moe_many, rows, true);
    }
  return 0;
}
