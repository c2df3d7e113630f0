// SPDX-License-Identifier: Apache-2.0
// Every launcher refuses what its header forbids, by the argument's name and value, before it asks CUDA for
// anything: no GPU is needed, and the pointers point nowhere.
#include "device/cuda/arguments.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "device/cuda/read_rate.h"
#include "kv/cuda/copy_blocks.h"
#include "model/cuda/pack/pack.h"
#include "ops/cuda/comm/row_sums.h"
#include "ops/cuda/linear_held.h"
#include "ops/cuda/linear_small.h"
#include "ops/cuda/moe/families.h"
#include "ops/cuda/router.h"
#include "ops/cuda/rows.h"
#include "ops/cuda/sample/sample.h"
#include "ops/cuda/vision/attend.h"
#include "ops/cuda/vision/product.h"
#include "ops/cuda/vision/rows.h"

namespace sparrow::ops::cuda {
namespace {

using ::testing::HasSubstr;

// Aligned as device memory is; never read.
template <typename T = __nv_bfloat16>
T* somewhere(size_t offset = 0) {
  return reinterpret_cast<T*>(size_t{1} << 20) + offset;
}

template <typename Args>
struct Broken {
  std::function<void(Args&)> change;  // what makes good arguments bad
  const char* message;
};

// Each change alone is refused with its message. Without a change the launcher goes on to CUDA, which is not
// there: so none of the messages came from another argument.
template <typename Args>
void refuses(const Args& good, const std::function<void(const Args&)>& launch,
             const std::vector<Broken<Args>>& list) {
  if (!std::filesystem::exists("/dev/nvidiactl")) {
    EXPECT_DEATH(launch(good), HasSubstr("CUDA call failed"));
  }
  for (const auto& [change, message] : list) {
    Args bad = good;
    change(bad);
    EXPECT_DEATH(launch(bad), HasSubstr(message));
  }
}

TEST(LaunchArguments, Embed) {
  using Args = EmbedArgs;
  refuses<Args>(
      {somewhere<int32_t>(), somewhere(), somewhere(), 3, 128, 0, 100},
      [](const Args& a) { embed(a, nullptr); },
      {{[](Args& a) { a.ids = nullptr; }, "embed: ids must not be null"},
       {[](Args& a) { a.table = somewhere(4); }, "embed: table must be aligned to 16 bytes, got 0x100008"},
       {[](Args& a) { a.out = nullptr; }, "embed: out must not be null"},
       {[](Args& a) { a.rows = -1; }, "embed: rows must be in [1, 2147483647], got -1"},
       {[](Args& a) { a.hidden = 96; }, "embed: hidden must be a multiple of 64, got 96"},
       {[](Args& a) { a.hidden = 8256; }, "embed: hidden must be in [64, 8192], got 8256"},
       {[](Args& a) { a.feature_rows = somewhere<int32_t>(); }, "embed: features must not be null"},
       {[](Args& a) { a.vocab_rows = 0; }, "embed: vocab_rows must be in"}});
}

TEST(LaunchArguments, Norms) {
  refuses<RmsNormArgs>(
      {somewhere(), somewhere(), somewhere(), 3, 128, 1e-6f}, [](const auto& a) { rms_norm(a, nullptr); },
      {{[](auto& a) { a.x = nullptr; }, "rms_norm: x must not be null"},
       {[](auto& a) { a.weight = somewhere(1); }, "rms_norm: weight must be aligned to 16 bytes"},
       {[](auto& a) { a.hidden = 8256; }, "rms_norm: hidden must be in [64, 8192], got 8256"}});
  refuses<AddRmsNormArgs>(
      {somewhere(), somewhere(), somewhere(), somewhere(), 3, 128, 1e-6f},
      [](const auto& a) { add_rms_norm(a, nullptr); },
      {{[](auto& a) { a.residual = nullptr; }, "add_rms_norm: residual must not be null"},
       {[](auto& a) { a.delta = nullptr; }, "add_rms_norm: delta must not be null"},
       {[](auto& a) { a.hidden = 72; }, "add_rms_norm: hidden must be a multiple of 64"}});
  refuses<FinalNormArgs>(
      {somewhere(), somewhere(), somewhere<int32_t>(), somewhere(), somewhere(), 3, 128, 1e-6f},
      [](const auto& a) { final_norm(a, nullptr); },
      {{[](auto& a) { a.logit_rows = nullptr; }, "final_norm: logit_rows must not be null"},
       {[](auto& a) { a.out = somewhere(2); }, "final_norm: out must be aligned to 16 bytes"}});
}

TEST(LaunchArguments, SumsOfRows) {
  const PartRowsOf from{.parts = somewhere(), .sources = 4, .rows = 3, .hidden = 128};
  refuses<SumRowsArgs>(
      {.from = from, .sums = somewhere<float>()}, [](const auto& a) { sum_rows(a, nullptr); },
      {{[](auto& a) { a.from.parts = nullptr; }, "sum_rows: parts must not be null"},
       {[](auto& a) { a.from.sources = 3; }, "sum_rows: sources must be 1, 2, 4 or 8"},
       {[](auto& a) { a.from.hidden = 96; }, "sum_rows: hidden must be a multiple of 64, got 96"},
       {[](auto& a) { a.sums = nullptr; }, "sum_rows: sums must not be null"}});
  refuses<SumRowsNormArgs>(
      {.from = from, .weight = somewhere(), .out = somewhere()},
      [](const auto& a) { sum_rows_norm(a, nullptr); },
      {{[](auto& a) { a.from.sources = 16; }, "sum_rows_norm: sources must be 1, 2, 4 or 8"},
       {[](auto& a) { a.from.rows = -1; }, "sum_rows_norm: rows must be in [1, 2147483647], got -1"},
       {[](auto& a) { a.weight = nullptr; }, "sum_rows_norm: weight must not be null"},
       {[](auto& a) { a.out = somewhere(4); }, "sum_rows_norm: out must be aligned to 16 bytes"}});
}

TEST(LaunchArguments, FeedIds) {
  refuses<FeedIdsArgs>({somewhere<int32_t>(), somewhere<int32_t>(), somewhere<int32_t>(), 3},
                       [](const auto& a) { feed_ids(a, nullptr); },
                       {{[](auto& a) { a.sampled = nullptr; }, "feed_ids: sampled must not be null"},
                        {[](auto& a) { a.source = nullptr; }, "feed_ids: source must not be null"},
                        {[](auto& a) { a.rows = -5; }, "feed_ids: rows must be in [1, 2147483647], got -5"}});
}

struct Route {
  RouterShape shape{128, 16, 4};
  RouterArgs args{.x = somewhere(),
                  .router = somewhere<float>(),
                  .parts = somewhere(),
                  .bias = somewhere<float>(),
                  .ids = somewhere<int32_t>(),
                  .weights = somewhere<float>(),
                  .workspace = somewhere(),
                  .rows = 2};
};

TEST(LaunchArguments, VisionTower) {
  using Args = TowerProductArgs;
  refuses<Args>({.x = somewhere(),
                 .w = somewhere(),
                 .bias = somewhere<float>(),
                 .out = somewhere(),
                 .rows = 8,
                 .n = 240,
                 .k = 160},
                [](const Args& a) { tower_product(a, nullptr); },
                {{[](Args& a) { a.x = nullptr; }, "tower_product: x must not be null"},
                 {[](Args& a) { a.bias = nullptr; }, "tower_product: bias must not be null"},
                 {[](Args& a) { a.n = 100; }, "tower_product: n must be a multiple of 8, got 100"},
                 {[](Args& a) { a.k = 4; }, "tower_product: k must be in [8, 2147483647], got 4"},
                 {[](Args& a) { a.end = TowerEnd::kResidual; }, "tower_product: residual must not be null"},
                 {[](Args& a) { a.end = TowerEnd::kHeads; }, "tower_product: rotary must not be null"}});
  refuses<AttendSegmentsArgs>(
      {somewhere(), somewhere<SegmentItem>(), somewhere(), 8, 2, 2, 1.0f},
      [](const auto& a) { attend_segments(a, nullptr); },
      {{[](auto& a) { a.heads = nullptr; }, "attend_segments: heads must not be null"},
       {[](auto& a) { a.rows = 6; }, "attend_segments: rows must be a multiple of 4, got 6"}});
  refuses<LayerNormArgs>(
      {somewhere(), somewhere<float>(), somewhere<float>(), somewhere(), 3, 160, 1e-5f},
      [](const auto& a) { layer_norm(a, nullptr); },
      {{[](auto& a) { a.bias = nullptr; }, "layer_norm: bias must not be null"},
       {[](auto& a) { a.hidden = 2056; }, "layer_norm: hidden must be in [8, 2048], got 2056"}});
}

TEST(LaunchArguments, Router) {
  refuses<Route>(
      {}, [](const auto& r) { route(r.shape, r.args, nullptr); },
      {{[](auto& r) { r.shape.hidden = 100; }, "route: hidden must be a multiple of 64, got 100"},
       {[](auto& r) { r.shape.hidden = 8256; }, "route: hidden must be in [64, 8192], got 8256"},
       {[](auto& r) { r.shape.num_experts = 257; }, "route: num_experts must be in [1, 256], got 257"},
       {[](auto& r) { r.shape.top_k = 17; }, "route: top_k must be in [1, 16], got 17"},
       {[](auto& r) { r.shape.num_experts = 3; }, "route: top_k must be in [1, 3], got 4"},
       {[](auto& r) { r.args.x = nullptr; }, "route: x must not be null"},
       {[](auto& r) { r.args.workspace = somewhere(1); }, "route: workspace must be aligned to 16 bytes"},
       {[](auto& r) { r.args.rows = 1000, r.args.parts = nullptr; }, "route: parts must not be null"},
       {[](auto& r) { r.args.rows = -1; }, "route: rows must be in [1, 2147483647], got -1"}});
  EXPECT_DEATH(split_router(somewhere<float>(), somewhere(), 63, nullptr),
               HasSubstr("split_router: count must be a multiple of 64, got 63"));
}

struct NormRoute {
  RouterShape shape{128, 16, 4};
  NormRouterArgs args{.residual = somewhere(),
                      .delta = somewhere(1024),
                      .norm_weight = somewhere(),
                      .eps = 1e-6f,
                      .residual_out = somewhere(2048),
                      .x = somewhere(4096),
                      .router = somewhere<float>(),
                      .bias = somewhere<float>(),
                      .ids = somewhere<int32_t>(),
                      .weights = somewhere<float>(),
                      .workspace = somewhere()};
};

TEST(LaunchArguments, RouterWithTheNorm) {
  refuses<NormRoute>(
      {}, [](const auto& r) { norm_route(r.shape, r.args, nullptr); },
      {{[](auto& r) { r.shape.hidden = 8256; }, "norm_route: hidden must be in [64, 8192], got 8256"},
       {[](auto& r) { r.args.norm_weight = nullptr; }, "norm_route: norm_weight must not be null"},
       {[](auto& r) { r.args.residual_out = somewhere(); },
        "norm_route: residual_out must be none of the other arrays"}});
}

struct Linear {
  DeviceMatrix w = bf16_matrix(somewhere(), 16, 128);
  const __nv_bfloat16* x = somewhere();
  float* out = somewhere<float>();
  int rows = 2;
};

TEST(LaunchArguments, LinearLayers) {
  refuses<Linear>(
      {}, [](const auto& l) { linear_small(l.w, l.x, l.out, l.rows, nullptr); },
      {{[](auto& l) { l.w.values = nullptr; }, "linear_small: w must not be null"},
       {[](auto& l) { l.x = somewhere(1); }, "linear_small: x must be aligned to 16 bytes"},
       {[](auto& l) { l.rows = 65; }, "linear_small: rows must be in [1, 64], got 65"},
       {[](auto& l) { l.w.format = MatrixFormat::kF32; }, "linear_small: w must be bf16, MXFP8 or MXFP4"},
       {[](auto& l) { l.w.format = MatrixFormat::kMxfp8, l.w.rows = 24; },
        "linear_small: w must be a multiple of 16, got 24"},
       {[](auto& l) { l.w.format = MatrixFormat::kMxfp4; },
        "linear_small: w must be bf16 where results are f32"},
       {[](auto& l) { l.w.rows = 12; }, "linear_small: out_features must be a multiple of 8, got 12"},
       {[](auto& l) { l.w.cols = 96; }, "linear_small: in_features must be a multiple of 64, got 96"}});
  refuses<LinearHeldArgs>(
      {bf16_matrix(somewhere(), 16, 128), somewhere(), somewhere()},
      [](const auto& a) { linear_held(a, nullptr); },
      {{[](auto& a) { a.w.values = nullptr; }, "linear_held: w must not be null"},
       {[](auto& a) { a.w.cols = 3136; }, "linear_held: in_features must be in [8, 3072], got 3136"},
       {[](auto& a) { a.w.cols = 100; }, "linear_held: in_features must be a multiple of 8, got 100"}});
  refuses<LinearHeldArgs>(
      {{MatrixFormat::kMxfp8, somewhere(), 16, 128}, somewhere(), somewhere()},
      [](const auto& a) { linear_held(a, nullptr); },
      {{[](auto& a) { a.w.rows = 24; }, "linear_held: w must be a multiple of 16, got 24"},
       {[](auto& a) { a.w.cols = 96; }, "linear_held: w must be a multiple of 64, got 96"},
       {[](auto& a) { a.w.cols = 6208; }, "linear_held: w must fit the registers"}});
}

// What a product is timed with must be able to run it: a vocabulary may have any size.
TEST(LaunchArguments, LinearSmallSaysWhichShapesItTakes) {
  EXPECT_TRUE(linear_small_fits(25008, 6144));
  EXPECT_FALSE(linear_small_fits(25009, 6144));
  EXPECT_FALSE(linear_small_fits(25012, 6144));
  EXPECT_FALSE(linear_small_fits(25008, 6176));
}

struct Moe {
  MoeShape shape{.hidden = 128, .inter = 64, .num_experts = 16, .top_k = 4};
  MoeArgs args{.x = somewhere(),
               .ids = somewhere<int32_t>(),
               .weights = somewhere<float>(),
               .gate_up = bf16_matrix(somewhere(), 17 * 2 * 64, 128),
               .down = bf16_matrix(somewhere(), 17 * 128, 64),
               .out = somewhere(),
               .workspace = somewhere(),
               .rows = 3};
};

TEST(LaunchArguments, Experts) {
  refuses<Moe>(
      {}, [](const auto& m) { moe(m.shape, m.args, nullptr); },
      {{[](auto& m) { m.shape.hidden = 96; }, "moe: hidden must be a multiple of 64, got 96"},
       {[](auto& m) { m.shape.inter = 0; }, "moe: inter must be in [64, 2147483647], got 0"},
       {[](auto& m) { m.shape.inter = 100; }, "moe: inter must be a multiple of 64, got 100"},
       {[](auto& m) { m.shape.num_experts = 257; }, "moe: num_experts must be in [0, 256], got 257"},
       {[](auto& m) { m.shape.top_k = 9; }, "moe: top_k must be in [1, 8], got 9"},
       {[](auto& m) { m.shape.num_experts = 2; }, "moe: top_k must be in [1, 2], got 4"},
       {[](auto& m) { m.args.ids = nullptr; }, "moe: ids must not be null"},
       {[](auto& m) { m.args.gate_up.format = MatrixFormat::kF32; },
        "moe: gate_up must be bf16, MXFP8 or MXFP4"},
       {[](auto& m) { m.args.down.rows = 128; }, "moe: down must have the shape of the product"},
       {[](auto& m) { m.args.down.values = somewhere(4); }, "moe: down must be aligned to 16 bytes"},
       {[](auto& m) { m.args.workspace = somewhere(8); }, "moe: workspace must be aligned to 256 bytes"},
       {[](auto& m) { m.args.rows = -1; }, "moe: rows must be in"}});
  Moe dense;
  dense.shape.num_experts = dense.shape.top_k = 0, dense.args.ids = nullptr, dense.args.weights = nullptr;
  dense.args.gate_up.rows = 2 * 64, dense.args.down.rows = 128;
  refuses<Moe>(dense, [](const auto& m) { moe(m.shape, m.args, nullptr); },
               {{[](auto& m) { m.args.x = nullptr; }, "moe: x must not be null"}});
}

TEST(LaunchArguments, ExpertsOfFewRowsTakeFewRows) {
  Moe m;
  m.args.rows = 65;
  EXPECT_DEATH(moe_few(m.shape, m.args, nullptr), HasSubstr("moe_few: rows must be in [1, 64], got 65"));
  EXPECT_DEATH(mlp_few(m.shape, m.args, nullptr), HasSubstr("mlp_few: rows must be in [1, 64], got 65"));
  m.args.rows = 9;
  EXPECT_DEATH(moe_one_launch(m.shape, m.args, nullptr),
               HasSubstr("moe_one_launch: rows must be in [1, 8], got 9"));
  m.args.rows = 1, m.args.gate_up.format = MatrixFormat::kMxfp8;
  EXPECT_DEATH(moe_one_launch(m.shape, m.args, nullptr),
               HasSubstr("moe_one_launch: down must have the format of gate_up"));
  m.args.gate_up.format = MatrixFormat::kBF16;
  m.args.rows = 40, m.shape.top_k = 8;
  EXPECT_DEATH(moe_few(m.shape, m.args, nullptr),
               HasSubstr("moe_few: rows * top_k must be in [1, 256], got 320"));
}

TEST(LaunchArguments, Sampling) {
  refuses<SampleArgs>(
      {somewhere<float>(), 1000, somewhere(), somewhere<int32_t>(), somewhere<SampleStatus>(), 2, 1000,
       false},
      [](const auto& a) { sample(a, nullptr); },
      {{[](auto& a) { a.logits = nullptr; }, "sample: logits must not be null"},
       {[](auto& a) { a.batch = somewhere(1); }, "sample: batch must be aligned to 16 bytes"},
       {[](auto& a) { a.status = nullptr; }, "sample: status must not be null"},
       {[](auto& a) { a.vocabulary = a.row_stride = 200065; },
        "sample: vocabulary must be in [1, 200064], got 200065"},
       {[](auto& a) { a.row_stride = 999; }, "sample: row_stride must be in [1000, "},
       {[](auto& a) { a.rows = 1 << 28; }, "sample: rows must be in [1, 268435455], got 268435456"}});
  refuses<LogprobsArgs>(
      {.logits = somewhere<float>(),
       .row_stride = 1000,
       .wanted = somewhere<LogprobsRow>(),
       .sampled_ids = nullptr,
       .logprob = somewhere<float>(),
       .rank = somewhere<int32_t>(),
       .top_ids = somewhere<int32_t>(),
       .top_logprobs = somewhere<float>(),
       .rows = 1,
       .top_stride = 20,
       .vocabulary = 1000},
      [](const auto& a) { logprobs(a, nullptr); },
      {{[](auto& a) { a.wanted = nullptr; }, "logprobs: wanted must not be null"},
       {[](auto& a) { a.top_ids = nullptr; }, "logprobs: top_ids must not be null"},
       {[](auto& a) { a.vocabulary = 0; }, "logprobs: vocabulary must be in [1, 200064], got 0"}});
}

TEST(LaunchArguments, PackingWeights) {
  struct Pack {
    PackTarget target{.out = somewhere(),
                      .format = MatrixFormat::kBF16,
                      .columns = 64,
                      .row_run = 8,
                      .row_run_stride = 16,
                      .col_run = 64,
                      .col_run_stride = 64,
                      .num_rows = 2,
                      .num_cols = 64};
    PackSource source{
        MatrixFormat::kMxfp8, somewhere(), somewhere<uint8_t>(), {somewhere<unsigned long long>()}};
    RandomSource random{.whole_cols = 64};
    RandomCells cells{.whole_cols = 64};
  };
  const auto refused = [](const std::function<void(Pack&)>& change, const char* message) {
    Pack pack;
    change(pack);
    EXPECT_DEATH((void)launch_pack(pack.target, pack.source, nullptr), HasSubstr(message));
  };
  refused([](Pack& p) { p.target.out = somewhere(1); }, "launch_pack: out must be aligned to 16 bytes");
  refused([](Pack& p) { p.target.row_run = 0; }, "launch_pack: row_run must be in");
  refused([](Pack& p) { p.target.num_rows = -1; }, "launch_pack: num_rows must be in");
  refused([](Pack& p) { p.target.num_cols = 48; }, "launch_pack: num_cols must be a multiple of 32, got 48");
  refused([](Pack& p) { p.source.values = nullptr; }, "launch_pack: values must not be null");
  refused([](Pack& p) { p.source.scales = nullptr; }, "launch_pack: scales must not be null");
  refused([](Pack& p) { p.source.faults.first = nullptr; }, "launch_pack: faults must not be null");
  refused([](Pack& p) { p.target.format = MatrixFormat::kMxfp4; },
          "launch_pack: format must be the cells' own");
  refused([](Pack& p) { p.target.format = MatrixFormat::kMxfp8, p.target.columns = 96; },
          "launch_pack: columns must be a multiple of 64, got 96");
  refused([](Pack& p) { p.target.format = MatrixFormat::kMxfp8, p.target.col_run = 16; },
          "launch_pack: col_run must be a multiple of 32, got 16");
  Pack pack;
  pack.random.first_col = 1;
  EXPECT_DEATH((void)launch_fill_random(pack.target, pack.random, nullptr),
               HasSubstr("launch_fill_random: whole_cols must be in [65, "));
  EXPECT_DEATH((void)launch_fill_random_cells(pack.target, pack.cells, nullptr),
               HasSubstr("launch_fill_random_cells: format must be cells"));
}

TEST(LaunchArguments, CopyingBlocksAndReadingMemory) {
  const CopyBlocksParams good{
      .lanes = somewhere<const PageLane>(), .num_lanes = 3, .max_page_bytes = 1024, .num_copies = 2};
  const auto refused = [&](const std::function<void(CopyBlocksParams&)>& change, const char* message) {
    CopyBlocksParams params = good;
    change(params);
    EXPECT_DEATH((void)launch_copy_blocks(params, nullptr), HasSubstr(message));
  };
  refused([](auto& p) { p.lanes = nullptr; }, "launch_copy_blocks: lanes must not be null");
  refused([](auto& p) { p.num_copies = 65; }, "launch_copy_blocks: num_copies must be in [1, 64], got 65");
  refused([](auto& p) { p.max_page_bytes = 1000; },
          "launch_copy_blocks: max_page_bytes must be a multiple of 16, got 1000");
  EXPECT_DEATH(measure_read_rate(somewhere(1), 1024, somewhere<unsigned>(), nullptr),
               HasSubstr("measure_read_rate: memory must be aligned to 16 bytes"));
}

}  // namespace
}  // namespace sparrow::ops::cuda
