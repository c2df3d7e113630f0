// SPDX-License-Identifier: Apache-2.0
// Weights in GPU memory, read back and compared element by element with the checkpoint they came from.
#include "model/cuda/device_weights.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cuda_runtime_api.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "base/files/mapped_file.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/random/synthetic.h"
#include "device/cuda/check.h"
#include "model/device_layout.h"
#include "ops/cuda/mx/expand.h"
#include "support/temp_dir.h"

namespace sparrow {
namespace {

using test::TempDir;
using ::testing::HasSubstr;

// A model of the tiny preset with experts that 8 ranks can share, quantised or not.
constexpr std::string_view kWideExperts =
    R"({"text_config": {"intermediate_size": 256, "shared_intermediate_size": 256, "dense_intermediate_size": 768}})";

Checkpoint random_model(DType dtype, std::string_view overrides = {}, uint64_t seed = 5) {
  const TempDir dir;
  SPARROW_CHECK(
      write_text_file(dir.path() / "config.json", synthetic_config("tiny", format_of(dtype))->config_json)
          .ok());
  auto checkpoint = Checkpoint::random(dir.path(), seed, {.overrides = std::string(overrides)});
  SPARROW_CHECK(checkpoint.ok());
  return std::move(checkpoint).value();
}

template <typename T>
std::vector<T> read_back(const T* device, int64_t count) {
  std::vector<T> host(static_cast<size_t>(count));
  SPARROW_CUDA(cudaMemcpy(host.data(), device, host.size() * sizeof(T), cudaMemcpyDeviceToHost));
  return host;
}

// An element of the checkpoint as a number.
float value_of(const ops::Weight& weight, int64_t row, int64_t col) {
  const int64_t cols = weight.values.rank == 1 ? weight.values.numel() : weight.in();
  const int64_t at = row * cols + col;
  if (weight.values.dtype == DType::kF32) return weight.values.as<float>()[at];
  if (weight.values.dtype == DType::kBF16) return to_float(weight.values.as<BFloat16>()[at]);
  const auto* const codes = static_cast<const uint8_t*>(weight.values.data);
  const float value = weight.format() == MatrixFormat::kMxfp8
                          ? e4m3_to_float(codes[at])
                          : e2m1_to_float(codes[at / 2] >> (at % 2 * 4) & 15);
  return value * e8m0_to_float(weight.scales.as<uint8_t>()[at / kScaleGroup]);
}

// A matrix's rows from `first` on as bf16, expanded where it is quantised.
std::vector<BFloat16> rows_of(const ops::cuda::DeviceMatrix& matrix, int64_t first, int64_t rows) {
  const int64_t count = rows * matrix.cols;
  if (!is_mx(matrix.format))
    return read_back(reinterpret_cast<const BFloat16*>(matrix.bf16()) + first * matrix.cols, count);
  const DeviceBuffer expanded = DeviceBuffer::allocate(static_cast<size_t>(count) * sizeof(BFloat16)).value();
  ops::cuda::DeviceMatrix part = matrix;
  part.rows = static_cast<int>(rows);
  part.values = matrix.cells() + ops::cuda::cell_matrix_bytes(matrix.format, first, matrix.cols);
  ops::cuda::expand(part, reinterpret_cast<__nv_bfloat16*>(expanded.data()), nullptr);
  SPARROW_CUDA(cudaDeviceSynchronize());
  return read_back(reinterpret_cast<const BFloat16*>(expanded.data()), count);
}

// Compares what a rank's GPU holds with what it should hold, by the description in device_weights.h.
class Comparison {
 public:
  Comparison(const ModelConfig& config, const Grid& grid, const Weights& host, const DeviceWeights& device)
      : config_(config), grid_(grid), host_(host), device_(device) {}

  // "" or where the first difference is.
  std::string first_difference() {
    const int64_t hidden = config_.hidden_size;
    const int64_t first = config_.vocab_size / grid_.tp * grid_.tp_rank();
    if (device_.first_vocab_row != first) return "first_vocab_row";
    const auto vocab_rows = [&](const ops::Weight& w) {
      return [&w, first](int64_t r, int64_t c) { return value_of(w, first + r, c); };
    };
    const ops::Weight embed = {host_.embed, {}};
    matrix("embed", device_.embed, device_.vocab_rows, hidden, vocab_rows(embed));
    matrix("head", device_.head, 0, device_.vocab_rows, hidden, vocab_rows(host_.head));
    vector("final_norm", device_.final_norm, host_.final_norm);
    for (size_t i = 0; i < host_.layers.size(); ++i) {
      attention(device_.layers[i], host_.layers[i]);
      feed_forward(device_.layers[i], host_.layers[i]);
      if (!difference_.empty()) return "layer " + std::to_string(i) + ": " + difference_;
    }
    return difference_;
  }

 private:
  using Value = std::function<float(int64_t row, int64_t col)>;

  void differ(const std::string& name, int64_t row, int64_t col) {
    if (difference_.empty())
      difference_ = name + "[" + std::to_string(row) + ", " + std::to_string(col) + "]";
  }

  void matrix(const std::string& name, const __nv_bfloat16* device, int64_t rows, int64_t cols,
              const Value& value) {
    matrix(name, ops::cuda::bf16_matrix(device, static_cast<int>(rows), static_cast<int>(cols)), 0, rows,
           cols, value);
  }
  void matrix(const std::string& name, const ops::cuda::DeviceMatrix& device, int64_t first, int64_t rows,
              int64_t cols, const Value& value) {
    if (device.cols != cols || first + rows > device.rows)
      return differ(name + "'s shape", device.rows, device.cols);
    const auto held = rows_of(device, first, rows);
    for (int64_t i = 0; i < rows * cols; ++i)
      if (held[static_cast<size_t>(i)].bits != to_bf16(value(i / cols, i % cols)).bits)
        differ(name, i / cols, i % cols);
  }
  void matrix(const std::string& name, const float* device, int64_t rows, int64_t cols, const Value& value) {
    const auto held = read_back(device, rows * cols);
    for (int64_t i = 0; i < rows * cols; ++i)
      if (held[static_cast<size_t>(i)] != value(i / cols, i % cols)) differ(name, i / cols, i % cols);
  }
  template <typename T>
  void vector(const std::string& name, const T* device, const Tensor& tensor) {
    const ops::Weight weight = {tensor, {}};
    matrix(name, device, 1, tensor.numel(), [&](int64_t, int64_t c) { return value_of(weight, 0, c); });
  }

  void attention(const DeviceLayer& device, const LayerWeights& host) {
    vector("input_norm", device.input_norm, host.input_norm);
    vector("post_attention_norm", device.post_attention_norm, host.post_attention_norm);
    vector("q_norm", device.q_norm, host.q_norm);
    vector("k_norm", device.k_norm, host.k_norm);
    const bool is_sparse = !host.index_q.values.empty();
    if (is_sparse) {
      vector("index_q_norm", device.index_q_norm, host.index_q_norm);
      vector("index_k_norm", device.index_k_norm, host.index_k_norm);
    } else if (device.index_q_norm != nullptr || device.index_k_norm != nullptr) {
      differ("index_norms", 0, 0);
    }
    const int kv_heads = device_.kv_heads, padded = device_.query_heads / kv_heads;
    const int group = config_.num_query_heads / grid_.tp / kv_heads;
    const int first_q = config_.num_query_heads / grid_.tp * grid_.tp_rank();
    const int first_kv = grid_.tp_rank() * config_.num_kv_heads / grid_.tp;
    // The query head at a place of the device's order; -1 where zeros fill the group up.
    const auto query_head = [=](int64_t head) {
      return head % padded < group ? first_q + head / padded * group + head % padded : -1;
    };
    const int rows = (device_.query_heads + 2 * kv_heads + (is_sparse ? kv_heads + 1 : 0)) * 128;
    const int others = is_sparse && grid_.tp > 1 ? (config_.num_kv_heads - kv_heads) * 128 : 0;
    if (device.qkv_rows != rows || device.qkv.rows != rows || device.other_index_rows != others)
      return differ("qkv_rows", rows, device.qkv_rows);
    matrix("qkv", device.all_qkv, 0, rows + others, config_.hidden_size, [&](int64_t row, int64_t col) {
      int64_t head = row / 128;
      const int64_t d = row % 128;
      if (head < device_.query_heads)
        return query_head(head) < 0 ? 0.0f : value_of(host.q, query_head(head) * 128 + d, col);
      head -= device_.query_heads;
      if (head < 2 * kv_heads)
        return value_of(head < kv_heads ? host.k : host.v, (first_kv + head % kv_heads) * 128 + d, col);
      head -= 2 * kv_heads + 1;
      if (head < 0) return value_of(host.index_k, d, col);
      // Its own index heads, then those of other ranks: before and behind its own.
      const int64_t other = head - kv_heads, id = other < 0          ? first_kv + head
                                                  : other < first_kv ? other
                                                                     : head;
      return value_of(host.index_q, id * 128 + d, col);
    });
    matrix("o", device.o, 0, config_.hidden_size, int64_t{device_.query_heads} * 128,
           [&](int64_t row, int64_t col) {
             const int64_t head = query_head(col / 128);
             return head < 0 ? 0.0f : value_of(host.o, row, head * 128 + col % 128);
           });
  }

  void feed_forward(const DeviceLayer& device, const LayerWeights& host) {
    if (host.experts.empty()) {
      if (device.num_experts != 0 || device.router != nullptr || device.router_bias != nullptr)
        differ("experts of a dense layer", 0, 0);
      return mlps(device, {&host.mlp}, config_.dense_intermediate_size / grid_.tp, grid_.tp_rank());
    }
    matrix("router", device.router, config_.num_experts, config_.hidden_size,
           [&](int64_t r, int64_t c) { return value_of(host.router, r, c); });
    vector("router_bias", device.router_bias, host.router_bias);
    const bool is_whole = grid_.expert_parallel && grid_.world() > 1;
    const int count = is_whole ? config_.num_experts / grid_.world() : config_.num_experts;
    const int first = is_whole ? count * grid_.rank : 0;
    if (device.num_experts != count || device_.experts.first != first || device_.experts.count != count)
      return differ("num_experts", first, count);
    std::vector<const ops::MlpWeights*> experts;
    for (int e = 0; e < count; ++e) experts.push_back(&host.experts[static_cast<size_t>(first + e)]);
    const int channels = config_.shared_intermediate_size / grid_.world();
    if (!is_whole) {
      experts.push_back(&host.mlp);
      return mlps(device, experts, channels, grid_.rank);
    }
    mlps(device, experts, config_.expert_intermediate_size, 0);
    DeviceLayer shared = device;
    shared.inter = device.shared_inter;
    shared.gate_up = device.shared_gate_up;
    shared.down = device.shared_down;
    mlps(shared, {&host.mlp}, channels, grid_.rank);
  }

  // Part `part` of `channels` channels of each.
  void mlps(const DeviceLayer& device, const std::vector<const ops::MlpWeights*>& all, int channels,
            int part) {
    const int64_t hidden = config_.hidden_size, inter = device.inter, first = int64_t{channels} * part;
    if (inter % 64 != 0 || inter < channels || inter - channels >= 64) return differ("inter", 0, inter);
    const auto count = static_cast<int64_t>(all.size());
    if (device.gate_up.rows != count * 2 * inter) differ("gate_up's rows", device.gate_up.rows, 0);
    for (int64_t e = 0; e < count; ++e) {
      const ops::MlpWeights& expert = *all[static_cast<size_t>(e)];
      const std::string name = "expert " + std::to_string(e);
      matrix(name + " gate_up", device.gate_up, e * 2 * inter, 2 * inter, hidden,
             [&](int64_t row, int64_t col) {
               const int64_t channel = row / 16 * 8 + row % 8;
               const ops::Weight& weight = row % 16 < 8 ? expert.gate : expert.up;
               return channel < channels ? value_of(weight, first + channel, col) : 0.0f;
             });
      matrix(name + " down", device.down, e * hidden, hidden, inter, [&](int64_t row, int64_t col) {
        return col < channels ? value_of(expert.down, row, first + col) : 0.0f;
      });
    }
  }

  const ModelConfig& config_;
  const Grid& grid_;
  const Weights& host_;
  const DeviceWeights& device_;
  std::string difference_;
};

std::string first_difference(const Checkpoint& model, const Grid& grid, const DeviceWeights& device) {
  return Comparison(model.config(), grid, model.weights(), device).first_difference();
}

class EveryTypeAndGrid : public ::testing::TestWithParam<std::tuple<DType, Grid>> {};

TEST_P(EveryTypeAndGrid, HoldsItsPartOfTheCheckpointExactly) {
  auto [dtype, grid] = GetParam();
  const Checkpoint model = random_model(dtype, kWideExperts);
  for (grid.rank = 0; grid.rank < grid.world(); ++grid.rank) {
    const auto device = load_device_weights(model.config(), grid, model.weights());
    ASSERT_TRUE(device.ok()) << device.error().message;
    EXPECT_EQ(device->memory.bytes(), device_weight_bytes(model.config(), grid).value());
    EXPECT_EQ(first_difference(model, grid, device.value()), "") << "rank " << grid.rank;
  }
}

INSTANTIATE_TEST_SUITE_P(
    DeviceWeights, EveryTypeAndGrid,
    ::testing::Combine(::testing::Values(DType::kF32, DType::kBF16, DType::kF8E4M3),
                       ::testing::Values(Grid{}, Grid{.tp = 2}, Grid{.tp = 4}, Grid{.tp = 8},
                                         Grid{.tp = 2, .dp = 2}, Grid{.tp = 4, .expert_parallel = true},
                                         Grid{.tp = 4, .dp = 2, .expert_parallel = true})),
    [](const auto& info) {
      std::string name =
          std::string(name_of(std::get<0>(info.param))) + "On" + describe(std::get<1>(info.param));
      std::erase_if(name, [](char c) { return !std::isalnum(static_cast<unsigned char>(c)); });
      return name;
    });

TEST(DeviceWeights, ZerosFillUpWhatIsSmallerThanATile) {
  // The tiny preset as it is: experts of 64 channels over 8 ranks leave 8 channels and one query head for
  // each.
  const Checkpoint model = random_model(DType::kBF16);
  const Grid grid{.tp = 8, .rank = 5};
  const DeviceWeights device = load_device_weights(model.config(), grid, model.weights()).value();
  EXPECT_EQ(device.layers[1].inter, 64);
  EXPECT_EQ(device.query_heads, 4);
  EXPECT_EQ(first_difference(model, grid, device), "");
}

// k of a layer is not quantised, the rest of its matrix is: all of it is expanded, and nothing else.
TEST(DeviceWeights, AMatrixWhoseTensorsDifferIsExpanded) {
  std::string config = synthetic_config("tiny", MatrixFormat::kMxfp8)->config_json;
  const std::string_view list = "\"ignored_layers\": [";
  ASSERT_NE(config.find(list), std::string::npos);
  config.insert(config.find(list) + list.size(), "\"model.layers.1.self_attn.k_proj\", ");
  const TempDir dir;
  ASSERT_TRUE(write_text_file(dir.path() / "config.json", config).ok());
  const Checkpoint model = Checkpoint::random(dir.path(), 5, {}).value();
  const DeviceWeights device = load_device_weights(model.config(), {}, model.weights()).value();
  EXPECT_EQ(device.layers[0].qkv.format, MatrixFormat::kMxfp8);
  EXPECT_EQ(device.layers[1].qkv.format, MatrixFormat::kBF16);
  EXPECT_EQ(device.layers[1].o.format, MatrixFormat::kMxfp8);
  EXPECT_EQ(first_difference(model, {}, device), "");
}

TEST(DeviceWeights, AFileOnDiskGivesTheSame) {
  const TempDir dir;
  ASSERT_TRUE(
      write_synthetic_checkpoint({.seed = 3, .dir = dir.path() / "m", .format = MatrixFormat::kMxfp8}).ok());
  const Checkpoint model = Checkpoint::open(dir.path() / "m").value();
  const DeviceWeights device = load_device_weights(model.config(), {}, model.weights()).value();
  EXPECT_EQ(first_difference(model, {}, device), "");
}

// Buffers that hold one row, part of a tensor with rows left over, any tensor whole; and more threads
// than work.
TEST(DeviceWeights, TheSizeOfTheBuffersDoesNotMatter) {
  const Checkpoint model = random_model(DType::kF8E4M3, kWideExperts);
  const Grid grid{.tp = 2, .rank = 1};
  for (const size_t bytes : {size_t{1}, size_t{3000}, size_t{100'003}, size_t{1} << 20}) {
    for (const int threads : {1, 3, 16}) {
      const DeviceLoadOptions options = {
          .threads = threads, .buffer_bytes = bytes, .buffers_per_thread = threads % 3 + 1};
      const auto device = load_device_weights(model.config(), grid, model.weights(), {}, options);
      ASSERT_TRUE(device.ok()) << device.error().message;
      EXPECT_EQ(first_difference(model, grid, device.value()), "")
          << bytes << " bytes, " << threads << " threads";
    }
  }
}

TEST(DeviceWeights, ProgressEndsAtTheBytesOfThisRank) {
  const Checkpoint model = random_model(DType::kBF16);
  uint64_t last_done = 0, last_total = 0;
  const auto progress = [&](uint64_t done, uint64_t total) {
    EXPECT_LE(done, total);
    last_done = done, last_total = total;
  };
  const auto device = load_device_weights(model.config(), {.tp = 2}, model.weights(), progress);
  ASSERT_TRUE(device.ok());
  EXPECT_EQ(last_done, last_total);
  // Less than the whole, more than half: norms and the router are on both ranks.
  EXPECT_GT(last_total, model.weight_bytes() / 3);
  EXPECT_LT(last_total, model.weight_bytes());
}

// The comparison itself: it must see two rows that changed places, in any tensor with rows.
TEST(DeviceWeights, ShuffledRowsAreNoticed) {
  const Checkpoint model = random_model(DType::kBF16);
  const DeviceWeights device = load_device_weights(model.config(), {}, model.weights()).value();
  ASSERT_EQ(first_difference(model, {}, device), "");
  const DeviceLayer& layer = device.layers[1];
  const int64_t hidden = model.config().hidden_size;
  const auto swap_rows = [&](const __nv_bfloat16* matrix, int64_t a, int64_t b, int64_t cols) {
    auto* const data = const_cast<__nv_bfloat16*>(matrix);
    const auto row_a = read_back(reinterpret_cast<const BFloat16*>(data + a * cols), cols);
    SPARROW_CUDA(cudaMemcpy(data + a * cols, data + b * cols, cols * 2, cudaMemcpyDeviceToDevice));
    SPARROW_CUDA(cudaMemcpy(data + b * cols, row_a.data(), cols * 2, cudaMemcpyHostToDevice));
  };
  const struct {
    const __nv_bfloat16* matrix;
    int64_t a, b, cols;
    const char* name;
  } kShuffles[] = {{layer.gate_up.bf16(), 7, 8, hidden, "layer 1: expert 0 gate_up[7, 0]"},
                   {layer.gate_up.bf16(), 2 * layer.inter * 8, 2 * layer.inter * 8 + 1, hidden,
                    "layer 1: expert 8 gate_up"},
                   {layer.down.bf16(), 1, 2, layer.inter, "layer 1: expert 0 down[1, "},
                   {layer.qkv.bf16(), 127, 128, hidden, "layer 1: qkv[127, "},
                   {layer.o.bf16(), 3, 4, int64_t{device.query_heads} * 128, "layer 1: o[3, "},
                   {device.embed, 0, 511, hidden, "embed[0, "}};
  for (const auto& shuffle : kShuffles) {
    swap_rows(shuffle.matrix, shuffle.a, shuffle.b, shuffle.cols);
    EXPECT_THAT(first_difference(model, {}, device), HasSubstr(shuffle.name));
    swap_rows(shuffle.matrix, shuffle.a, shuffle.b, shuffle.cols);
  }
  EXPECT_EQ(first_difference(model, {}, device), "");
}

// The same numbers as a synthetic checkpoint of the same seed: also on every rank.
TEST(DummyDeviceWeights, AreThoseOfARandomCheckpoint) {
  for (const DType dtype : {DType::kBF16, DType::kF8E4M3}) {
    const Checkpoint model = random_model(dtype, kWideExperts, /*seed=*/11);
    for (const Grid grid : {Grid{}, Grid{.tp = 4, .rank = 3}, Grid{.tp = 8, .rank = 2},
                            Grid{.tp = 2, .dp = 2, .expert_parallel = true, .rank = 3}}) {
      const auto device = dummy_device_weights(model.config(), grid, 11);
      ASSERT_TRUE(device.ok()) << device.error().message;
      EXPECT_EQ(first_difference(model, grid, device.value()), "");
    }
    const DeviceWeights other = dummy_device_weights(model.config(), {}, 12).value();
    EXPECT_NE(first_difference(model, {}, other), "");
  }
}

TEST(DeviceWeights, ARankThatDoesNotDivideTheModelIsAnError) {
  const Checkpoint model = random_model(DType::kF8E4M3);
  // 64 channels of an expert are two groups of 32 with a scale of their own: not enough for 8 ranks.
  const auto device = load_device_weights(model.config(), {.tp = 8}, model.weights());
  ASSERT_FALSE(device.ok());
  EXPECT_THAT(device.error().message, HasSubstr("intermediate_size"));
}

}  // namespace
}  // namespace sparrow
