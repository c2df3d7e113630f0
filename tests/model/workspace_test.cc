// SPDX-License-Identifier: Apache-2.0
// Workspaces: against sums by hand, and against what a forward pass really takes.
#include "model/workspace.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <numeric>

#include "base/math.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/random/synthetic.h"
#include "model/batch.h"
#include "model/device_layout.h"
#include "model/text_model.h"
#include "support/m3_config.h"
#include "support/temp_dir.h"

namespace sparrow {
namespace {

ModelConfig m3(QuantFormat quant = QuantFormat::kNone) {
  ModelConfig config = parse_config(test::m3_config_json(), "").value();
  config.quant = quant;
  return config;
}

GpuStepLimits limits_of(int tokens, int sequences, int64_t context) {
  return {.max_step_tokens = tokens,
          .max_step_sequences = sequences,
          .max_logits = max_logit_rows(tokens, sequences),
          .max_context = context};
}

constexpr int kHopperSms = 132;

TEST(Workspace, BuffersOfAStepOfM3OnEightGpus) {
  const auto workspace = gpu_workspace(m3(), {.tp = 8}, limits_of(8192, 256, 131072), kHopperSms);
  ASSERT_TRUE(workspace.ok()) << workspace.error().message;
  // The residual of one token has a second place; norm and delta lie where other ranks reach them.
  EXPECT_EQ(workspace->of("residual, norm, delta"), 8192 * 6144 * 2 + 6144 * 2);
  // Two sets of 128 rows of mailboxes, norm and delta, all logits, ids; lists of blocks from 8 ranks; words,
  // of which six flags for each of 8 ranks have 128 bytes each; in pages of 2 MiB.
  constexpr int64_t kPage = 2 << 20;
  const int64_t shared = 2 * 128 * 6144 * 2 + 2 * 8192 * 6144 * 2 + 256 * 200064 * 4 + 256 * 4 +
                         8 * 8192 * 128 + (1 + 6 * 8) * 128;
  EXPECT_EQ(workspace->of("shared with other ranks"), (shared + kPage - 1) / kPage * kPage);
  // 8 query heads, K, V, index key and all index queries; then the turned queries and index queries.
  EXPECT_EQ(workspace->of("projections"), 8192 * 128 * 2 * (8 + 1 + 1 + 1 + 4 + 8 + 4));
  EXPECT_EQ(workspace->of("attention output"), 8192 * 8 * 128 * 2);
  // Lists of 128 bytes for each index head.
  EXPECT_EQ(workspace->of("selected blocks"), 8192 * 16 * 4 + 8192 * 4 * 128);
  // Ids and weights; logits of few rows in 8 parts, and of many.
  EXPECT_EQ(workspace->of("routing"), 8192 * 4 * (4 + 4) + 4 * 128 * (768 * 8 + 8192));
  // Hidden rows and outputs of 4 experts and the shared one; a row for each place and a place for each row;
  // the shares of experts, of at least 48 places where there are many; two words.
  const int64_t shares = (16 * (128 + 1 + 8192 * 5 / 48) + 255) / 256 * 256;
  EXPECT_EQ(workspace->of("experts"),
            8192 * 5 * 384 * 2 + 8192 * 5 * 6144 * 2 + 8192 * (5 + 4) * 4 + shares + 2 * 256);
  EXPECT_EQ(workspace->of("logits"), 256 * 25008 * 4);
  EXPECT_EQ(workspace->of("router as bf16 terms"), int64_t{57} * 3 * 128 * 6144 * 2);
  int64_t sum = 0;
  for (const LedgerRow& row : workspace->rows) sum += row.bytes;
  EXPECT_EQ(sum, workspace->bytes);
}

// Sums of f32 instead of delta: as many as wait at a time of the parts that a rank has.
TEST(Workspace, BatchInvariantStepsSumInParts) {
  GpuStepLimits limits = limits_of(8192, 256, 131072);
  limits.batch_invariant = true;
  constexpr int64_t kRows = int64_t{8192} * 6144;
  const struct {
    int tp, slots;  // in memory of its own
  } cases[] = {{1, 4}, {2, 2}, {4, 1}, {8, 0}};
  for (const auto& c : cases) {
    const auto workspace = gpu_workspace(m3(), {.tp = c.tp}, limits, kHopperSms).value();
    EXPECT_EQ(workspace.of("sums in parts"), c.slots * kRows * 4) << c.tp;
    EXPECT_EQ(workspace.of("residual, norm, delta"), (c.tp == 1 ? 2 : 1) * kRows * 2 + 6144 * 2) << c.tp;
  }
  const auto invariant = gpu_workspace(m3(), {.tp = 8}, limits, kHopperSms).value();
  const int64_t shared =
      2 * 128 * 6144 * 4 + kRows * (2 + 4) + 256 * 200064 * 4 + 256 * 4 + 8 * 8192 * 128 + (1 + 6 * 8) * 128;
  EXPECT_EQ(invariant.of("shared with other ranks"), round_up(shared, int64_t{2} << 20));
}

// Over NCCL there are no mailboxes, but places for messages: of a group's parts of the rows of all groups,
// and, of several groups, of sums in f32.
TEST(Workspace, MessagesOfNcclHaveRoomForTheLargestStep) {
  GpuStepLimits limits = limits_of(8192, 256, 131072);
  limits.nccl = true;
  constexpr int64_t kTokens = 8192, kHidden = 6144, kLogits = 256 * 200064 * 4, kIds = 256 * 4;
  const auto rows = [&](const Grid& grid, std::string_view name) {
    return gpu_workspace(m3(), grid, limits, kHopperSms)->of(name);
  };
  EXPECT_EQ(rows({.tp = 8}, "exchanged with other ranks"),
            kTokens * kHidden * (2 + 2) + kLogits + kIds + 8 * kTokens * 128);
  EXPECT_EQ(rows({.tp = 8}, "NCCL's messages"), (kTokens + 8) * kHidden * 2);
  const Grid two{.tp = 8, .dp = 2, .expert_parallel = true};
  EXPECT_EQ(rows(two, "exchanged with other ranks"),
            2 * kTokens * kHidden * (2 + 2) + kLogits + kIds + 8 * kTokens * 128);
  EXPECT_EQ(rows(two, "NCCL's messages"),
            2 * (kTokens + 8) * kHidden * 2 + 2 * (2 * (kTokens / 8 + 1) * kHidden * 4));
  limits.batch_invariant = true;
  EXPECT_EQ(rows({.tp = 8}, "NCCL's messages"), (kTokens + 8) * kHidden * 4);
  const auto of_two = gpu_workspace(m3(), two, limits, kHopperSms);
  for (const LedgerRow& row : of_two->rows) EXPECT_NE(row.name, "shared with other ranks");
  // What is not exchanged takes as much either way.
  GpuStepLimits in_node = limits;
  in_node.nccl = false;
  EXPECT_EQ(gpu_workspace(m3(), {.tp = 8}, limits, kHopperSms)->of("experts"),
            gpu_workspace(m3(), {.tp = 8}, in_node, kHopperSms)->of("experts"));
}

TEST(Workspace, ARankHasItsShareOfEightParts) {
  const ModelConfig config = m3();
  for (const int tp : {1, 2, 4, 8}) {
    EXPECT_EQ(output_parts(config, 64 / tp), 8 / tp);
    EXPECT_EQ(expert_parts(config, 128, 3072 / tp), 8 / tp);
    EXPECT_EQ(expert_parts(config, 0, 12288 / tp), 8 / tp);
  }
  // Parts are whole tiles of columns: an expert of three tiles is one part.
  ModelConfig odd = config;
  odd.expert_intermediate_size = 192;
  EXPECT_EQ(expert_parts(odd, 128, 192), 1);
}

// Heads of zeros fill a group up to what the kernels take, channels of zeros a tile.
TEST(Workspace, ZerosMakeNoMoreParts) {
  ModelConfig small = m3();
  small.num_query_heads = 4, small.head_dim = 128;
  EXPECT_EQ(output_parts(small, 16), 8);  // 2,048 columns, 512 of them real
  EXPECT_EQ(output_parts(small, 6), 4);   // 12 tiles
  for (const auto& [channels, here] : {std::pair{32, 64}, {96, 128}, {160, 192}}) {
    small.expert_intermediate_size = channels;
    EXPECT_EQ(expert_parts(small, 8, here), 1) << channels;
  }
}

TEST(Workspace, ARankAloneSharesNothing) {
  const auto workspace = gpu_workspace(m3(), {}, limits_of(8192, 256, 131072), kHopperSms).value();
  EXPECT_EQ(workspace.of("residual, norm, delta"), 3 * 8192 * 6144 * 2 + 6144 * 2);
  for (const LedgerRow& row : workspace.rows) EXPECT_NE(row.name, "shared with other ranks");
}

TEST(Workspace, AQuantisedModelHasRoomForOneMatrixAsBf16) {
  const auto workspace = [](QuantFormat quant) {
    return gpu_workspace(m3(quant), {.tp = 8}, limits_of(8192, 256, 131072), kHopperSms).value();
  };
  // The larger of q/k/v with all index heads and the output matrix.
  constexpr int64_t kMatrix = 15 * 128 * 6144 * 2;
  EXPECT_EQ(workspace(QuantFormat::kMxfp8).of("expanded matrix"), kMatrix);
  EXPECT_EQ(workspace(QuantFormat::kMxfp8).bytes, workspace(QuantFormat::kNone).bytes + kMatrix);
}

TEST(Workspace, GrowsWithTheStepAndNotWithoutIt) {
  const auto bytes = [](int tokens, int sequences, int64_t context) {
    return gpu_workspace(m3(), {.tp = 8}, limits_of(tokens, sequences, context), kHopperSms)->bytes;
  };
  const int64_t base = bytes(2048, 64, 131072);
  EXPECT_GT(bytes(4096, 64, 131072), base);
  EXPECT_GT(bytes(2048, 128, 131072), base);
  EXPECT_GT(bytes(2048, 64, 1048576), base);
  EXPECT_GT(bytes(1, 1, 1), 0);
}

// Experts run the rows of all groups, which come over the memory that ranks share. The rest is a group's.
TEST(Workspace, HoldsTheRowsOfAllGroupsWhereTheyMeet) {
  const ModelConfig config = m3(QuantFormat::kNone);
  const GpuStepLimits limits = limits_of(64, 16, 4096);
  const Grid two{.tp = 4, .dp = 2}, whole{.tp = 4, .dp = 2, .expert_parallel = true};
  const auto rows = [&](const Grid& grid, std::string_view name) {
    return gpu_workspace(config, grid, limits, kHopperSms)->of(name);
  };
  constexpr int kAll = 128;
  const auto experts = [&](int count, int inter) {
    return ops::cuda::moe_workspace_bytes(expert_shape(config, count, inter), kAll);
  };
  EXPECT_EQ(peer_shape(config, two, limits).max_rows, kAll);
  EXPECT_EQ(rows(two, "shared with other ranks"), ops::cuda::peer_bytes(peer_shape(config, two, limits)));
  EXPECT_EQ(rows(two, "experts"), experts(128, 384));
  EXPECT_EQ(rows(whole, "experts"), experts(16, 3072) + int64_t{kAll} * config.hidden_size * 2);
  EXPECT_EQ(rows(two, "projections"), rows({.tp = 4}, "projections"));
}

// With memory, the buffers of a step lie behind each other in it, each at its alignment, and fill it.
TEST(Workspace, BuffersOfAStepDoNotOverlap) {
  const ModelConfig config = m3(QuantFormat::kMxfp8);
  const RankShape rank = rank_shape(make_device_layout(config, {.tp = 8}).value());
  const GpuStepLimits limits = limits_of(64, 16, 4096);
  constexpr int64_t kAttention = 1000;
  Arena counted;
  lay_out_step<BFloat16>(counted, config, rank, limits, kAttention);
  std::byte* const base = reinterpret_cast<std::byte*>(size_t{1} << 20);  // never touched
  Arena arena(base);
  const StepBuffers<BFloat16> at = lay_out_step<BFloat16>(arena, config, rank, limits, kAttention);
  EXPECT_EQ(arena.used(), counted.used());
  const int64_t tokens = 64, hidden = config.hidden_size;
  std::vector<std::pair<const void*, int64_t>> buffers = {
      {at.residual, tokens * hidden * 2},  {at.normed, tokens * hidden * 2},
      {at.delta, tokens * hidden * 2},     {at.next_residual, hidden * 2},
      {at.qkv, tokens * 15 * 128 * 2},     {at.q, tokens * 8 * 128 * 2},
      {at.index_q, tokens * 128 * 2},      {at.candidates, tokens * 4 * 16 * 8},
      {at.attended, tokens * 8 * 128 * 2}, {at.selected, tokens * 16 * 4},
      {at.attention, kAttention},          {at.expert_ids, tokens * 4 * 4},
      {at.expert_weights, tokens * 4 * 4}, {at.router, 4 * 128 * 9 * tokens},
      {at.logits, tokens * 25008 * 4},     {at.products, 32 << 20},
      {at.expanded, 15 * 128 * hidden * 2}};
  buffers.emplace_back(at.experts, ops::cuda::moe_workspace_bytes(expert_shape(config, 128, 384), 64));
  for (const BFloat16* part : at.router_parts)
    if (part != nullptr) buffers.emplace_back(part, 3 * 128 * hidden * 2);
  std::sort(buffers.begin(), buffers.end());
  for (size_t i = 0; i < buffers.size(); ++i) {
    const auto* begin = static_cast<const std::byte*>(buffers[i].first);
    const auto* end =
        i + 1 < buffers.size() ? static_cast<const std::byte*>(buffers[i + 1].first) : base + arena.used();
    EXPECT_EQ((begin - base) % 256, 0);
    EXPECT_LE(buffers[i].second, end - begin) << "buffer " << i;
  }
}

TEST(Workspace, ShapesThatTheKernelsDoNotTakeAreRefused) {
  ModelConfig odd = m3();
  odd.hidden_size = 96;
  EXPECT_FALSE(gpu_workspace(odd, {.tp = 1}, limits_of(512, 16, 4096), kHopperSms).ok());
}

// No less than a step takes, on every instruction set and with any number of threads; and not much more, or
// caches would be planned too small.
TEST(Workspace, OfTheCpuIsWhatAForwardPassTakes) {
  const test::TempDir dir;
  const SyntheticConfig texts = synthetic_config("small", MatrixFormat::kBF16).value();
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
      const Workspace workspace =
          cpu_workspace(config, {.max_step_tokens = kTokens, .max_step_sequences = 1, .max_context = kTokens},
                        isa, threads);
      const auto planned = static_cast<double>(workspace.bytes - workspace.of("logits"));
      const auto taken = static_cast<double>(scratch.capacity_bytes());
      EXPECT_GE(planned, taken) << ops::name_of(isa) << ", " << threads << " threads";
      EXPECT_LE(planned, 1.3 * taken) << ops::name_of(isa) << ", " << threads << " threads";
    }
}

}  // namespace
}  // namespace sparrow
