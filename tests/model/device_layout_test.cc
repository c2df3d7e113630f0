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

ModelConfig m3(QuantFormat quant = QuantFormat::kNone) {
  ModelConfig config = parse_config(test::m3_config_json(), "").value();
  config.quant = quant;
  return config;
}

// 3 layers, 8 query and 2 KV heads, 8 experts of 64 channels, a dense layer of 384.
ModelConfig tiny() {
  const SyntheticConfig texts = synthetic_config("tiny", MatrixFormat::kBF16).value();
  return parse_config(texts.config_json, texts.generation_config_json).value();
}

// The same with channels that 8 ranks can share in whole groups.
ModelConfig tiny(QuantFormat quant) {
  ModelConfig config = tiny();
  config.quant = quant;
  config.expert_intermediate_size = config.shared_intermediate_size = 256;
  config.dense_intermediate_size = 768;
  return config;
}

constexpr QuantFormat kFormats[] = {QuantFormat::kNone, QuantFormat::kMxfp8, QuantFormat::kMxfp4};

bool is_text(const TensorRow& row) {
  return row.part != LedgerPart::kVision;
}

TEST(DeviceLayout, WeightsOfTheRealModelTakeWhatTheLedgerSaysUpToAlignment) {
  for (const QuantFormat quant : kFormats) {
    for (const int ranks : {1, 2, 4, 8}) {
      const Grid grid = {.tp = ranks};
      const int64_t ledger =
          make_ledger(m3(quant), grid, DType::kBF16, DType::kBF16, /*vision=*/false).weight_bytes;
      const auto device = static_cast<int64_t>(device_weight_bytes(m3(quant), grid).value());
      int64_t tensors = 0;
      for (const TensorRow& row : tensor_table(m3(quant))) tensors += is_text(row);
      // Ranks also hold the index heads of others.
      int64_t others = 0;
      if (ranks > 1)
        for (const TensorRow& row : tensor_table(m3(quant)))
          if (row.role == TensorRole::kIndexQ)
            others += static_cast<int64_t>(row.spec.bytes()) - shard_bytes(m3(quant), grid, row);
      EXPECT_LE(device, ledger + others + tensors * static_cast<int64_t>(kDeviceAlignment)) << ranks;
      // M3's own sizes are aligned as they are, with up to 8 ranks, and full cells are as large as what they
      // hold: a quantised model takes what its files have.
      EXPECT_EQ(device, ledger + others) << ranks;
    }
  }
}

TEST(DeviceLayout, MatricesKeepTheFormatOfTheirTensors) {
  const DeviceLayout layout = make_device_layout(tiny(QuantFormat::kMxfp8), {}).value();
  EXPECT_EQ(layout.model[DeviceTensor::kEmbed].format, MatrixFormat::kBF16);
  EXPECT_EQ(layout.model[DeviceTensor::kHead].format, MatrixFormat::kBF16);
  for (const DeviceLayerLayout& layer : layout.layers) {
    using enum DeviceTensor;
    for (const DeviceTensor tensor : {kQkv, kO, kGateUp, kDown}) {
      const DeviceTensorLayout& matrix = layer.tensors[tensor];
      EXPECT_EQ(matrix.format, MatrixFormat::kMxfp8);
      EXPECT_EQ(matrix.bytes(), static_cast<size_t>(matrix.rows * matrix.cols / 1024 * 1056));
    }
    EXPECT_EQ(layer.tensors[kInputNorm].format, MatrixFormat::kBF16);
    EXPECT_EQ(layer.expanded_numbers, std::max(layer.tensors[kQkv].rows * layer.tensors[kQkv].cols,
                                               layer.tensors[kO].rows * layer.tensors[kO].cols));
  }
  const DeviceLayout mxfp4 = make_device_layout(tiny(QuantFormat::kMxfp4), {}).value();
  const DeviceTensorLayout& experts = mxfp4.layers[1].tensors[DeviceTensor::kGateUp];
  EXPECT_EQ(experts.format, MatrixFormat::kMxfp4);
  EXPECT_EQ(experts.bytes(), static_cast<size_t>(experts.rows * experts.cols / 1024 * 544));
}

// A tensor of a quantised model that a list of exclusions leaves in bf16.
void leave_unquantised(std::vector<TensorRow>& rows, TensorRole role, int layer) {
  const auto is_it = [&](const TensorRow& row) { return row.role == role && row.layer == layer; };
  std::erase_if(rows, [&](const TensorRow& row) { return is_it(row) && row.piece == TensorPiece::kScales; });
  TensorRow& row = *std::ranges::find_if(rows, is_it);
  row.spec.shape.back() = row.columns();
  row.spec.dtype = DType::kBF16;
  row.format = row.device.format = MatrixFormat::kBF16;
}

TEST(DeviceLayout, AMatrixWhoseTensorsDifferIsExpanded) {
  const ModelConfig config = tiny(QuantFormat::kMxfp8);
  std::vector<TensorRow> rows = tensor_table(config);
  leave_unquantised(rows, TensorRole::kK, 1);
  const DeviceLayout layout = make_device_layout(config, {}, rows).value();
  const DeviceTensors& mixed = layout.layers[1].tensors;
  EXPECT_EQ(mixed[DeviceTensor::kQkv].format, MatrixFormat::kBF16);
  EXPECT_EQ(mixed[DeviceTensor::kQkv].bytes(),
            static_cast<size_t>(mixed[DeviceTensor::kQkv].rows * mixed[DeviceTensor::kQkv].cols * 2));
  EXPECT_EQ(mixed[DeviceTensor::kO].format, MatrixFormat::kMxfp8);
  EXPECT_EQ(layout.layers[0].tensors[DeviceTensor::kQkv].format, MatrixFormat::kMxfp8);
  for (const DevicePart& part : layout.parts) {
    if (part.tensor.layer != 1 || part.tensor.device.tensor != DeviceTensor::kQkv) continue;
    EXPECT_EQ(part.tensor.device.format, MatrixFormat::kBF16) << part.tensor.spec.name;
    EXPECT_EQ(part.tensor.format,
              part.tensor.role == TensorRole::kK ? MatrixFormat::kBF16 : MatrixFormat::kMxfp8);
  }
}

TEST(DeviceLayout, AnF32ModelTakesHalfOfItselfButForItsRouter) {
  ModelConfig wide = tiny();
  wide.dtype = DType::kF32;
  EXPECT_EQ(device_weight_bytes(wide, {}).value(), device_weight_bytes(tiny(), {}).value());
}

TEST(DeviceLayout, EveryTensorIsAligned) {
  const DeviceLayout layout = make_device_layout(tiny(), {.tp = 4}).value();
  size_t there = 0;
  for (const DeviceLayerLayout& layer : layout.layers)
    for (const DeviceTensorLayout& tensor : layer.tensors.all) {
      if (tensor.offset == DeviceTensorLayout::kAbsent) continue;
      EXPECT_EQ(tensor.offset % kDeviceAlignment, 0u);
      ++there;
    }
  EXPECT_EQ(there, 8u + 2 * 12);  // one dense layer, two sparse ones
}

// Which bits of the memory have been written.
class Bits {
 public:
  explicit Bits(size_t bytes) : taken_(bytes) {}

  // Whether these are there and free; they are not any more.
  bool take(size_t byte, uint8_t bits = 0xff) {
    if (byte >= taken_.size() || (taken_[byte] & bits) != 0) return false;
    taken_[byte] |= bits;
    return true;
  }
  // As many bits of its word as a code has, and with the first of a group its scale.
  bool take_code(const DevicePart& part, int64_t row, int64_t column) {
    using namespace ops::cuda;
    const MatrixFormat format = part.tensor.device.format;
    const int64_t cell = row / kCellRows * (part.matrix_columns / kCellColumns) + column / kCellColumns;
    const size_t at = part.offset + static_cast<size_t>(cell * cell_bytes(format));
    const int r = static_cast<int>(row % kCellRows), c = static_cast<int>(column % kCellColumns);
    const size_t word = at + static_cast<size_t>(cell_word_at(format, r, c));
    const auto of_word = static_cast<size_t>(c / 8 * 2 + c % 2);  // codes of a word: pairs, 8 columns apart
    bool free = format == MatrixFormat::kMxfp8 ? take(word + of_word % 4)
                                               : take(word + of_word % 8 / 2, of_word % 2 ? 0xf0 : 0x0f);
    if (c % kScaleGroup == 0) free &= take(at + static_cast<size_t>(cell_scale_at(format, r, c / 32)));
    return free;
  }

 private:
  std::vector<uint8_t> taken_;
};

// Every element of every part has a place of its own inside the memory.
void expect_no_overlap(const ModelConfig& config, const Grid& grid) {
  const DeviceLayout layout = make_device_layout(config, grid).value();
  Bits bits(layout.bytes);
  for (const DevicePart& part : layout.parts) {
    const MatrixFormat format = part.tensor.device.format;
    const size_t element = size_of(dtype_of(format));
    for (int64_t r = 0; r < part.num_rows; ++r) {
      for (int64_t c = 0; c < part.num_cols; ++c) {
        const int64_t row = part.matrix_row + part.rows.place(r), column = part.columns.place(c);
        bool free = true;
        if (is_mx(format))
          free = bits.take_code(part, row, column);
        else
          for (size_t b = 0; b < element; ++b)
            free &= bits.take(part.offset +
                              static_cast<size_t>(row * part.matrix_columns + column) * element + b);
        ASSERT_TRUE(free) << part.tensor.spec.name << " " << r << " " << c;
      }
    }
  }
}

TEST(DeviceLayout, NoTwoElementsShareAPlace) {
  for (const int ranks : {1, 2, 4, 8})
    for (const int rank : {0, ranks - 1}) {
      expect_no_overlap(tiny(), {.tp = ranks, .rank = rank});
      expect_no_overlap(tiny(QuantFormat::kMxfp8), {.tp = ranks, .rank = rank});
      expect_no_overlap(tiny(QuantFormat::kMxfp4), {.tp = ranks, .rank = rank});
    }
}

// All ranks together hold every element of every tensor of the table: once, or on every rank, or, for KV
// heads beyond their number, as often as there are ranks for a head.
class DeviceLayoutOf : public ::testing::TestWithParam<QuantFormat> {};

TEST_P(DeviceLayoutOf, RanksTogetherHoldTheWholeModel) {
  const ModelConfig config = tiny(GetParam());
  for (const int ranks : {1, 2, 4, 8}) {
    std::map<std::string, std::vector<int>> holders;
    for (int rank = 0; rank < ranks; ++rank) {
      const DeviceLayout layout = make_device_layout(config, {.tp = ranks, .rank = rank}).value();
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
      if (!is_text(row) || row.piece == TensorPiece::kScales) continue;
      ASSERT_TRUE(holders.contains(spec.name)) << spec.name;
      const std::vector<int>& count = holders[spec.name];
      ASSERT_EQ(count.size(), static_cast<size_t>(spec.numel() * values_per_element(row.format)))
          << spec.name;
      const bool kv = row.role == TensorRole::kK || row.role == TensorRole::kV;
      const bool cut = row.role != TensorRole::kIndexQ &&
                       shard_bytes(config, {.tp = ranks}, row) < static_cast<int64_t>(spec.bytes());
      const int expected = kv ? std::max(1, ranks / config.num_kv_heads) : cut ? 1 : ranks;
      for (const int n : count) ASSERT_EQ(n, expected) << spec.name;
      holders.erase(spec.name);
    }
    EXPECT_TRUE(holders.empty()) << holders.begin()->first;
  }
}

INSTANTIATE_TEST_SUITE_P(Formats, DeviceLayoutOf, ::testing::ValuesIn(kFormats), [](const auto& info) {
  return std::string(info.param == QuantFormat::kNone    ? "BF16"
                     : info.param == QuantFormat::kMxfp8 ? "MXFP8"
                                                         : "MXFP4");
});

// Behind index keys and the rank's own index heads come those of other ranks: products may leave them out.
TEST_P(DeviceLayoutOf, IndexHeadsOfOtherRanksComeLast) {
  for (const int ranks : {1, 2, 4})
    for (int rank = 0; rank < ranks; ++rank) {
      SCOPED_TRACE(testing::Message() << "rank " << rank << " of " << ranks);
      const DeviceLayout layout = make_device_layout(tiny(GetParam()), {.tp = ranks, .rank = rank}).value();
      const DeviceLayerLayout& layer = layout.layers[1];
      const int64_t after_kv = (layout.query_heads + 2 * layout.kv_heads) * 128;
      int64_t next = after_kv + 128, seen = 0;
      for (const DevicePart& part : layout.parts) {
        if (part.tensor.layer != 1) continue;
        if (part.tensor.role == TensorRole::kIndexK) {
          EXPECT_EQ(part.matrix_row, after_kv);
        }
        if (part.tensor.role != TensorRole::kIndexQ) continue;
        EXPECT_EQ(part.matrix_row, next);
        if (seen++ == 0) {  // its own
          EXPECT_EQ(part.first_row, rank * 2 / ranks * 128);
          EXPECT_EQ(part.matrix_row + part.num_rows, layer.qkv_rows);
        }
        next += part.num_rows;
      }
      EXPECT_EQ(next, layer.qkv_rows + layer.other_index_rows);
      EXPECT_EQ(layer.other_index_rows, ranks == 1 ? 0 : 128);
    }
}

TEST(DeviceLayout, SmallGroupsOfQueryHeadsAreFilledUpToFour) {
  // 4 ranks: 2 query heads and one KV head for each.
  const DeviceLayout layout = make_device_layout(tiny(), {.tp = 4, .rank = 1}).value();
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
  EXPECT_EQ(make_device_layout(tiny(), {.tp = 2})->layers[1].inter, 64);
  EXPECT_EQ(make_device_layout(tiny(), {.tp = 4})->layers[0].inter, 128);
  EXPECT_EQ(make_device_layout(m3(), {.tp = 8})->layers[0].inter, 1536);
  EXPECT_EQ(make_device_layout(m3(), {.tp = 8})->layers[3].inter, 384);
}

std::string error_of(const ModelConfig& config, int ranks = 1) {
  const auto layout = make_device_layout(config, {.tp = ranks});
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

// A table that would keep the vocabulary's matrix in codes or f32, or the router in bf16: no kernel reads
// that.
TEST(DeviceLayout, AFormatThatNoKernelReadsIsAnErrorThatNamesTensorAndFormat) {
  const auto error_with = [](TensorRole role, MatrixFormat format) {
    std::vector<TensorRow> rows = tensor_table(tiny());
    std::ranges::find(rows, role, &TensorRow::role)->device.format = format;
    const auto layout = make_device_layout(tiny(), {}, rows);
    return layout.ok() ? "" : layout.error().message;
  };
  EXPECT_EQ(error_with(TensorRole::kDown, MatrixFormat::kBF16), "");
  EXPECT_THAT(error_with(TensorRole::kEmbed, MatrixFormat::kMxfp8),
              AllOf(HasSubstr("embed_tokens.weight"), HasSubstr("do not read MXFP8")));
  EXPECT_THAT(error_with(TensorRole::kDown, MatrixFormat::kF32),
              AllOf(HasSubstr("layers.0.mlp.down_proj.weight"), HasSubstr("do not read F32")));
  EXPECT_THAT(error_with(TensorRole::kHead, MatrixFormat::kF32),
              AllOf(HasSubstr("lm_head.weight"), HasSubstr("do not read F32")));
  EXPECT_THAT(error_with(TensorRole::kRouter, MatrixFormat::kBF16),
              AllOf(HasSubstr("gate.weight"), HasSubstr("do not read BF16")));
}

}  // namespace
}  // namespace sparrow
