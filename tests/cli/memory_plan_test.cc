// SPDX-License-Identifier: Apache-2.0
// The plan of a model's memory: the real M3 against published sizes, and small ones against what a process
// allocates.
#include "cli/plan/memory_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "checkpoint/random/synthetic.h"
#include "cli/load_model.h"
#include "engine/memory/gpu_memory.h"
#include "support/m3_config.h"
#include "support/temp_dir.h"

namespace sparrow::cli {
namespace {

using testing::Contains;
using testing::HasSubstr;
using testing::StartsWith;

constexpr double kGiB = 1024.0 * 1024 * 1024;
constexpr double kPublished = 1e-3;  // what the plan may be off from the published sizes

ModelConfig m3(bool mxfp8 = false) {
  return parse_config(mxfp8 ? test::m3_mxfp8_config_json() : test::m3_config_json(), "").value();
}

MemoryPlan plan_of(const ModelConfig& config, const MemoryPlanOptions& options) {
  const auto plan = make_memory_plan(config, options);
  EXPECT_TRUE(plan.ok()) << (plan.ok() ? "" : plan.error().message);
  return plan.value();
}

TEST(MemoryPlan, CountsSumsInParts) {
  const Grid two{.tp = 2};
  const auto plan = plan_of(m3(), {.gpus = 2, .grid = two, .gpu = "512G", .batch_invariant = true});
  EXPECT_EQ(plan.workspace.of("sums in parts"), int64_t{2} * 8192 * 6144 * 4);  // of its four parts, two wait
}

TEST(MemoryPlan, CountsRoundedTokens) {
  const auto workspace = [](const char* activations) {
    return plan_of(m3(/*mxfp8=*/true), {.gpus = 8, .activation_dtype = activations}).workspace;
  };
  const Workspace bf16 = workspace("auto"), fp8 = workspace("fp8");
  constexpr int64_t kTokens = 8192, kHidden = 6144;
  EXPECT_EQ(fp8.of("rounded rows"), kTokens * (kHidden + 4));
  EXPECT_EQ(fp8.bytes - bf16.bytes, kTokens * (kHidden + 4));
  EXPECT_THAT(make_memory_plan(m3(), {.gpus = 8, .activation_dtype = "fp8"}).error().message,
              HasSubstr("needs a model with experts in MXFP8"));
  EXPECT_THAT(make_memory_plan(m3(/*mxfp8=*/true), {.gpu = "cpu", .activation_dtype = "fp8"}).error().message,
              HasSubstr("needs a GPU"));
}

// What a rank holds of the model but for index heads of other ranks, which nobody publishes.
double own_gib(const MemoryPlan& plan) {
  int64_t bytes = plan.weight_bytes;
  for (const LedgerRow& row : plan.weights)
    if (row.name == "index heads of other ranks, padding") bytes -= row.bytes;
  return static_cast<double>(bytes) / kGiB;
}

TEST(MemoryPlan, OfTheRealModelAgreesWithPublishedSizes) {
  const struct {
    int gpus;
    double gib;
  } ranks[] = {{1, 793.90}, {4, 198.66}, {8, 99.59}};
  for (const auto& [gpus, gib] : ranks) {
    const MemoryPlan plan = plan_of(m3(), {.gpus = gpus});
    EXPECT_NEAR(own_gib(plan) / gib, 1.0, kPublished) << gpus;
    EXPECT_NEAR(static_cast<double>(plan.weight_bytes) / kGiB - own_gib(plan), gpus == 1 ? 0 : 0.25, 0.01);
    int64_t sum = 0;
    for (const LedgerRow& row : plan.weights) sum += row.bytes;
    EXPECT_EQ(sum, plan.weight_bytes);
  }
  const MemoryPlan eight = plan_of(m3(), {.gpus = 8});
  EXPECT_EQ(eight.kv_token_bytes, 60 * 512);
  EXPECT_EQ(eight.index_token_bytes, 57 * 256);
  EXPECT_EQ(eight.block_bytes(), 45312 * 128);
  const MemoryPlan fp8 = plan_of(m3(), {.gpus = 8, .kv_cache_dtype = "fp8"});
  EXPECT_EQ(fp8.block_bytes(), 29952 * 128);
  const MemoryPlan index = plan_of(m3(), {.gpus = 8, .index_cache_dtype = "fp8"});
  EXPECT_EQ(index.block_bytes(), 38016 * 128);
  const MemoryPlan both = plan_of(m3(), {.gpus = 8, .kv_cache_dtype = "fp8", .index_cache_dtype = "fp8"});
  EXPECT_EQ(both.block_bytes() * 2, eight.block_bytes());
  EXPECT_GT(both.cache_tokens(), 2 * eight.cache_tokens() - 2 * 128);
}

ModelConfig preset(std::string_view name) {
  const SyntheticConfig texts = synthetic_config(name).value();
  return parse_config(texts.config_json, texts.generation_config_json).value();
}

// Weights stay quantised: a rank holds what the checkpoint stores, but for what the kernels fill up.
TEST(MemoryPlan, OfTheQuantisedModelHoldsWhatIsStored) {
  const struct {
    const char* name;
    int gpus;
    double gib;
  } ranks[] = {{"m3-mxfp8", 8, 51.71},
               {"m3-mxfp8", 4, 103.1},
               {"m3-mxfp4", 8, 28.4},
               {"m3-mxfp4", 4, 56.3},
               {"m3-mxfp4", 2, 112.3}};
  constexpr double kRounded = 2e-3;  // given with one decimal
  for (const auto& [name, gpus, gib] : ranks) {
    const MemoryPlan plan = plan_of(preset(name), {.gpus = gpus});
    EXPECT_NEAR(own_gib(plan) / gib, 1.0, kRounded) << name << gpus;
    EXPECT_NEAR(static_cast<double>(plan.stored_bytes) / kGiB / own_gib(plan), 1.0, kPublished);
    EXPECT_TRUE(plan.fits) << name << gpus;
    int64_t sum = 0;
    for (const LedgerRow& row : plan.weights) sum += row.bytes;
    EXPECT_EQ(sum, plan.weight_bytes);
  }
}

// Half the GPUs with MXFP8, a quarter with MXFP4; an fp8 cache holds nearly twice the tokens.
TEST(MemoryPlan, OfTheQuantisedModelNeedsFewerGpus) {
  for (const auto& [name, gpus] : {std::pair{"m3", 8}, {"m3-mxfp8", 4}, {"m3-mxfp4", 2}}) {
    const MemoryPlan plan = plan_of(preset(name), {.gpus = gpus});
    const MemoryPlan fp8 = plan_of(preset(name), {.gpus = gpus, .kv_cache_dtype = "fp8"});
    EXPECT_TRUE(plan.fits) << name;
    EXPECT_FALSE(plan_of(preset(name), {.gpus = gpus / 2}).fits) << name;
    EXPECT_GT(plan.cache_tokens(), 100'000) << name;
    EXPECT_GT(static_cast<double>(fp8.cache_tokens()), 1.45 * static_cast<double>(plan.cache_tokens()))
        << name;
  }
}

TEST(MemoryPlan, SharesOutExactlyWhatMayBeUsed) {
  for (const double share : {0.85, 0.9, 1.0}) {
    const MemoryPlan plan = plan_of(m3(), {.gpus = 8, .gpu_memory_utilization = share});
    EXPECT_TRUE(plan.fits);
    EXPECT_LE(plan.used_bytes(), plan.budget_bytes);
    EXPECT_GT(plan.used_bytes() + plan.block_bytes(), plan.budget_bytes);
    EXPECT_EQ(plan.cache_tokens(), plan.num_blocks * 128);
  }
}

// What is shown is what the engine counts for itself, row by row.
TEST(MemoryPlan, ShowsWhatARankAllocates) {
  for (const auto& [kv, index] :
       {std::pair{"auto", "auto"}, {"fp8", "auto"}, {"auto", "fp8"}, {"fp8", "fp8"}}) {
    const MemoryPlan plan = plan_of(m3(), {.gpus = 8,
                                           .max_model_len = 131072,
                                           .kv_cache_dtype = kv,
                                           .index_cache_dtype = index,
                                           .max_step_sequences = 64,
                                           .max_step_tokens = 2048});
    const GpuMemory memory = plan_gpu_memory(m3(), {.tp = 8},
                                             {.max_step_tokens = 2048,
                                              .max_step_sequences = 64,
                                              .max_logits = 256,
                                              .max_context = 131072,
                                              .kv_dtype = plan.kv_dtype,
                                              .index_dtype = plan.index_dtype},
                                             /*num_sms=*/132)
                                 .value();
    EXPECT_EQ(plan.weight_bytes, memory.weight_bytes);
    ASSERT_EQ(plan.workspace.rows.size(), memory.workspace.rows.size());
    for (const LedgerRow& row : plan.workspace.rows)
      EXPECT_EQ(row.bytes, memory.workspace.of(row.name)) << row.name;
    EXPECT_EQ(plan.driver.bytes, memory.driver.bytes);
    EXPECT_EQ(plan.pinned_bytes, memory.pinned_bytes);
    EXPECT_EQ(plan.used_bytes(),
              plan.weight_bytes + plan.workspace.bytes + plan.driver.bytes + plan.cache_bytes());
  }
}

// For every grid, over the memory of a node's GPUs or over NCCL.
TEST(MemoryPlan, ShowsWhatARankAllocatesHoweverRanksExchange) {
  const struct {
    Grid grid;
    int nodes;
    bool peer_memory, nccl;
  } cases[] = {{{.tp = 8}, 1, true, false},
               {{.tp = 8}, 1, false, true},
               {{.tp = 4, .dp = 2}, 1, true, false},
               {{.tp = 4, .dp = 2}, 2, true, true},
               {{.tp = 4, .dp = 2, .expert_parallel = true}, 2, true, true},
               {{.tp = 8, .dp = 2, .expert_parallel = true}, 2, true, true},
               {{.tp = 8, .dp = 2, .expert_parallel = true}, 1, true, true},  // more than kernels reach
               {{.tp = 8, .dp = 8, .expert_parallel = true}, 8, true, true}};
  for (const auto& [grid, nodes, peer_memory, nccl] : cases) {
    SCOPED_TRACE(describe(grid));
    const MemoryPlan plan = plan_of(m3(), {.gpus = grid.world(),
                                           .grid = grid,
                                           .num_nodes = nodes,
                                           .peer_memory = peer_memory,
                                           .max_model_len = 131072});
    const GpuMemory memory = plan_gpu_memory(m3(), grid,
                                             {.max_step_tokens = 8192,
                                              .max_step_sequences = 256,
                                              .max_logits = 256,
                                              .max_context = 131072,
                                              .nccl = nccl},
                                             /*num_sms=*/132)
                                 .value();
    ASSERT_EQ(plan.workspace.rows.size(), memory.workspace.rows.size());
    for (const LedgerRow& row : plan.workspace.rows)
      EXPECT_EQ(row.bytes, memory.workspace.of(row.name)) << row.name;
    EXPECT_EQ(plan.driver.bytes, memory.driver.bytes);
    EXPECT_EQ(plan.pinned_bytes, memory.pinned_bytes);
  }
  EXPECT_THAT(make_memory_plan(m3(), {.gpus = 8, .grid = Grid{.tp = 8}, .num_nodes = 2}).error().message,
              HasSubstr("TP4 x DP2 would do"));
}

// Every rank has the whole tower.
TEST(MemoryPlan, CountsTheVisionTower) {
  const MemoryPlan text = plan_of(m3(), {.gpus = 8}), all = plan_of(m3(), {.gpus = 8, .vision = true});
  const TowerMemory tower = plan_tower(m3(), GpuOptions{}.feature_tokens).value();
  EXPECT_EQ(all.weight_bytes - text.weight_bytes, tower.weight_bytes);
  EXPECT_EQ(all.workspace.bytes - text.workspace.bytes, tower.workspace.bytes);
  EXPECT_EQ(all.pinned_bytes - text.pinned_bytes, tower.pinned_bytes);
  EXPECT_NEAR(static_cast<double>(tower.weight_bytes) / kGiB, 1.62, 0.02);  // 866M parameters, most in bf16
  EXPECT_EQ(all.workspace.of("images: features"), GpuOptions{}.feature_tokens * 6144 * 2);
  int64_t sum = 0;
  for (const LedgerRow& row : all.weights) sum += row.bytes;
  EXPECT_EQ(sum, all.weight_bytes);
  EXPECT_LT(all.num_blocks, text.num_blocks);
}

TEST(MemoryPlan, CountsWholeRequestsInWholeBlocks) {
  // 129 tokens take two blocks.
  const MemoryPlan plan = plan_of(m3(), {.gpus = 8, .max_model_len = 129});
  EXPECT_EQ(plan.full_requests(), plan.num_blocks / 2);
  EXPECT_EQ(plan.longest_request(), 129);
}

TEST(MemoryPlan, WhatDoesNotFitIsToldWhatWould) {
  const MemoryPlan weights = plan_of(m3(), {.gpus = 4});
  EXPECT_FALSE(weights.fits);
  EXPECT_EQ(weights.num_blocks, 0);
  EXPECT_THAT(weights.advice.front(), StartsWith("does not fit: weights, workspace and one block"));
  EXPECT_THAT(weights.advice, Contains(StartsWith("fits with --gpus 8")));

  const MemoryPlan length = plan_of(m3(), {.gpus = 8, .max_model_len = 700'000});
  EXPECT_FALSE(length.fits);
  EXPECT_THAT(length.advice.front(), HasSubstr("a request of 700,000 tokens"));
  EXPECT_THAT(length.advice, Contains(StartsWith("fits with --kv-cache-dtype fp8:")));
  EXPECT_THAT(length.advice, Contains(StartsWith("fits with --kv-cache-dtype fp8 --index-cache-dtype fp8:")));
  const std::string shorter = strf("fits with --max-model-len {}", length.cache_tokens());
  EXPECT_THAT(length.advice, Contains(shorter));
  // The advice is true.
  EXPECT_TRUE(plan_of(m3(), {.gpus = 8, .max_model_len = length.cache_tokens()}).fits);
  EXPECT_TRUE(plan_of(m3(), {.gpus = 8, .max_model_len = 700'000, .kv_cache_dtype = "fp8"}).fits);
  // A million tokens take both.
  MemoryPlanOptions million{.gpus = 8, .max_model_len = 1'000'000, .kv_cache_dtype = "fp8"};
  EXPECT_THAT(plan_of(m3(), million).advice, Contains(HasSubstr("--index-cache-dtype fp8:")));
  million.index_cache_dtype = "fp8";
  EXPECT_TRUE(plan_of(m3(), million).fits);

  const MemoryPlan little = plan_of(m3(), {.gpus = 8, .kv_cache_bytes = 1});
  EXPECT_THAT(little.advice.front(), HasSubstr("--kv-cache-memory is 1 B, less than one block of"));
  const MemoryPlan cache = plan_of(m3(), {.gpus = 8, .kv_cache_bytes = int64_t{100} << 30});
  EXPECT_FALSE(cache.fits);
  EXPECT_THAT(cache.advice, Contains(StartsWith("fits with no --kv-cache-memory")));
}

TEST(MemoryPlan, AModelLongerThanTheCacheFitsAndSaysSo) {
  const MemoryPlan plan = plan_of(m3(), {.gpus = 8});
  EXPECT_TRUE(plan.fits);
  EXPECT_EQ(plan.full_requests(), 0);
  EXPECT_THAT(plan.advice.front(), StartsWith("requests end at"));
  EXPECT_THAT(plan.advice, Contains(StartsWith("fits with --gpus 16")));
}

TEST(MemoryPlan, CardsThatTheKernelsAreNotForAreForComparison) {
  const MemoryPlan plan = plan_of(m3(), {.gpus = 8, .gpu = "b200", .max_model_len = 8192});
  EXPECT_TRUE(plan.fits);
  EXPECT_THAT(plan.advice, Contains(HasSubstr("for comparison only")));
  const MemoryPlan sized = plan_of(m3(), {.gpus = 8, .gpu = "141G", .max_model_len = 8192});
  EXPECT_EQ(sized.memory_bytes, int64_t{141} << 30);
  EXPECT_TRUE(sized.advice.empty());
}

TEST(MemoryPlan, FlagsThatMakeNoSenseAreRefused) {
  const auto refusal = [](const MemoryPlanOptions& options) {
    const auto plan = make_memory_plan(m3(), options);
    return plan.ok() ? "" : plan.error().message;
  };
  EXPECT_THAT(refusal({.gpu = "abacus"}), HasSubstr("--gpu must be one of h100"));
  EXPECT_THAT(refusal({.gpus = 3}), HasSubstr("num_attention_heads 64"));
  EXPECT_THAT(refusal({.gpus = 2, .gpu = "cpu"}), HasSubstr("--gpus 2"));
  EXPECT_THAT(refusal({.gpu = "cpu", .kv_cache_dtype = "fp8"}), HasSubstr("needs a GPU"));
  EXPECT_THAT(refusal({.kv_cache_dtype = "int8"}), HasSubstr("--kv-cache-dtype must be"));
  EXPECT_THAT(refusal({.gpu = "cpu", .index_cache_dtype = "fp8"}),
              HasSubstr("--index-cache-dtype fp8: needs a GPU"));
  EXPECT_THAT(refusal({.index_cache_dtype = "int8"}), HasSubstr("--index-cache-dtype must be"));
  EXPECT_THAT(refusal({.max_model_len = 1 << 21}), HasSubstr("--max-model-len 2097152 exceeds"));
}

// The process is asked what it has; one percent is what its page tables and stacks may hide.
TEST(MemoryPlan, OfTheCpuIsWhatAnEngineAllocates) {
  constexpr double kProcess = 0.01;
  const test::TempDir dir;
  const SyntheticConfig texts = synthetic_config("small", MatrixFormat::kBF16).value();
  std::ofstream(dir.path() / "config.json") << texts.config_json;
  const auto checkpoint = load_checkpoint(dir.path(), {.load_format = "dummy", .vision = true});
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.error().message;
  for (const int64_t tokens : {int64_t{0}, int64_t{4096}}) {  // 0: what serve takes without a flag
    const auto engine = start_engine(checkpoint.value(), {.cache_tokens = tokens});
    ASSERT_TRUE(engine.ok()) << engine.error().message;
    MemoryPlanOptions options{.gpu = "cpu", .machine_bytes = machine_bytes(), .threads = 2};
    if (tokens > 0) options.kv_cache_bytes = static_cast<int64_t>(engine.value()->info().cache_bytes);
    const MemoryPlan plan = plan_of(checkpoint->config(), options);
    const auto held = static_cast<double>(checkpoint->weight_bytes() + engine.value()->info().cache_bytes);
    EXPECT_NEAR(static_cast<double>(plan.weight_bytes + plan.cache_bytes()) / held, 1.0, kProcess);
    EXPECT_EQ(plan.cache_tokens(), engine.value()->info().cache_tokens);
    EXPECT_EQ(plan.cache_bytes(), static_cast<int64_t>(engine.value()->info().cache_bytes));
    EXPECT_EQ(plan.workspace.of("image features"),
              engine.value()->info().feature_tokens * checkpoint->config().hidden_size * 2);
  }
}

TEST(MemoryPlan, OfTheCpuNamesTheCacheThatAWholeContextNeeds) {
  const auto texts = synthetic_config("small", MatrixFormat::kBF16).value();
  const ModelConfig config = parse_config(texts.config_json, "").value();
  const MemoryPlan plan = plan_of(config, {.gpu = "cpu", .machine_bytes = int64_t{64} << 30});
  EXPECT_EQ(plan.cache_tokens(), kDefaultCacheTokens);
  EXPECT_THAT(plan.advice, Contains(StartsWith("fits with --kv-cache-memory 9984M")));
  const MemoryPlan small = plan_of(config, {.gpu = "cpu", .machine_bytes = int64_t{256} << 20});
  EXPECT_FALSE(small.fits);
}

TEST(CacheTypes, AreTheModelsOrWhatTheDeviceHas) {
  const auto types = [](const char* kv, const char* index, DType model, Device device) {
    return cache_types({.kv_cache_dtype = kv, .index_cache_dtype = index}, model, device);
  };
  const auto is = [](const CacheTypes& t, DType kv, DType index) { return t.kv == kv && t.index == index; };
  constexpr DType kF32 = DType::kF32, kBf16 = DType::kBF16, kFp8 = DType::kF8E4M3;
  EXPECT_TRUE(is(types("auto", "auto", kF32, Device::kCpu).value(), kF32, kF32));
  EXPECT_TRUE(is(types("bfloat16", "bf16", kBf16, Device::kCpu).value(), kBf16, kBf16));
  EXPECT_TRUE(is(types("auto", "auto", kF32, Device::kCuda).value(), kBf16, kBf16));
  // Who asks for fp8 K and V has not asked for other blocks.
  for (const char* fp8 : {"fp8", "fp8_e4m3"}) {
    EXPECT_TRUE(is(types(fp8, "auto", kBf16, Device::kCuda).value(), kFp8, kBf16));
    EXPECT_TRUE(is(types("auto", fp8, kBf16, Device::kCuda).value(), kBf16, kFp8));
    EXPECT_TRUE(is(types(fp8, fp8, kF32, Device::kCuda).value(), kFp8, kFp8));
  }
  const auto refusal = [&](const char* kv, const char* index, DType model, Device device) {
    const auto result = types(kv, index, model, device);
    return result.ok() ? "" : result.error().message;
  };
  EXPECT_THAT(refusal("fp8_e4m3", "auto", kBf16, Device::kCpu),
              StartsWith("--kv-cache-dtype fp8_e4m3: needs a GPU"));
  EXPECT_THAT(refusal("auto", "fp8", kBf16, Device::kCpu),
              StartsWith("--index-cache-dtype fp8: needs a GPU"));
  EXPECT_THAT(refusal("auto", "bf16", kF32, Device::kCpu),
              StartsWith("--index-cache-dtype bf16: on the CPU"));
  EXPECT_THAT(refusal("fp8_e5m2", "auto", kBf16, Device::kCuda), StartsWith("--kv-cache-dtype must be auto"));
  EXPECT_THAT(refusal("auto", "", kBf16, Device::kCuda), StartsWith("--index-cache-dtype must be auto"));
}

}  // namespace
}  // namespace sparrow::cli
