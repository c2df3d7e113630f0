// SPDX-License-Identifier: Apache-2.0
// Memory on a GPU: what is planned is what is taken, to the byte, and after the start nothing more is.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <deque>
#include <memory>
#include <random>

#include "checkpoint/random/synthetic.h"
#include "device/cuda/check.h"
#include "device/cuda/device_info.h"
#include "device/cuda/memory.h"
#include "engine/engine_core.h"
#include "engine/memory/gpu_memory.h"
#include "engine/ranks/rank_group.h"
#include "model/cuda/device_weights.h"
#include "model/device_layout.h"
#include "support/engine/engine_model.h"
#include "support/m3_config.h"

namespace sparrow {
namespace {

ModelConfig m3(int layers, QuantFormat quant = QuantFormat::kNone) {
  ModelConfig config = parse_config(test::m3_config_json(), "").value();
  config.quant = quant;
  config.num_layers = layers;
  config.layer_is_sparse.resize(static_cast<size_t>(layers));
  config.layer_is_moe.resize(static_cast<size_t>(layers));
  return config;
}

struct Shape {
  const char* name;
  ModelConfig config;
  Grid grid;
  DType kv_dtype, index_dtype;
  int64_t context;
  int tokens, sequences;
  bool e4m3_tokens = false, batch_invariant = false, nccl = false;
};

std::vector<Shape> shapes() {
  const ModelConfig small =
      parse_config(synthetic_config("small", MatrixFormat::kBF16).value().config_json, "").value();
  constexpr DType kBf16 = DType::kBF16, kFp8 = DType::kF8E4M3;
  return {{"small, one rank", small, {}, kBf16, kBf16, 32768, 512, 16},
          {"M3's rank of eight, bf16", m3(60), {.tp = 8}, kBf16, kBf16, 131072, 8192, 256},
          {"fp8 K and V", m3(5), {.tp = 8}, kFp8, kBf16, 131072, 8192, 64},
          {"fp8 K and V, rank of four", m3(5), {.tp = 4}, kFp8, kBf16, 32768, 2048, 64},
          {"fp8 index keys", m3(5), {.tp = 8}, kBf16, kFp8, 131072, 8192, 64},
          {"all of the cache fp8, rank of four", m3(5), {.tp = 4}, kFp8, kFp8, 32768, 2048, 64},
          {"long context", m3(5), {.tp = 8}, kBf16, kBf16, 1048576, 8192, 256},
          {"MXFP8, rank of four", m3(60, QuantFormat::kMxfp8), {.tp = 4}, kBf16, kBf16, 131072, 8192, 256},
          {"MXFP4, rank of eight", m3(60, QuantFormat::kMxfp4), {.tp = 8}, kBf16, kBf16, 131072, 8192, 256},
          {"MXFP8, two groups",
           m3(5, QuantFormat::kMxfp8),
           {.tp = 4, .dp = 2, .rank = 6},
           kBf16,
           kBf16,
           131072,
           8192,
           256},
          {"whole experts, two groups",
           m3(5),
           {.tp = 4, .dp = 2, .expert_parallel = true, .rank = 5},
           kBf16,
           kBf16,
           32768,
           2048,
           64},
          {"MXFP8, one rank", m3(4, QuantFormat::kMxfp8), {}, kBf16, kBf16, 32768, 2048, 64},
          {"fp8 activations", m3(5, QuantFormat::kMxfp8), {.tp = 8}, kBf16, kBf16, 32768, 8192, 64, true},
          {"batch-invariant, rank of eight", m3(5), {.tp = 8}, kBf16, kBf16, 32768, 8192, 64, false, true},
          {"batch-invariant, one rank", small, {}, kBf16, kBf16, 32768, 512, 16, false, true},
          {"NCCL, rank of eight", m3(5), {.tp = 8}, kBf16, kBf16, 32768, 8192, 64, false, false, true},
          {"NCCL, rank of sixteen, batch-invariant",
           m3(5),
           {.tp = 8, .dp = 2, .expert_parallel = true, .rank = 11},
           kBf16,
           kBf16,
           32768,
           2048,
           64,
           false,
           true,
           true}};
}

TEST(CudaMemory, IsTakenAsItIsPlanned) {
  const DeviceInfo device = use_device(0).value();
  for (const Shape& shape : shapes()) {
    SCOPED_TRACE(shape.name);
    const Grid& grid = shape.grid;
    const GpuStepLimits limits{.max_step_tokens = shape.tokens,
                               .max_step_sequences = shape.sequences,
                               .max_logits = max_logit_rows(shape.tokens, shape.sequences),
                               .max_context = shape.context,
                               .kv_dtype = shape.kv_dtype,
                               .index_dtype = shape.index_dtype,
                               .batch_invariant = shape.batch_invariant,
                               .feature_tokens = shape.config.vision ? GpuOptions{}.feature_tokens : 0,
                               .e4m3_tokens = shape.e4m3_tokens,
                               .nccl = shape.nccl};
    const GpuMemory planned = plan_gpu_memory(shape.config, grid, limits, device.num_sms).value();
    const RankOptions options{.cache_tokens = 1024,
                              .max_context = shape.context,
                              .max_step_tokens = shape.tokens,
                              .max_step_sequences = shape.sequences,
                              .grid = grid,
                              .gpu = {.kv_dtype = shape.kv_dtype,
                                      .index_dtype = shape.index_dtype,
                                      .exchange = {.nccl = shape.nccl},
                                      .batch_invariant = shape.batch_invariant,
                                      .e4m3_tokens = shape.e4m3_tokens,
                                      .dummy_seed = 1}};

    const AllocationCounts before = allocation_counts();
    size_t free_before = 0, free_after = 0, total = 0;
    SPARROW_CUDA(cudaMemGetInfo(&free_before, &total));
    const auto group = create_rank_group(shape.config, {}, options);
    ASSERT_TRUE(group.ok()) << group.error().message;
    const AllocationCounts after = allocation_counts();
    SPARROW_CUDA(cudaMemGetInfo(&free_after, &total));

    const EngineInfo& info = group.value()->info();
    EXPECT_EQ(static_cast<int64_t>(info.weight_bytes), planned.weight_bytes);
    EXPECT_EQ(static_cast<int64_t>(info.workspace_bytes), planned.workspace.bytes);
    const KvCacheShape block{.num_blocks = 1,
                             .kv_heads = make_device_layout(shape.config, grid)->kv_heads,
                             .head_dim = shape.config.head_dim,
                             .dtype = shape.kv_dtype,
                             .index_dtype = shape.index_dtype,
                             .layer_is_sparse = shape.config.layer_is_sparse};
    const auto cache = static_cast<int64_t>(8 * block.block_bytes());
    const int64_t taken = after.device.bytes - before.device.bytes;
    EXPECT_EQ(taken, planned.weight_bytes + planned.workspace.bytes + cache);
    EXPECT_EQ(after.pinned.bytes - before.pinned.bytes, planned.pinned_bytes);
    ASSERT_EQ(info.workspace.size(), planned.workspace.rows.size());
    for (size_t i = 0; i < info.workspace.size(); ++i)
      EXPECT_EQ(info.workspace[i].bytes, planned.workspace.rows[i].bytes) << info.workspace[i].name;
    const auto from_driver = static_cast<int64_t>(free_before) - static_cast<int64_t>(free_after);
    std::printf("%s: %ld bytes planned and taken; the driver's count is %ld more\n", shape.name, taken,
                from_driver - taken);
  }
}

TEST(CudaMemory, ThatIsNotThereIsRefusedBeforeAnythingIsTaken) {
  const RankOptions options{.cache_tokens = 1024,
                            .max_context = 4096,
                            .max_step_tokens = 512,
                            .max_step_sequences = 16,
                            .gpu = {.dummy_seed = 1}};
  const ModelConfig whole = m3(60);
  const AllocationCounts before = allocation_counts();
  const auto group = create_rank_group(whole, {}, options);
  ASSERT_FALSE(group.ok());
  EXPECT_NE(group.error().message.find("do not fit into"), std::string::npos) << group.error().message;
  EXPECT_EQ(allocation_counts().device.allocations, before.device.allocations);
  EXPECT_EQ(allocation_counts().pinned.allocations, before.pinned.allocations);
}

TEST(CudaMemory, IsCountedAsItComesAndGoes) {
  const AllocationCounts before = allocation_counts();
  {
    DeviceBuffer device = DeviceBuffer::allocate(1000).value();
    const PinnedBuffer pinned = PinnedBuffer::allocate(5000).value();
    DeviceBuffer moved = std::move(device);
    const AllocationCounts now = allocation_counts();
    EXPECT_EQ(now.device.allocations, before.device.allocations + 1);
    EXPECT_EQ(now.device.bytes, before.device.bytes + 1000);
    EXPECT_EQ(now.pinned.allocations, before.pinned.allocations + 1);
    EXPECT_EQ(now.pinned.bytes, before.pinned.bytes + 5000);
    moved = DeviceBuffer();
    EXPECT_EQ(allocation_counts().device.bytes, before.device.bytes);
  }
  EXPECT_EQ(allocation_counts().pinned.bytes, before.pinned.bytes);
  EXPECT_EQ(allocation_counts().device.allocations, before.device.allocations + 1);
}

// Requests of every kind, one after the other and together.
class Mix {
 public:
  Mix(const test::EngineModel& model, uint64_t seed) : model_(model), random_(seed) {}

  Request next() {
    const int vocabulary = model_.config().vocab_size;
    Request request;
    // Long ones run in chunks, short ones together.
    request.prompts = {model_.text(one_of(6), 1 + one_of(is(4) ? 1500 : 40))};
    if (is(6)) request.prompts.push_back(model_.text(one_of(6), 1 + one_of(300)));
    request.n = is(4) ? 2 + one_of(3) : 1;
    request.max_tokens = is(10) ? 0 : 1 + one_of(24);
    request.ignore_eos = is(2);
    request.sampling.temperature = is(3) ? 0.0 : 0.9;
    request.sampling.seed = random_();
    if (is(3)) request.sampling.repetition_penalty = 1.2;
    if (is(3)) request.sampling.frequency_penalty = 0.3, request.sampling.presence_penalty = 0.1;
    if (is(4)) request.sampling.top_k = 20, request.sampling.top_p = 0.9;
    if (is(5)) request.sampling.allowed_ids = ids(vocabulary / 2);
    if (is(6)) request.sampling.banned_ids = ids(vocabulary / 4);
    if (is(6))
      for (const int32_t id : ids(vocabulary)) request.sampling.logit_bias.emplace_back(id, 0.5f);
    if (is(3)) request.logprobs = is(2) ? kMaxTopLogprobs : 0;
    if (is(4)) request.prompt_logprobs = is(2) ? kMaxTopLogprobs : 3;
    if (is(5) && request.max_tokens > 2) request.min_tokens = 2, request.stop_ids = ids(5);
    return request;
  }
  int one_of(int count) { return static_cast<int>(random_() % static_cast<uint64_t>(count)); }

 private:
  bool is(int one_in) { return one_of(one_in) == 0; }
  std::vector<int32_t> ids(int count) {
    std::vector<int32_t> all;
    for (int i = 0; i < count; ++i) all.push_back(one_of(model_.config().vocab_size));
    return all;
  }

  const test::EngineModel& model_;
  std::mt19937_64 random_;
};

TEST(CudaMemory, IsAllTakenAtTheStart) {
  constexpr int kSteps = 1000, kTopKBlocks = 2, kLive = 12;
  const test::EngineModel model("bf16", kTopKBlocks, Device::kCuda);
  const EngineOptions options{.device = Device::kCuda,
                              .cache_tokens = 16384,
                              .max_model_tokens = 2048,
                              .max_step_tokens = 512,
                              .max_step_sequences = 32};
  const auto core = EngineCore::create(model.config(), model.weights(), options).value();
  const AllocationCounts start = allocation_counts();

  Mix mix(model, 20);
  std::deque<std::shared_ptr<TokenChannel>> live;
  RequestId next_id = 1;
  int64_t ended = 0, failed = 0, refused = 0;
  for (int step = 0; step < kSteps; ++step) {
    while (live.size() < kLive) {
      Request request = mix.next();
      if (!validate(request, core->request_limits()).ok()) {
        ++refused;
        continue;
      }
      const auto channel = std::make_shared<TokenChannel>(request.num_outputs(), 4096, [] {});
      core->add(next_id++, std::move(request), channel, {});
      live.push_back(channel);
    }
    core->step({});
    core->deliver();
    for (const auto& channel : live)
      while (const auto event = channel->try_next())
        if (event->finish) ++ended, failed += event->finish == FinishReason::kError;
    std::erase_if(live, [](const auto& channel) { return channel->done(); });
  }
  const AllocationCounts now = allocation_counts();
  EXPECT_EQ(now.device.allocations - start.device.allocations, 0);
  EXPECT_EQ(now.pinned.allocations - start.pinned.allocations, 0);
  EXPECT_EQ(now.device.bytes, start.device.bytes);
  EXPECT_EQ(now.pinned.bytes, start.pinned.bytes);
  const EngineStats stats = core->stats();
  std::printf(
      "%ld steps, %ld outputs ended, %ld of them with an error; %ld tokens computed, %ld drawn; %ld "
      "requests were refused\n",
      stats.steps, ended, failed, stats.computed_tokens, stats.generated_tokens, refused);
  EXPECT_GE(stats.steps, kSteps - 10);
  EXPECT_GT(ended, 200);
  EXPECT_EQ(failed, 0);
}

TEST(DeviceWeights, AModelThatDoesNotFitIsAnErrorThatSaysWhatIsMissing) {
  using ::testing::HasSubstr;
  const auto device = dummy_device_weights(m3(60), {}, 0);  // 794 GiB
  ASSERT_FALSE(device.ok());
  EXPECT_THAT(device.error().message, HasSubstr("the weights need 793.9"));
  EXPECT_THAT(device.error().message, HasSubstr("GiB are missing"));
  EXPECT_THAT(device.error().message, HasSubstr("more GPUs"));
}

}  // namespace
}  // namespace sparrow
