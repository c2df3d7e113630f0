// SPDX-License-Identifier: Apache-2.0
// Where weights lie on a GPU: sizes against the ledger, and the parts of tensors against the table.
#include "model/device_layout.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "checkpoint/random/synthetic.h"
#include "checkpoint/tensor_table.h"
#include "model/ledger.h"
#include "support/m3_config.h"

namespace sparrow {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

ModelConfig m3(bool mxfp8 = false) {
  return parse_config(mxfp8 ? test::m3_mxfp8_config_json() : test::m3_config_json(), "").value();
}

// 3 layers, 8 query and 2 KV heads, 8 experts of 64 channels, a dense layer of 384.
ModelConfig tiny() {
  const SyntheticConfig texts = synthetic_config("tiny", DType::kBF16).value();
  return parse_config(texts.config_json, texts.generation_config_json).value();
}

bool is_text(const TensorRow& row) {
  return row.part != LedgerPart::kVision;
}

TEST(DeviceLayout, WeightsOfTheRealModelTakeWhatTheLedgerSaysUpToAlignment) {
  for (const int ranks : {1, 2, 4, 8, 16}) {
    const ParallelConfig parallel = {.size = ranks};
    const int64_t ledger =
        make_ledger(m3(), parallel, DType::kBF16, DType::kBF16, /*vision=*/false).weight_bytes;
    const auto device = static_cast<int64_t>(device_weight_bytes(m3(), parallel).value());
    int64_t tensors = 0;
    for (const TensorRow& row : tensor_table(m3())) tensors += is_text(row);
    EXPECT_GE(device, ledger) << ranks;
    EXPECT_LE(device, ledger + tensors * static_cast<int64_t>(kDeviceAlignment)) << ranks;
    // M3's own sizes are aligned as they are, with up to 16 ranks.
    EXPECT_EQ(device, ledger) << ranks;
  }
}

TEST(DeviceLayout, AQuantisedModelTakesAsMuchAsABf16OneBecauseItIsWidened) {
  EXPECT_EQ(device_weight_bytes(m3(true), {.size = 8}).value(),
            device_weight_bytes(m3(), {.size = 8}).value());
}

TEST(DeviceLayout, AnF32ModelTakesHalfOfItselfButForItsRouter) {
  ModelConfig wide = tiny();
  wide.dtype = DType::kF32;
  EXPECT_EQ(device_weight_bytes(wide, {}).value(), device_weight_bytes(tiny(), {}).value());
}

TEST(DeviceLayout, EveryTensorIsAligned) {
  const DeviceLayout layout = make_device_layout(tiny(), {.size = 4}).value();
  size_t there = 0;
  for (const DeviceLayerLayout& layer : layout.layers)
    for (const DeviceTensorLayout& tensor : layer.tensors.all) {
      if (tensor.offset == DeviceTensorLayout::kAbsent) continue;
      EXPECT_EQ(tensor.offset % kDeviceAlignment, 0u);
      ++there;
    }
  EXPECT_EQ(there, 8u + 2 * 12);  // one dense layer, two sparse ones
}

// Every element of every part has a place of its own inside the memory.
void expect_no_overlap(const ModelConfig& config, const ParallelConfig& parallel) {
  const DeviceLayout layout = make_device_layout(config, parallel).value();
  std::vector<uint8_t> taken(layout.bytes);
  for (const DevicePart& part : layout.parts) {
    const size_t element = size_of(part.dtype());
    for (int64_t r = 0; r < part.num_rows; ++r) {
      for (int64_t c = 0; c < part.num_cols; ++c) {
        const int64_t at = part.rows.place(r) * part.row_stride + part.columns.place(c);
        const size_t byte = part.offset + static_cast<size_t>(at) * element;
        ASSERT_LE(byte + element, layout.bytes) << part.tensor.spec.name;
        for (size_t b = byte; b < byte + element; ++b)
          ASSERT_EQ(taken[b]++, 0) << part.tensor.spec.name << " " << r << " " << c;
      }
    }
  }
}

TEST(DeviceLayout, NoTwoElementsShareAPlace) {
  for (const int ranks : {1, 2, 4, 8})
    for (const int rank : {0, ranks - 1}) expect_no_overlap(tiny(), {ranks, rank});
}

// All ranks together hold every element of every tensor of the table: once, or on every rank, or, for KV
// heads beyond their number, as often as there are ranks for a head.
TEST(DeviceLayout, RanksTogetherHoldTheWholeModel) {
  const ModelConfig config = tiny();
  for (const int ranks : {1, 2, 4, 8}) {
    std::map<std::string, std::vector<int>> holders;
    for (int rank = 0; rank < ranks; ++rank) {
      const DeviceLayout layout = make_device_layout(config, {ranks, rank}).value();
      for (const DevicePart& part : layout.parts) {
        std::vector<int>& count = holders[part.tensor.spec.name];
        count.resize(static_cast<size_t>(part.whole_rows * part.whole_cols));
        for (int64_t r = part.first_row; r < part.first_row + part.num_rows; ++r)
          for (int64_t c = part.first_col; c < part.first_col + part.num_cols; ++c)
            ++count[static_cast<size_t>(r * part.whole_cols + c)];
      }
    }
    for (const TensorRow& row : tensor_table(config)) {
      const TensorSpec& spec = row.spec;
      if (!is_text(row)) continue;
      ASSERT_TRUE(holders.contains(spec.name)) << spec.name;
      const std::vector<int>& count = holders[spec.name];
      ASSERT_EQ(count.size(), static_cast<size_t>(spec.numel())) << spec.name;
      const bool kv =
          row.role == TensorRole::kK || row.role == TensorRole::kV || row.role == TensorRole::kIndexQ;
      const bool cut = shard_bytes(config, {ranks, 0}, row) < static_cast<int64_t>(spec.bytes());
      const int expected = kv ? std::max(1, ranks / config.num_kv_heads) : cut ? 1 : ranks;
      for (const int n : count) ASSERT_EQ(n, expected) << spec.name;
      holders.erase(spec.name);
    }
    EXPECT_TRUE(holders.empty()) << holders.begin()->first;
  }
}

TEST(DeviceLayout, SmallGroupsOfQueryHeadsAreFilledUpToFour) {
  // 4 ranks: 2 query heads and one KV head for each.
  const DeviceLayout layout = make_device_layout(tiny(), {.size = 4, .rank = 1}).value();
  EXPECT_EQ(layout.query_heads, 4);
  EXPECT_EQ(layout.kv_heads, 1);
  EXPECT_EQ(layout.layers[0].qkv_rows, (4 + 2) * 128);      // dense attention
  EXPECT_EQ(layout.layers[1].qkv_rows, (4 + 2 + 2) * 128);  // and index heads
  // Where q has a zero head, o has zero columns.
  EXPECT_EQ(layout.layers[0].tensors[DeviceTensor::kO].cols, 4 * 128);
  for (const DevicePart& part : layout.parts) {
    if (part.tensor.role != TensorRole::kQ && part.tensor.role != TensorRole::kO) continue;
    const DeviceRuns& heads = part.tensor.role == TensorRole::kQ ? part.rows : part.columns;
    EXPECT_EQ(heads.place(2 * 128 - 1), 2 * 128 - 1) << part.tensor.spec.name;
    EXPECT_EQ(heads.place(2 * 128), 4 * 128) << part.tensor.spec.name;
  }
}

TEST(DeviceLayout, ChannelsAreFilledUpToWholeTiles) {
  // 64 channels of an expert over 2 ranks are 32, and 384 of the dense layer over 4 ranks are 96.
  EXPECT_EQ(make_device_layout(tiny(), {.size = 2})->layers[1].inter, 64);
  EXPECT_EQ(make_device_layout(tiny(), {.size = 4})->layers[0].inter, 128);
  EXPECT_EQ(make_device_layout(m3(), {.size = 8})->layers[0].inter, 1536);
  EXPECT_EQ(make_device_layout(m3(), {.size = 8})->layers[3].inter, 384);
}

std::string error_of(const ModelConfig& config, int ranks = 1) {
  const auto layout = make_device_layout(config, {.size = ranks});
  return layout.ok() ? "" : layout.error().message;
}

TEST(DeviceLayout, ShapesThatTheKernelsDoNotTakeAreErrorsThatNameTheField) {
  ModelConfig config = tiny();
  config.hidden_size = 96;
  EXPECT_THAT(error_of(config), HasSubstr("hidden_size 96 is not a multiple of 64"));
  config = tiny();
  config.num_query_heads = 64;  // 32 for each KV head
  EXPECT_THAT(error_of(config), HasSubstr("num_attention_heads 64: 32 query heads for one KV head"));
  EXPECT_EQ(error_of(config, 4), "");  // 16 on each rank
  config = tiny();
  config.shared_intermediate_size = 128;
  EXPECT_THAT(error_of(config), HasSubstr("shared_intermediate_size 128 differs from intermediate_size 64"));
  config = tiny();
  config.hidden_size = 8256;
  EXPECT_THAT(error_of(config),
              HasSubstr("hidden_size 8256 is more than the 8192 that the GPU kernels take"));
  config = tiny();
  config.vocab_size = 200'065;
  EXPECT_THAT(error_of(config), HasSubstr("vocab_size 200065 is more than the 200064"));
  config = tiny();
  config.num_experts = 257;
  EXPECT_THAT(error_of(config), HasSubstr("num_local_experts 257 is more than the 256"));
  config = tiny();
  config.num_experts = 16, config.experts_per_token = 9;
  EXPECT_THAT(error_of(config), HasSubstr("num_experts_per_tok 9 is more than the 8"));
  EXPECT_THAT(error_of(tiny(), 3), HasSubstr("cannot be split over 3 ranks"));
}

// A table that would keep experts as they are stored, or the router in bf16: no kernel reads that.
TEST(DeviceLayout, AFormatThatNoKernelReadsIsAnErrorThatNamesTensorAndFormat) {
  const auto error_with = [](TensorRole role, MatrixFormat format) {
    std::vector<TensorRow> rows = tensor_table(tiny());
    std::ranges::find(rows, role, &TensorRow::role)->device.format = format;
    const auto layout = make_device_layout(tiny(), {}, rows);
    return layout.ok() ? "" : layout.error().message;
  };
  EXPECT_EQ(error_with(TensorRole::kDown, MatrixFormat::kBF16), "");
  EXPECT_THAT(error_with(TensorRole::kDown, MatrixFormat::kMxfp8),
              AllOf(HasSubstr("layers.0.mlp.down_proj.weight"), HasSubstr("do not read MXFP8")));
  EXPECT_THAT(error_with(TensorRole::kHead, MatrixFormat::kF32),
              AllOf(HasSubstr("lm_head.weight"), HasSubstr("do not read F32")));
  EXPECT_THAT(error_with(TensorRole::kRouter, MatrixFormat::kBF16),
              AllOf(HasSubstr("gate.weight"), HasSubstr("do not read BF16")));
}

}  // namespace
}  // namespace sparrow
