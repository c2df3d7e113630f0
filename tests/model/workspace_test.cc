// SPDX-License-Identifier: Apache-2.0
// Workspaces: against sums by hand, and against what a forward pass really takes.
#include "model/workspace.h"

#include <gtest/gtest.h>

#include <fstream>
#include <numeric>

#include "checkpoint/checkpoint.h"
#include "checkpoint/random/synthetic.h"
#include "model/batch.h"
#include "model/text_model.h"
#include "support/m3_config.h"
#include "support/temp_dir.h"

namespace sparrow {
namespace {

ModelConfig m3() {
  return parse_config(test::m3_config_json(), "").value();
}

TEST(Workspace, BuffersOfAStepOfM3OnEightGpus) {
  const StepLimits step{.max_tokens = 8192, .max_sequences = 256, .max_context = 131072};
  const auto workspace = gpu_workspace(m3(), {.size = 8}, step);
  ASSERT_TRUE(workspace.ok()) << workspace.error().message;
  EXPECT_EQ(workspace->of("residual, norm, delta"), 3 * 8192 * 6144 * 2);
  // 8 query heads, K, V, index query and index key; then the turned queries and index queries.
  EXPECT_EQ(workspace->of("projections"), 8192 * 128 * 2 * (8 + 1 + 1 + 1 + 1 + 8 + 1));
  EXPECT_EQ(workspace->of("attention output"), 8192 * 8 * 128 * 2);
  EXPECT_EQ(workspace->of("selected blocks"), 8192 * 16 * 4);
  EXPECT_EQ(workspace->of("experts"), 8192 * 5 * 384 * 2 + 8192 * 5 * 6144 * 2);
  EXPECT_EQ(workspace->of("logits"), 256 * 25008 * 4);
  EXPECT_EQ(workspace->of("router as bf16 terms"), int64_t{57} * 3 * 128 * 6144 * 2);
  int64_t sum = 0;
  for (const LedgerRow& row : workspace->rows) sum += row.bytes;
  EXPECT_EQ(sum, workspace->bytes);
}

TEST(Workspace, GrowsWithTheStepAndNotWithoutIt) {
  const auto bytes = [](const StepLimits& step) { return gpu_workspace(m3(), {.size = 8}, step)->bytes; };
  const int64_t base = bytes({2048, 64, 131072});
  EXPECT_GT(bytes({4096, 64, 131072}), base);
  EXPECT_GT(bytes({2048, 128, 131072}), base);
  EXPECT_GT(bytes({2048, 64, 1048576}), base);
  EXPECT_GT(bytes({1, 1, 1}), 0);
}

TEST(Workspace, ShapesThatTheKernelsDoNotTakeAreRefused) {
  ModelConfig odd = m3();
  odd.hidden_size = 96;
  EXPECT_FALSE(gpu_workspace(odd, {.size = 1}, {512, 16, 4096}).ok());
}

// No less than a step takes, on every instruction set and with any number of threads; and not much more, or
// caches would be planned too small.
TEST(Workspace, OfTheCpuIsWhatAForwardPassTakes) {
  const test::TempDir dir;
  const SyntheticConfig texts = synthetic_config("small", DType::kBF16).value();
  std::ofstream(dir.path() / "config.json") << texts.config_json;
  // Layers reuse the same memory: two are as good as eight.
  const auto checkpoint =
      Checkpoint::random(dir.path(), 0, {.overrides = R"({"text_config": {"num_hidden_layers": 2}})"});
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.error().message;
  const ModelConfig& config = checkpoint->config();
  constexpr int kTokens = 512;
  const TextModel model(config, checkpoint->weights());
  const auto cache = KvCache::create(model.cache_shape(kTokens / kBlockTokens));
  ASSERT_TRUE(cache.ok());
  Batch batch;
  batch.ids.assign(kTokens, 7);
  batch.positions.resize(kTokens);
  std::iota(batch.positions.begin(), batch.positions.end(), 0);
  batch.slots.assign(batch.positions.begin(), batch.positions.end());
  batch.cu_seqlens_q = {0, kTokens};
  batch.seq_lens = {kTokens};
  batch.max_blocks = kTokens / kBlockTokens;
  batch.block_table = {0, 1, 2, 3};
  batch.logit_rows = {kTokens - 1};
  std::vector<float> logits(static_cast<size_t>(config.vocab_size));

  for (CpuIsa isa = CpuIsa::kAvx2; isa <= ops::detect_cpu_isa(); isa = CpuIsa(static_cast<int>(isa) + 1))
    for (const int threads : {1, 3}) {
      ThreadPool pool(threads);
      Scratch scratch;
      Exec exec{pool, scratch, isa};
      model.forward(exec, batch, cache.value(), Tensor(logits.data(), DType::kF32, {1, config.vocab_size}));
      const Workspace workspace = cpu_workspace(
          config, {.max_tokens = kTokens, .max_sequences = 1, .max_context = kTokens}, isa, threads);
      const auto planned = static_cast<double>(workspace.bytes - workspace.of("logits"));
      const auto taken = static_cast<double>(scratch.capacity_bytes());
      EXPECT_GE(planned, taken) << ops::name_of(isa) << ", " << threads << " threads";
      EXPECT_LE(planned, 1.3 * taken) << ops::name_of(isa) << ", " << threads << " threads";
    }
}

}  // namespace
}  // namespace sparrow
