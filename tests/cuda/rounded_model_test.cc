// SPDX-License-Identifier: Apache-2.0
// --activation-dtype fp8 on whole models: how far logits move, that it is said, and that small steps do
// without.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "checkpoint/random/synthetic.h"
#include "engine/sequence_runner.h"
#include "support/golden.h"
#include "support/temp_dir.h"

namespace sparrow {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr int kTokens = 4096;

EngineOptions options_of(bool rounds) {
  return {.device = Device::kCuda,
          .cache_tokens = kTokens + 1024,
          .gpu = {.e4m3_tokens = rounds},
          .max_model_tokens = 8192,
          .max_step_tokens = kTokens,
          .max_step_sequences = 16};
}

std::vector<int32_t> random_ids(const ModelConfig& config, uint64_t seed) {
  std::vector<int32_t> ids(kTokens);
  for (size_t i = 0; i < ids.size(); ++i)
    ids[i] =
        static_cast<int32_t>((i * i * 7919 + i * seed * 104729) % static_cast<uint64_t>(config.vocab_size));
  return ids;
}

// Logits of some rows of the last chunk, row after row.
struct Logits {
  size_t vocab;
  std::vector<float> values;

  Logits(const Checkpoint& checkpoint, const std::vector<int32_t>& ids, int chunk,
         const EngineOptions& options)
      : vocab(static_cast<size_t>(checkpoint.config().vocab_size)) {
    constexpr int kRows = 256;
    ModelConfig config = checkpoint.config();
    config.dtype = DType::kBF16;
    SequenceRunner runner(create_runner(config, checkpoint.weights(), options).value());
    Sequence sequence = runner.new_sequence();
    sequence.ids = ids;
    for (int begin = 0; begin < kTokens; begin += chunk) {
      std::vector<int32_t> rows;
      for (int i = 0; i < kRows; ++i) rows.push_back(chunk - kRows + i);
      runner.run(sequence, chunk, rows).value();
    }
    const Tensor logits = runner.logits();
    values.assign(logits.as<float>(), logits.as<float>() + logits.numel());
  }
  std::span<const float> row(size_t r) const { return {values.data() + r * vocab, vocab}; }
  size_t rows() const { return values.size() / vocab; }
};

struct Difference {
  double median, worst;
  int same_best = 0;

  Difference(const Logits& a, const Logits& b) {
    std::vector<double> errors;
    for (size_t r = 0; r < b.rows(); ++r) {
      errors.push_back(test::relative_error(a.row(r), b.row(r)));
      const auto best = [](std::span<const float> row) {
        return std::ranges::max_element(row) - row.begin();
      };
      same_best += best(a.row(r)) == best(b.row(r)) ? 1 : 0;
    }
    std::ranges::sort(errors);
    median = errors[errors.size() / 2], worst = errors.back();
  }
  void print(const std::string& name) const {
    std::printf("%-34s logits off by %.2e (median), %.2e (worst); best id the same in %d of 256 rows\n",
                name.c_str(), median, worst, same_best);
  }
};

void expect_a_bounded_loss(const std::string& name, const Checkpoint& checkpoint, uint64_t seed) {
  const std::vector<int32_t> ids = random_ids(checkpoint.config(), seed);
  const auto run = [&](int chunk, bool rounds) { return Logits(checkpoint, ids, chunk, options_of(rounds)); };
  const Logits plain = run(kTokens, false), plain_small = run(1024, false);
  const Difference lossy(run(kTokens, true), plain), folded(run(1024, true), plain_small);
  const Difference noise(plain_small, plain);
  lossy.print(name + ", e4m3 against bf16");
  folded.print(name + ", small steps against bf16");
  noise.print(name + ", bf16 in other kernels");
  EXPECT_GT(lossy.median, 3 * noise.median) << "nothing was rounded";
  EXPECT_LT(lossy.median, 0.15);
  EXPECT_GT(lossy.same_best, 128);
  EXPECT_LE(folded.median, noise.median);
}

TEST(RoundedModel, TheGoldenModelLosesLittle) {
  expect_a_bounded_loss("golden", Checkpoint::open(test::golden_dir() / "mxfp8").value(), 1);
}

TEST(RoundedModel, RandomModelsLoseLittle) {
  for (const char* preset : {"tiny", "small"}) {
    const test::TempDir dir;
    write_synthetic_checkpoint(
        {.preset = preset, .seed = 3, .dir = dir.path() / "m", .format = MatrixFormat::kMxfp8})
        .value();
    expect_a_bounded_loss(preset, Checkpoint::open(dir.path() / "m").value(), 2);
  }
}

TEST(RoundedModel, SaysThatItIsLossy) {
  const Checkpoint checkpoint = Checkpoint::open(test::golden_dir() / "mxfp8").value();
  ModelConfig config = checkpoint.config();
  config.dtype = DType::kBF16;
  const auto warnings = [&](bool rounds) {
    return create_runner(config, checkpoint.weights(), options_of(rounds)).value()->info().warnings;
  };
  EXPECT_THAT(warnings(false), Not(Contains(HasSubstr("lossy"))));
  EXPECT_THAT(warnings(true), Contains(AllOf(HasSubstr("lossy"), HasSubstr("weights have changed"))));
}

}  // namespace
}  // namespace sparrow
