// SPDX-License-Identifier: Apache-2.0
// What fp8 index keys cost: how many blocks they select otherwise, and what that does to logits. A CPU's
// cache is rounded as the GPU's store rounds: x to the nearest e4m3, ties to even, no scale. Queries see
// rounded keys exactly as on a GPU, since a prompt runs block by block and a query's own block is selected
// whatever its score. Each case prints a line, which docs/msa-index.md shows.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <numeric>
#include <random>

#include "base/json/json_writer.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/random/synthetic.h"
#include "engine/cpu/cpu_runner.h"
#include "engine/cpu/sampler.h"
#include "engine/sequence_runner.h"
#include "support/golden.h"
#include "support/temp_dir.h"
#include "support/variant.h"

namespace sparrow {
namespace {

using test::BlockMatch;

float round_to_e4m3(float x) {
  constexpr float kLargest = 448;
  const int exponent = std::max(x == 0 ? 0 : std::ilogb(x), -6);  // below 2^-6 steps are those of 2^-6
  const float step = std::ldexp(1.0f, exponent - 3);
  return std::clamp(std::nearbyint(x / step) * step, -kLargest, kLargest);
}
float round_to_bf16(float x) {
  return to_float(to_bf16(x));
}
using Rounding = float (*)(float);

TEST(RoundToE4m3, IsToTheNearestCodeAndToEvenBetweenTwo) {
  for (int code = 0; code < 0x7e; ++code) {
    const float low = e4m3_to_float(static_cast<uint8_t>(code)),
                high = e4m3_to_float(static_cast<uint8_t>(code + 1));
    const float middle = (low + high) / 2;
    EXPECT_EQ(round_to_e4m3(low), low);
    EXPECT_EQ(round_to_e4m3(-high), -high);
    EXPECT_EQ(round_to_e4m3(middle), code % 2 == 0 ? low : high) << code;
    EXPECT_EQ(round_to_e4m3(std::nextafter(middle, 0.0f)), low) << code;
    EXPECT_EQ(round_to_e4m3(std::nextafter(-middle, -1e9f)), -high) << code;
  }
  EXPECT_EQ(round_to_e4m3(1e6f), 448);
}

struct ModelRun {
  std::vector<float> logits;  // of every row
  Capture capture;
};

// The prompt block by block, in f32, with index keys rounded between blocks.
ModelRun run_rounded(const Checkpoint& checkpoint, const std::vector<int32_t>& ids, Rounding rounding) {
  ModelConfig config = checkpoint.config();
  config.dtype = DType::kF32;
  EXPECT_EQ(config.local_blocks, 1);
  const int total = static_cast<int>(ids.size());
  auto cpu =
      CpuRunner::create(config, checkpoint.weights(), total, {.threads = 2, .isa = test::test_isa()}).value();
  const KvCache& cache = cpu->cache();
  SequenceRunner runner(std::move(cpu));
  Sequence sequence = runner.new_sequence();
  sequence.ids = ids;
  ModelRun run;
  for (int begin = 0; begin < total; begin += kBlockTokens) {
    std::vector<int32_t> rows;
    for (int row = 0; row < std::min(kBlockTokens, total - begin); ++row) rows.push_back(row);
    runner.run(sequence, static_cast<int>(rows.size()), rows, &run.capture).value();
    const Tensor logits = runner.logits();
    run.logits.insert(run.logits.end(), logits.as<float>(), logits.as<float>() + logits.numel());
    for (int layer = 0; layer < config.num_layers && rounding != nullptr; ++layer) {
      if (!config.layer_is_sparse[layer]) continue;
      auto* const keys = static_cast<float*>(cache.index_pages(layer));
      const size_t count = cache.shape().index_page_bytes() / sizeof(float) * cache.shape().num_blocks;
      std::transform(keys, keys + count, keys, rounding);
    }
  }
  return run;
}

// Two runs.
struct Agreement {
  BlockMatch blocks;
  double logit_error = 0, greedy = 0;  // of all rows; rows whose best id is the same
};

Agreement compare(const ModelRun& run, const ModelRun& reference, const ModelConfig& config) {
  Agreement result{.logit_error = test::relative_error(run.logits, reference.logits)};
  for (size_t layer = 0; layer < reference.capture.selected_blocks.size(); ++layer)
    result.blocks.add(test::compare_blocks(run.capture.selected_blocks[layer],
                                           reference.capture.selected_blocks[layer], config.top_k_blocks));
  const size_t vocab = config.vocab_size, rows = reference.logits.size() / vocab;
  for (size_t row = 0; row < rows; ++row)
    result.greedy += argmax({run.logits.data() + row * vocab, vocab}) ==
                     argmax({reference.logits.data() + row * vocab, vocab});
  result.greedy /= static_cast<double>(rows);
  return result;
}

void begin_line(JsonWriter& json, const std::string& name, int64_t context, const BlockMatch& fp8,
                const BlockMatch& bf16) {
  json.begin_object().key("case").string(name).key("context").integer(context);
  json.key("rows").integer(fp8.rows).key("equal_rows").integer(fp8.equal_rows);
  json.key("fp8_agrees").number(fp8.share()).key("bf16_agrees").number(bf16.share());
}

struct ModelAgreement {
  Agreement fp8;   // with bf16 keys
  Agreement bf16;  // with f32 keys: what the usual rounding does, to compare
};

ModelAgreement measure(const std::string& name, const Checkpoint& checkpoint,
                       const std::vector<int32_t>& ids) {
  const ModelRun exact = run_rounded(checkpoint, ids, nullptr);
  const ModelRun bf16 = run_rounded(checkpoint, ids, round_to_bf16);
  const ModelRun fp8 = run_rounded(checkpoint, ids, round_to_e4m3);
  const ModelAgreement result{.fp8 = compare(fp8, bf16, checkpoint.config()),
                              .bf16 = compare(bf16, exact, checkpoint.config())};
  JsonWriter json(JsonWriter::Style::kSpaced);
  begin_line(json, name, static_cast<int64_t>(ids.size()), result.fp8.blocks, result.bf16.blocks);
  json.key("logit_error").number(result.fp8.logit_error).key("greedy_agrees").number(result.fp8.greedy);
  std::puts(json.end_object().text().c_str());
  return result;
}

class Fp8IndexGolden : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Goldens, Fp8IndexGolden, testing::Values("f32", "bf16", "yarn"));

// Blocks chosen at random would agree on a third or less. These models have random weights: what they attend
// to hardly stands out, and an expert or a block that falls the other way in one layer changes all after it.
void expect_near(const ModelAgreement& measured) {
  EXPECT_GT(measured.fp8.blocks.rows, 100);
  EXPECT_LT(measured.fp8.blocks.same, measured.fp8.blocks.blocks) << "nothing was rounded";
  EXPECT_GE(measured.fp8.blocks.share(), 0.9);
  EXPECT_GE(measured.bf16.blocks.share(), 0.98);
  EXPECT_LE(measured.fp8.logit_error, 0.2);
  EXPECT_GE(measured.fp8.greedy, 0.85);
}

TEST_P(Fp8IndexGolden, SelectNearlyTheSameBlocksOfAGolden) {
  const test::TensorFile golden(test::golden_dir() / (std::string(GetParam()) + ".golden.safetensors"));
  const Checkpoint checkpoint = Checkpoint::open(test::golden_dir() / GetParam()).value();
  expect_near(measure(std::string("golden ") + GetParam(), checkpoint, golden.ints("input_ids")));
}

TEST(Fp8IndexKeys, SelectNearlyTheSameBlocksInRandomModels) {
  for (const int length : {1000, 3000}) {
    const test::TempDir dir;
    write_synthetic_checkpoint(
        {.preset = "tiny", .seed = static_cast<uint64_t>(length), .dir = dir.path() / "model"})
        .value();
    const Checkpoint checkpoint = Checkpoint::open(dir.path() / "model").value();
    std::vector<int32_t> ids(length);
    for (int i = 0; i < length; ++i) ids[i] = static_cast<int32_t>(i * 7919 % checkpoint.config().vocab_size);
    expect_near(measure("random model", checkpoint, ids));
  }
}

// Index vectors without a model: [rows, kHeadDim], each of the length that a norm gives.
std::vector<float> normed(std::vector<float> rows) {
  for (size_t row = 0; row < rows.size(); row += msa::kHeadDim) {
    double sum = 0;
    for (int c = 0; c < msa::kHeadDim; ++c) sum += double{rows[row + c]} * rows[row + c];
    const auto factor = static_cast<float>(1 / std::sqrt(sum / msa::kHeadDim));
    for (int c = 0; c < msa::kHeadDim; ++c) rows[row + c] *= factor;
  }
  return rows;
}

std::vector<float> random_rows(int64_t count, std::mt19937& random) {
  std::normal_distribution<float> normal;
  std::vector<float> rows(static_cast<size_t>(count) * msa::kHeadDim);
  for (float& x : rows) x = normal(random);
  return rows;
}

// What the newest queries of one sequence select.
std::vector<int32_t> select(const std::vector<float>& queries, std::vector<float> keys, int top_k,
                            Rounding rounding) {
  if (rounding != nullptr) std::ranges::transform(keys, keys.begin(), rounding);
  const auto rows = static_cast<int32_t>(queries.size() / msa::kHeadDim);
  const auto context = static_cast<int32_t>(keys.size() / msa::kHeadDim);
  const std::vector<int32_t> starts = {0, rows};
  std::vector<int32_t> table(static_cast<size_t>(context / msa::kBlock));
  std::iota(table.begin(), table.end(), 0);
  const msa::Plan plan{.num_requests = 1,
                       .cu_seqlens_q = starts.data(),
                       .seq_lens = &context,
                       .block_table = table.data(),
                       .max_blocks = static_cast<int>(table.size())};
  std::vector<int32_t> selected(static_cast<size_t>(rows) * top_k);
  const msa::IndexParams params{.type = msa::Type::kF32,
                                .heads = {1, 1},
                                .selection = {.top_k = top_k},
                                .q = queries.data(),
                                .k_pages = keys.data(),
                                .selected = selected.data()};
  const msa::Isa isa = msa::detect_isa();
  std::vector<std::byte> workspace(static_cast<size_t>(msa::index_workspace_bytes(plan, params, isa, {})));
  msa::index(plan, params, isa, {}, workspace.data());
  return selected;
}

// Independent vectors are the hardest: nothing stands out, the 15th and the 16th best block are next to
// equal. In the others the tokens of a block have something in common, and a query has it with some blocks.
TEST(Fp8IndexKeys, SelectNearlyTheSameBlocksByRandomVectors) {
  constexpr int kRows = 64, kTopK = 16, kBest = 4;
  for (const int context : {8192, 32768, 131072})
    for (const bool topics : {false, true}) {
      std::mt19937 random(static_cast<uint32_t>(context));
      std::vector<float> keys = random_rows(context, random), queries = random_rows(kRows, random);
      if (topics) {
        const int blocks = context / msa::kBlock;
        const std::vector<float> themes = random_rows(blocks, random);
        for (size_t i = 0; i < keys.size(); ++i)
          keys[i] += themes[i / (msa::kBlock * msa::kHeadDim) * msa::kHeadDim + i % msa::kHeadDim];
        for (int row = 0; row < kRows; ++row)
          for (int i = 0; i < 8; ++i) {
            const size_t theme = random() % static_cast<uint32_t>(blocks);
            for (int c = 0; c < msa::kHeadDim; ++c)
              queries[row * msa::kHeadDim + c] += themes[theme * msa::kHeadDim + c];
          }
      }
      keys = normed(keys), queries = normed(queries);
      const auto fp8 = select(queries, keys, kTopK, round_to_e4m3),
                 bf16 = select(queries, keys, kTopK, round_to_bf16);
      const BlockMatch agrees = test::compare_blocks(fp8, bf16, kTopK);
      const BlockMatch usual = test::compare_blocks(bf16, select(queries, keys, kTopK, nullptr), kTopK);
      const auto best = select(queries, keys, 1 + kBest, round_to_bf16);
      int64_t kept = 0;
      for (int row = 0; row < kRows; ++row)
        for (int i = 0; i < kBest; ++i) {
          const auto* const from = fp8.data() + row * kTopK;
          kept += std::find(from, from + kTopK, best[row * (1 + kBest) + i]) != from + kTopK;
        }
      JsonWriter json(JsonWriter::Style::kSpaced);
      begin_line(json, topics ? "vectors with topics" : "independent vectors", context, agrees, usual);
      json.key("best_kept").number(static_cast<double>(kept) / (kRows * kBest));
      std::puts(json.end_object().text().c_str());
      EXPECT_EQ(agrees.rows, kRows);
      EXPECT_LT(agrees.same, agrees.blocks) << "nothing was rounded";
      EXPECT_GE(agrees.share(), 0.9);
      EXPECT_EQ(kept, kRows * kBest);
    }
}

}  // namespace
}  // namespace sparrow
