// SPDX-License-Identifier: Apache-2.0
// Times the small operations of the forward pass (norms, router, linear layers, sampler) over a
// fixed list of cases: median of graph replays, inputs rotated past the L2 where they are larger than a tenth
// of it. Prints the floor: each byte once at 4,459 GB/s read or 4,275 GB/s copied, or the arithmetic at 809
// TFLOP/s.
//   rows_bench [--json] [--only SUBSTRING] [--once]
#include <cuda_bf16.h>

#include <functional>

#include "bench.cuh"
#include "ops/cuda/linear_held.h"
#include "ops/cuda/router.h"
#include "ops/cuda/rows.h"
#include "ops/cuda/sample/sample.h"
#include "ops/sample_batch.h"
#include "products.h"

namespace {

using namespace bench;
using namespace sparrow::ops::cuda;

constexpr double kCopyBytesPerUs = 4275e3;

struct BenchCase {
  std::string name;
  std::function<void(const BenchCase&, const Options&, cudaStream_t)> run;
  int rows, columns;
};

template <typename T>
T* allocate(int64_t count) {
  T* data = nullptr;
  CHECK(cudaMalloc(&data, count * sizeof(T)));
  CHECK(cudaMemset(data, 0, count * sizeof(T)));
  return data;
}

__nv_bfloat16* random_bf16(int64_t count, uint32_t seed) {
  auto* const data = allocate<__nv_bfloat16>(count);
  fill_random<<<1024, 256>>>(reinterpret_cast<uint32_t*>(data), count / 2, seed, false);
  return data;
}

__global__ void fill_normal(float* data, int64_t count, uint32_t seed, float spread) {
  for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < count;
       i += int64_t{gridDim.x} * blockDim.x) {
    const auto hash = [](uint32_t x) {
      x ^= x >> 16, x *= 0x7feb352du, x ^= x >> 15, x *= 0x846ca68bu;
      return x ^ (x >> 16);
    };
    const uint32_t a = hash(static_cast<uint32_t>(i) * 2 + seed * 0x9e3779b9u), b = hash(a + 0x68bc21ebu);
    const float radius = sqrtf(-2 * logf((a + 1.0f) * 2.3283064e-10f));
    data[i] = spread * radius * cospif(b * 4.6566129e-10f);
  }
}

float* random_f32(int64_t count, uint32_t seed, float spread) {
  auto* const data = allocate<float>(count);
  fill_normal<<<1024, 256>>>(data, count, seed, spread);
  return data;
}

int rotations(int64_t bytes) {
  return bytes < kL2Bytes / 10 ? 20 : static_cast<int>(std::clamp<int64_t>(kRotateBytes / bytes + 1, 2, 40));
}

void run_add_norm(const BenchCase& c, const Options& options, cudaStream_t stream) {
  const int64_t count = int64_t{c.rows} * c.columns, bytes = count * 8;
  const int sets = rotations(bytes);
  auto *residual = random_bf16(count * sets, 1), *delta = random_bf16(count * sets, 2);
  auto *weight = random_bf16(c.columns, 3), *out = allocate<__nv_bfloat16>(count * sets);
  const Timing timing = time_launches(stream, sets, options.once, [&](int i) {
    add_rms_norm({residual + i * count, delta + i * count, weight, out + i * count, c.rows, c.columns, 1e-6f},
                 stream);
    return cudaSuccess;
  });
  print_line(options, c.name, timing, bytes / kCopyBytesPerUs, 0);
  for (void* data : {residual, delta, weight, out}) CHECK(cudaFree(data));
}

// Rotates over routers: a step passes by all layers' before it comes back to one. Few rows of x are still in
// the L2, from the norm before.
void run_router(const BenchCase& c, const Options& options, cudaStream_t stream) {
  const RouterShape shape{.hidden = c.columns, .num_experts = 128, .top_k = 4};
  const int64_t count = int64_t{c.rows} * c.columns, weights = int64_t{shape.num_experts} * c.columns;
  const int sets = c.rows > 1024 ? 4 : 40;
  const bool hot = c.rows <= 1024;
  auto* const x = random_bf16(count * (hot ? 1 : sets), 1);
  auto* const router = random_f32(weights * sets, 2, 0.01f);
  auto* const parts = allocate<__nv_bfloat16>(3 * weights * sets);
  for (int i = 0; i < sets; ++i)
    split_router(router + i * weights, parts + 3 * i * weights, weights, nullptr);
  auto* const bias = random_f32(shape.num_experts, 3, 0.1f);
  auto* const ids = allocate<int32_t>(int64_t{c.rows} * 4);
  auto *const out = allocate<float>(int64_t{c.rows} * 4),
              *workspace = allocate<float>(router_workspace_bytes(shape, c.rows) / 4);
  CHECK(cudaDeviceSynchronize());
  const Timing timing = time_launches(stream, sets, options.once, [&](int i) {
    route(shape,
          {x + (hot ? 0 : i * count), router + i * weights, parts + 3 * i * weights, bias, ids, out,
           workspace, c.rows},
          stream);
    return cudaSuccess;
  });
  const double read = (count * 2.0 + weights * 4.0) / kReadBytesPerUs;
  print_line(options, c.name, timing, std::max(read, 2.0 * 3 * count * shape.num_experts / kFlopsPerUs), 0);
  for (void* data : {static_cast<void*>(x), static_cast<void*>(router), static_cast<void*>(parts),
                     static_cast<void*>(bias), static_cast<void*>(ids), static_cast<void*>(out),
                     static_cast<void*>(workspace)})
    CHECK(cudaFree(data));
}

// The norm and the router after it, in one launch or in two.
void run_norm_router(const BenchCase& c, const Options& options, cudaStream_t stream, bool together) {
  const RouterShape shape{.hidden = c.columns, .num_experts = 128, .top_k = 4};
  const int64_t count = int64_t{c.rows} * c.columns, weights = int64_t{shape.num_experts} * c.columns;
  constexpr int kSets = 40;
  auto *const residual = random_bf16(count, 1), *const delta = random_bf16(count, 2),
              *const norm = random_bf16(c.columns, 3), *const sum = random_bf16(count, 4),
              *const x = random_bf16(count, 5);
  auto* const router = random_f32(weights * kSets, 2, 0.01f);
  auto* const bias = random_f32(shape.num_experts, 3, 0.1f);
  auto* const ids = allocate<int32_t>(int64_t{c.rows} * 4);
  auto *const out = allocate<float>(int64_t{c.rows} * 4),
              *workspace = allocate<float>(router_workspace_bytes(shape, c.rows) / 4);
  CHECK(cudaDeviceSynchronize());
  const Timing timing = time_launches(stream, kSets, options.once, [&](int i) {
    const float* const of_layer = router + i * weights;
    if (together) {
      norm_route(shape, {residual, delta, norm, 1e-6f, sum, x, of_layer, bias, ids, out, workspace}, stream);
    } else {
      add_rms_norm({residual, delta, norm, x, c.rows, c.columns, 1e-6f}, stream);
      route(shape, {x, of_layer, nullptr, bias, ids, out, workspace, c.rows}, stream);
    }
    return cudaSuccess;
  });
  print_line(options, c.name, timing, (count * 8.0 + weights * 4.0) / kReadBytesPerUs, 0);
  for (void* data :
       {static_cast<void*>(residual), static_cast<void*>(delta), static_cast<void*>(norm),
        static_cast<void*>(sum), static_cast<void*>(x), static_cast<void*>(router), static_cast<void*>(bias),
        static_cast<void*>(ids), static_cast<void*>(out), static_cast<void*>(workspace)})
    CHECK(cudaFree(data));
}

// A linear layer of one row. Rotates over layers.
void run_linear_held(const BenchCase& c, const Options& options, cudaStream_t stream, int out_features) {
  const int64_t count = int64_t{out_features} * c.columns;
  const int sets = rotations(count * 2);
  auto *const w = random_bf16(count * sets, 1), *const x = random_bf16(c.columns, 2),
              *const out = allocate<__nv_bfloat16>(out_features);
  CHECK(cudaDeviceSynchronize());
  const Timing timing = time_launches(stream, sets, options.once, [&](int i) {
    linear_held({bf16_matrix(w + i * count, out_features, c.columns), x, out}, stream);
    return cudaSuccess;
  });
  print_line(options, c.name, timing, count * 2 / kReadBytesPerUs, 0);
  for (void* data : {w, x, out}) CHECK(cudaFree(data));
}

// Cells of random codes whose numbers are of order 2^-5.
__global__ void fill_cells(uint32_t* data, int64_t cells, int cell_words, int code_words, uint32_t scales) {
  for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < cells * cell_words;
       i += int64_t{gridDim.x} * blockDim.x) {
    uint32_t x = static_cast<uint32_t>(i) * 2654435761u + 1;
    x ^= x >> 16, x *= 0x7feb352du, x ^= x >> 15, x *= 0x846ca68bu, x ^= x >> 16;
    data[i] = i % cell_words < code_words ? x : scales;
  }
}

// Several matrices of a format, one after the other.
void* random_matrices(sparrow::MatrixFormat format, int64_t rows, int64_t columns, int sets) {
  if (!sparrow::is_mx(format)) return random_bf16(rows * columns * sets, 1);
  const int64_t bytes = cell_matrix_bytes(format, rows, columns) * sets;
  auto* const data = allocate<uint32_t>(bytes / 4);
  const uint32_t scale = cell_scale(format, 114);
  fill_cells<<<1024, 256>>>(data, bytes / cell_bytes(format), cell_bytes(format) / 4,
                            cell_code_bytes(format) / 4, scale * 0x01010101u);
  return data;
}

// A linear layer as a step runs it: with what is measured to be the fastest. Rotates over layers.
void run_linear(const BenchCase& c, const Options& options, cudaStream_t stream, int out_features,
                sparrow::MatrixFormat format) {
  const int64_t numbers = int64_t{out_features} * c.columns;
  const int64_t bytes =
      sparrow::is_mx(format) ? cell_matrix_bytes(format, out_features, c.columns) : numbers * 2;
  const int sets = rotations(bytes);
  auto* const weights = static_cast<uint8_t*>(random_matrices(format, out_features, c.columns, sets));
  auto *const x = random_bf16(int64_t{c.rows} * c.columns, 2),
              *const out = allocate<__nv_bfloat16>(int64_t{c.rows} * out_features),
              *const expanded = allocate<__nv_bfloat16>(numbers);
  auto* const workspace = allocate<uint8_t>(kProductWorkspaceBytes);
  CHECK(cudaDeviceSynchronize());
  Products products(workspace, expanded);
  std::vector<DeviceMatrix> layers;
  for (int i = 0; i < sets; ++i) layers.push_back({format, weights + i * bytes, out_features, c.columns});
  products.tune(std::span(layers).first(std::min<size_t>(layers.size(), 8)), c.rows, x, out, stream);
  const Timing timing = time_launches(stream, sets, options.once, [&](int i) {
    products.run(layers[i], c.rows, x, out, stream);
    return cudaSuccess;
  });
  const double read = (bytes + c.rows * (c.columns + out_features) * 2.0) / kReadBytesPerUs;
  print_line(options, c.name, timing, std::max(read, 2.0 * c.rows * numbers / kFlopsPerUs), 0);
  for (void* data : {static_cast<void*>(weights), static_cast<void*>(x), static_cast<void*>(out),
                     static_cast<void*>(expanded), static_cast<void*>(workspace)})
    CHECK(cudaFree(data));
}

constexpr int kVocabulary = 200064;

void run_sample(const BenchCase& c, const Options& options, cudaStream_t stream, const SampleSpec& spec) {
  const int64_t count = int64_t{c.rows} * kVocabulary;
  const int sets = rotations(count * 4);
  auto* const logits = random_f32(count * sets, 1, 3.0f);
  SampleBatch batch;
  for (int row = 0; row < c.rows; ++row) {
    SampleSpec of_row = spec;
    of_row.logits_row = row, of_row.draw = (row + 0.5) / c.rows;
    batch.add_row(of_row);
  }
  std::vector<char> bytes(batch.bytes());
  batch.pack(bytes.data());
  char* const packed = upload(bytes);
  auto* const ids = allocate<int32_t>(c.rows);
  auto* const status = allocate<SampleStatus>(c.rows);
  CHECK(cudaDeviceSynchronize());
  const Timing timing = time_launches(stream, sets, options.once, [&](int i) {
    sample({.logits = logits + i * count,
            .row_stride = kVocabulary,
            .batch = packed,
            .ids = ids,
            .status = status,
            .rows = c.rows,
            .vocabulary = kVocabulary,
            .plain_greedy = batch.plain_greedy()},
           stream);
    return cudaSuccess;
  });
  print_line(options, c.name, timing, count * 4 / kReadBytesPerUs, 0);
  for (void* data : {static_cast<void*>(logits), static_cast<void*>(packed), static_cast<void*>(ids),
                     static_cast<void*>(status)})
    CHECK(cudaFree(data));
}

void run_logprobs(const BenchCase& c, const Options& options, cudaStream_t stream) {
  constexpr int kTop = 20;
  const int64_t count = int64_t{c.rows} * kVocabulary;
  const int sets = rotations(count * 4);
  auto* const logits = random_f32(count * sets, 1, 3.0f);
  std::vector<LogprobsRow> rows(c.rows);
  for (int row = 0; row < c.rows; ++row) rows[row] = {row, 17 * row, 0, kTop};
  auto* const wanted = upload(rows);
  auto *const logprob = allocate<float>(c.rows), *top_logprobs = allocate<float>(c.rows * kTop);
  auto *const rank = allocate<int32_t>(c.rows), *top_ids = allocate<int32_t>(c.rows * kTop);
  CHECK(cudaDeviceSynchronize());
  const Timing timing = time_launches(stream, sets, options.once, [&](int i) {
    logprobs({.logits = logits + i * count,
              .row_stride = kVocabulary,
              .wanted = wanted,
              .sampled_ids = nullptr,
              .logprob = logprob,
              .rank = rank,
              .top_ids = top_ids,
              .top_logprobs = top_logprobs,
              .rows = c.rows,
              .top_stride = kTop,
              .vocabulary = kVocabulary},
             stream);
    return cudaSuccess;
  });
  print_line(options, c.name, timing, count * 4 / kReadBytesPerUs, 0);
  for (void* data : {static_cast<void*>(logits), static_cast<void*>(wanted), static_cast<void*>(logprob),
                     static_cast<void*>(rank), static_cast<void*>(top_logprobs), static_cast<void*>(top_ids)})
    CHECK(cudaFree(data));
}

std::vector<BenchCase> cases() {
  std::vector<BenchCase> list;
  for (const int rows : {1, 16, 64, 256, 1024, 8192})
    list.push_back({"add_norm/T" + std::to_string(rows), run_add_norm, rows, 6144});
  list.push_back({"add_norm/T8192/h1024", run_add_norm, 8192, 1024});
  for (const int rows : {1, 16, 64, 256, 512, 768, 1024, 8192})
    list.push_back({"router/T" + std::to_string(rows), run_router, rows, 6144});
  for (const bool together : {false, true})
    list.push_back({together ? "norm_router/T1" : "add_norm, router/T1",
                    [together](const BenchCase& c, const Options& options, cudaStream_t stream) {
                      run_norm_router(c, options, stream, together);
                    },
                    1, 6144});
  list.push_back({"linear_held/6144x1024/T1",
                  [](const BenchCase& c, const Options& options, cudaStream_t stream) {
                    run_linear_held(c, options, stream, 6144);
                  },
                  1, 1024});
  // q/k/v and output of a rank of eight and of four.
  for (const auto& [out, in] : {std::pair{1536, 6144}, {6144, 1024}, {2560, 6144}, {6144, 2048}})
    for (const int rows : {1, 8, 64, 256, 1024, 8192})
      for (const auto format :
           {sparrow::MatrixFormat::kBF16, sparrow::MatrixFormat::kMxfp8, sparrow::MatrixFormat::kMxfp4})
        list.push_back({"linear/" + std::to_string(out) + "x" + std::to_string(in) + "/" +
                            std::string(sparrow::name_of(format)) + "/T" + std::to_string(rows),
                        [out = out, format](const BenchCase& c, const Options& options, cudaStream_t stream) {
                          run_linear(c, options, stream, out, format);
                        },
                        rows, in});
  const auto add_sample = [&](const char* name, const SampleSpec& spec) {
    for (const int rows : {1, 64})
      list.push_back({"sample/" + std::string(name) + "/R" + std::to_string(rows),
                      [spec](const BenchCase& c, const Options& options, cudaStream_t stream) {
                        run_sample(c, options, stream, spec);
                      },
                      rows, kVocabulary});
  };
  add_sample("greedy", {.temperature = 0});
  add_sample("plain", {.temperature = 0.8});
  add_sample("top_p", {.temperature = 0.8, .top_p = 0.95});
  add_sample("top_k", {.temperature = 0.8, .top_k = 50});
  add_sample("top_k+top_p+min_p", {.temperature = 0.8, .top_p = 0.95, .top_k = 1000, .min_p = 0.05});
  for (const int rows : {1, 64})
    list.push_back({"logprobs/top20/R" + std::to_string(rows), run_logprobs, rows, kVocabulary});
  return list;
}

}  // namespace

int main(int argc, char** argv) {
  const Options options = parse_options(argc, argv);
  cudaStream_t stream;
  CHECK(cudaStreamCreate(&stream));
  for (const BenchCase& c : cases())
    if (c.name.find(options.only) != std::string::npos) c.run(c, options, stream);
  return 0;
}
