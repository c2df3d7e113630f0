// SPDX-License-Identifier: Apache-2.0
// Times the write path (norms, rotary, store into pages) over a fixed list of cases: median of graph replays,
// rows rotated past the L2, slots in random order. Prints the floor: each input read and each output written
// once at 4,275 GB/s, the measured rate of a copy.
//   store_bench [--json] [--only SUBSTRING] [--once]
#include <numeric>
#include <random>

#include "bench.cuh"
#include "msa/sm90/store/store.h"
#include "sm90/tensor_map.h"

namespace {

using namespace bench;

constexpr double kCopyBytesPerUs = 4275e3;
constexpr int kHeadBytes = 256, kHalf = 32;

struct BenchCase {
  std::string name;
  int query_heads, kv_heads, rows;
  bool sparse, fp8;
};

std::vector<BenchCase> cases() {
  std::vector<BenchCase> list;
  const struct {
    const char* name;
    int query_heads, kv_heads;
  } shapes[] = {{"TP1", 64, 4}, {"TP4", 16, 1}, {"TP8", 8, 1}};
  for (const auto& shape : shapes)
    for (const int rows : {1, 64, 8192})
      list.push_back({std::string("store/") + shape.name + "/T" + std::to_string(rows), shape.query_heads,
                      shape.kv_heads, rows, true, false});
  list.push_back({"store/TP4/T8192/dense", 16, 1, 8192, false, false});
  list.push_back({"store/TP4/T8192/fp8", 16, 1, 8192, true, true});
  list.push_back({"store/TP1/T8192/fp8", 64, 4, 8192, true, true});
  return list;
}

int heads_in(const BenchCase& c) {
  return c.query_heads + 2 * c.kv_heads + (c.sparse ? c.kv_heads + 1 : 0);
}

double floor_us(const BenchCase& c) {
  const int cached = 2 * c.kv_heads + (c.sparse ? 1 : 0);
  const double written = (heads_in(c) - cached) * kHeadBytes + cached * kHeadBytes / (c.fp8 ? 2.0 : 1.0);
  const double bytes = c.rows * (heads_in(c) * double{kHeadBytes} + written + kHalf * 8 + 8);
  return bytes / kCopyBytesPerUs;
}

void run(const BenchCase& c, const Options& options, cudaStream_t stream) {
  const int64_t row_elements = heads_in(c) * int64_t{128};
  const int64_t set_bytes = c.rows * row_elements * 2;
  const int sets = static_cast<int>(std::clamp<int64_t>(kRotateBytes / set_bytes + 1, 2, 64));
  const int blocks = (c.rows + 127) / 128 + 1;
  const auto allocate = [](int64_t bytes) {
    char* data = nullptr;
    CHECK(cudaMalloc(&data, bytes));
    return data;
  };
  char* inputs = allocate(sets * set_bytes);
  char* outputs = allocate(sets * set_bytes);
  char* kv_pages = allocate(int64_t{sets} * blocks * c.kv_heads * 2 * 128 * kHeadBytes);
  char* index_pages = allocate(int64_t{sets} * blocks * 128 * kHeadBytes);
  char* norm = allocate(kHeadBytes);
  auto* rotary = reinterpret_cast<float2*>(allocate(int64_t{c.rows} * kHalf * 8));
  fill_random<<<1024, 256>>>(reinterpret_cast<uint32_t*>(inputs), sets * set_bytes / 4, 7, false);
  fill_random<<<1, 64>>>(reinterpret_cast<uint32_t*>(norm), kHeadBytes / 4, 8, false);
  std::vector<int64_t> order(size_t(blocks) * 128);
  std::iota(order.begin(), order.end(), 0);
  std::shuffle(order.begin(), order.end(), std::mt19937(3));
  order.resize(c.rows);
  int64_t* slots = upload(order);
  std::vector<int32_t> positions(c.rows);
  std::iota(positions.begin(), positions.end(), 1000000);
  int32_t* positions_device = upload(positions);
  msa::sm90::RotaryParams turn = {positions_device, rotary, {}, 1.0f, c.rows, kHalf};
  for (int i = 0; i < kHalf; ++i) turn.inv_freq[i] = 1.0f / static_cast<float>(1 + i * i * 100);
  CHECK(msa::sm90::launch_rotary(turn, stream));
  CHECK(cudaDeviceSynchronize());

  const auto launch = [&](int set) {
    auto* in = reinterpret_cast<const __nv_bfloat16*>(inputs + set * set_bytes);
    auto* out = reinterpret_cast<__nv_bfloat16*>(outputs + set * set_bytes);
    const auto* weight = reinterpret_cast<const __nv_bfloat16*>(norm);
    const int64_t k = c.query_heads * int64_t{128}, v = k + c.kv_heads * 128;
    const int64_t index_q = v + c.kv_heads * 128, index_k = index_q + c.kv_heads * 128;
    msa::sm90::StoreParams p = {};
    p.q = {in, row_elements}, p.k = {in + k, row_elements}, p.v = {in + v, row_elements};
    if (c.sparse) p.index_q = {in + index_q, row_elements}, p.index_k = {in + index_k, row_elements};
    p.q_norm = p.k_norm = p.index_q_norm = p.index_k_norm = weight;
    p.rotary = rotary, p.slots = slots;
    p.q_out = out, p.index_q_out = out + c.rows * k;
    p.kv_pages = kv_pages + int64_t{set} * blocks * c.kv_heads * 2 * 128 * kHeadBytes;
    p.index_pages = index_pages + int64_t{set} * blocks * 128 * kHeadBytes;
    p.eps = 1e-6f, p.rows = c.rows, p.query_heads = c.query_heads, p.kv_heads = p.index_heads = c.kv_heads,
    p.half = kHalf;
    p.kv_type = p.index_type = c.fp8 ? hopper::Element::kE4M3 : hopper::Element::kBF16;
    return msa::sm90::launch_store(p, stream);
  };
  print_line(options, c.name, time_launches(stream, sets, options.once, launch), floor_us(c), 0);
  for (void* data : {(void*)inputs, (void*)outputs, (void*)kv_pages, (void*)index_pages, (void*)norm,
                     (void*)rotary, (void*)slots, (void*)positions_device})
    CHECK(cudaFree(data));
}

}  // namespace

int main(int argc, char** argv) {
  const Options options = parse_options(argc, argv);
  cudaStream_t stream;
  CHECK(cudaStreamCreate(&stream));
  for (const BenchCase& c : cases())
    if (c.name.find(options.only) != std::string::npos) run(c, options, stream);
  return 0;
}
