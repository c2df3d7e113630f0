// SPDX-License-Identifier: Apache-2.0
// Models whose weights stay quantised on the GPU: the same logits, to the bit, as with the expanded weights.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <deque>
#include <vector>

#include "base/files/mapped_file.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/mx/quantise.h"
#include "checkpoint/random/synthetic.h"
#include "checkpoint/tensor_table.h"
#include "engine/sequence_runner.h"
#include "model/cuda/device_weights.h"
#include "support/golden.h"
#include "support/temp_dir.h"

namespace sparrow {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// What a quantised checkpoint stands for, in bf16.
class Expanded {
 public:
  explicit Expanded(const Checkpoint& checkpoint)
      : config_(checkpoint.config()), weights_(checkpoint.weights()) {
    config_.quant = QuantFormat::kNone;
    for (const TensorRow& row : tensor_table(checkpoint.config())) {
      if (!is_mx(row.format) || row.piece != TensorPiece::kValues) continue;
      const ops::Weight weight = find_weight(checkpoint.weights(), row.role, row.layer, row.expert);
      values_.push_back(expand(weight));
      *find_tensor(weights_, row.role, TensorPiece::kScales, row.layer, row.expert) = {};
      *find_tensor(weights_, row.role, TensorPiece::kValues, row.layer, row.expert) =
          Tensor(values_.back().data(), DType::kBF16, {weight.out(), weight.in()});
    }
    SPARROW_CHECK(!values_.empty());
  }

  const ModelConfig& config() const { return config_; }
  const Weights& weights() const { return weights_; }

 private:
  static std::vector<BFloat16> expand(const ops::Weight& weight) {
    const auto* const codes = static_cast<const uint8_t*>(weight.values.data);
    std::vector<BFloat16> values(static_cast<size_t>(weight.out() * weight.in()));
    for (size_t i = 0; i < values.size(); ++i) {
      const float value = weight.format() == MatrixFormat::kMxfp8
                              ? e4m3_to_float(codes[i])
                              : e2m1_to_float(codes[i / 2] >> (i % 2 * 4) & 15);
      values[i] = to_bf16(value * e8m0_to_float(weight.scales.as<uint8_t>()[i / kScaleGroup]));
    }
    return values;
  }

  ModelConfig config_;
  Weights weights_;
  std::deque<std::vector<BFloat16>> values_;
};

struct Prompt {
  std::vector<int32_t> ids, continuation;
  int chunk;
};

// Logits of every row: prompt in chunks, then one token after the other.
std::vector<float> run_model(const ModelConfig& model, const Weights& weights, const Prompt& prompt,
                             Device device, bool batch_invariant) {
  ModelConfig config = model;
  config.dtype = DType::kBF16;
  const int total = static_cast<int>(prompt.ids.size());
  SequenceRunner runner(create_runner(config, weights,
                                      {.device = device,
                                       .cache_tokens = total + 1000,
                                       .cpu = {.threads = 2},
                                       .gpu = {.batch_invariant = batch_invariant},
                                       .max_model_tokens = 8192,
                                       .max_step_tokens = 1024,
                                       .max_step_sequences = 16})
                            .value());
  Sequence sequence = runner.new_sequence();
  sequence.ids = prompt.ids;
  std::vector<float> all;
  const auto take_logits = [&] {
    const Tensor logits = runner.logits();
    all.insert(all.end(), logits.as<float>(), logits.as<float>() + logits.numel());
  };
  for (int begin = 0; begin < total; begin += prompt.chunk) {
    const int count = std::min(prompt.chunk, total - begin);
    std::vector<int32_t> rows(static_cast<size_t>(count));
    for (int i = 0; i < count; ++i) rows[static_cast<size_t>(i)] = i;
    runner.run(sequence, count, rows).value();
    take_logits();
  }
  for (const int32_t id : prompt.continuation) {
    sequence.ids.push_back(id);
    runner.prefill(sequence, 1).value();
    take_logits();
  }
  return all;
}

void expect_same_bits(const Checkpoint& checkpoint, const Prompt& prompt) {
  const Expanded expanded(checkpoint);
  const auto quantised =
      run_model(checkpoint.config(), checkpoint.weights(), prompt, Device::kCuda, /*batch_invariant=*/true);
  const auto plain =
      run_model(expanded.config(), expanded.weights(), prompt, Device::kCuda, /*batch_invariant=*/true);
  ASSERT_EQ(quantised.size(), plain.size());
  size_t differing = 0;
  for (size_t i = 0; i < plain.size(); ++i)
    differing += std::bit_cast<uint32_t>(quantised[i]) != std::bit_cast<uint32_t>(plain[i]);
  EXPECT_EQ(differing, 0u) << "of " << plain.size();
}

// The kernels that a server runs, few rows and many: as near to the CPU as bf16 weights are.
void expect_near_the_cpu(const Checkpoint& checkpoint, const Prompt& prompt) {
  const Expanded expanded(checkpoint);
  const auto vocab = static_cast<size_t>(checkpoint.config().vocab_size);
  const auto run = [&](const auto& model, Device device) {
    return run_model(model.config(), model.weights(), prompt, device, /*batch_invariant=*/false);
  };
  const std::vector<float> truth = run(expanded, Device::kCpu);
  const auto median_error = [&](const std::vector<float>& logits) {
    std::vector<double> errors;
    for (size_t row = 0; row < truth.size() / vocab; ++row)
      errors.push_back(
          test::relative_error({logits.data() + row * vocab, vocab}, {truth.data() + row * vocab, vocab}));
    std::nth_element(errors.begin(), errors.begin() + static_cast<ptrdiff_t>(errors.size() / 2),
                     errors.end());
    return errors[errors.size() / 2];
  };
  const double quantised = median_error(run(checkpoint, Device::kCuda));
  const double plain = median_error(run(expanded, Device::kCuda));
  std::printf("median error of a row: quantised %.2e, expanded %.2e\n", quantised, plain);
  EXPECT_LE(quantised, 1.25 * plain + 1e-3);
}

class QuantisedGolden : public testing::TestWithParam<const char*> {
 protected:
  const std::string name = GetParam();
  const test::TensorFile golden{test::golden_dir() / (name + ".golden.safetensors")};
  const Checkpoint checkpoint = Checkpoint::open(test::golden_dir() / name).value();
};

TEST_P(QuantisedGolden, BatchInvariantLogitsHaveTheBitsOfTheExpandedModel) {
  for (const int chunk : {700, 129})
    expect_same_bits(checkpoint, {golden.ints("input_ids"), golden.ints("greedy_ids"), chunk});
}

TEST_P(QuantisedGolden, IsNearTheCpu) {
  for (const int chunk : {700, 61, 2})
    expect_near_the_cpu(checkpoint, {golden.ints("input_ids"), golden.ints("greedy_ids"), chunk});
}

INSTANTIATE_TEST_SUITE_P(Goldens, QuantisedGolden, testing::Values("mxfp8", "mxfp4"));

TEST(QuantisedModel, RandomTinyModelsHaveTheBitsOfTheExpandedOnes) {
  for (const uint64_t seed : {1, 2, 3}) {
    const test::TempDir dir;
    write_synthetic_checkpoint({.seed = seed, .dir = dir.path() / "m", .format = MatrixFormat::kMxfp8})
        .value();
    quantise_checkpoint(
        {.from = dir.path() / "m", .to = dir.path() / "both", .format = QuantFormat::kMxfp4Mxfp8})
        .value();
    Prompt prompt{.ids = std::vector<int32_t>(800), .continuation = {1, 2, 3}, .chunk = 400};
    for (size_t i = 0; i < prompt.ids.size(); ++i)
      prompt.ids[i] = static_cast<int32_t>((i * 7919 + seed * 104729) % 500);
    for (const char* folder : {"m", "both"}) {
      const Checkpoint checkpoint = Checkpoint::open(dir.path() / folder).value();
      expect_same_bits(checkpoint, prompt);
      expect_near_the_cpu(checkpoint, prompt);
    }
  }
}

// A byte of a checkpoint's memory that is another one until the end of a block.
class Spoiled {
 public:
  Spoiled(const Tensor& tensor, int64_t at, uint8_t value)
      : byte_(const_cast<uint8_t*>(static_cast<const uint8_t*>(tensor.data)) + at), was_(*byte_) {
    *byte_ = value;
  }
  Spoiled(const Spoiled&) = delete;
  Spoiled& operator=(const Spoiled&) = delete;
  ~Spoiled() { *byte_ = was_; }

 private:
  uint8_t* const byte_;
  const uint8_t was_;
};

TEST(QuantisedModel, WhatACellCannotHoldIsAnErrorThatNamesItsPlace) {
  const test::TempDir dir;
  ASSERT_TRUE(
      write_text_file(dir.path() / "config.json", synthetic_config("tiny", MatrixFormat::kMxfp8)->config_json)
          .ok());
  const Checkpoint model = Checkpoint::random(dir.path(), 5, {}).value();
  const auto error = [&](const Grid& grid = {}) {
    const auto device = load_device_weights(model.config(), grid, model.weights());
    return device.ok() ? "" : device.error().message;
  };
  const LayerWeights& layer = model.weights().layers[1];
  const int64_t hidden = model.config().hidden_size;
  EXPECT_EQ(error(), "");
  {
    const Spoiled code(layer.q.values, 300 * hidden + 77, 0x7f);
    EXPECT_THAT(error(), AllOf(HasSubstr("layers.1.self_attn.q_proj.weight"), HasSubstr("row 300, column 77"),
                               HasSubstr("0x7f")));
  }
  {
    const Spoiled scale(layer.experts[3].up.scales, 5 * hidden / 32 + 1, 255);
    EXPECT_THAT(error(), AllOf(HasSubstr("experts.3.w3.weight"), HasSubstr("row 5"), HasSubstr("255")));
  }
  {
    // Of the second rank: the first has no part of it.
    const Spoiled scale(layer.mlp.down.scales, 2 * 64 / 32 + 1, 135);
    EXPECT_EQ(error({.tp = 2}), "");
    EXPECT_THAT(error({.tp = 2, .rank = 1}), AllOf(HasSubstr("shared_experts.down_proj.weight"),
                                                   HasSubstr("row 2"), HasSubstr("135"), HasSubstr("134")));
  }
  EXPECT_EQ(error(), "");
}

}  // namespace
}  // namespace sparrow
