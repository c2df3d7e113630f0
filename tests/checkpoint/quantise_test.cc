// SPDX-License-Identifier: Apache-2.0
// Whole checkpoints, quantised: what is written, that nothing changes a second time, and what is refused.
#include "checkpoint/mx/quantise.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <map>

#include "base/files/mapped_file.h"
#include "base/json/json.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/random/synthetic.h"
#include "checkpoint/tensor_table.h"
#include "support/checkpoint/expanded.h"
#include "support/checkpoint/folder_files.h"
#include "support/golden.h"
#include "support/temp_dir.h"

namespace sparrow {
namespace {

using test::files_of;
using test::TempDir;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
namespace fs = std::filesystem;

// Every tensor of a folder by name: its type and bytes.
std::map<std::string, std::string> tensors_of(const fs::path& dir) {
  std::map<std::string, std::string> tensors;
  for (const auto& item : fs::directory_iterator(dir)) {
    if (item.path().extension() != ".safetensors") continue;
    const SafetensorsFile file = SafetensorsFile::open(item.path()).value();
    for (const auto& [name, entry] : file.header().entries) {
      const auto bytes = file.bytes(entry);
      tensors[name] = entry.dtype_name + shape_string(entry.shape);
      tensors[name].append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    }
  }
  return tensors;
}

// Writes over some bytes of a tensor.
void overwrite(const fs::path& dir, std::string_view tensor, size_t at, std::string_view bytes) {
  for (const auto& item : fs::directory_iterator(dir)) {
    if (item.path().extension() != ".safetensors") continue;
    std::string file = read_text_file(item.path(), 1 << 24).value();
    const SafetensorsHeader header = parse_safetensors_header(std::as_bytes(std::span(file))).value();
    const auto entry = header.entries.find(tensor);
    if (entry == header.entries.end()) continue;
    file.replace(entry->second.begin + at, bytes.size(), bytes);
    ASSERT_TRUE(write_text_file(item.path(), file).ok());
    return;
  }
  FAIL() << "no tensor " << tensor;
}

template <typename T>
std::string bytes_of(T value) {
  return {reinterpret_cast<const char*>(&value), sizeof value};
}

std::string error_of(const Result<QuantiseReport>& report) {
  return report.ok() ? "" : report.error().message;
}

class Quantise : public ::testing::TestWithParam<MatrixFormat> {
 protected:
  QuantFormat quant() const {
    return GetParam() == MatrixFormat::kMxfp8 ? QuantFormat::kMxfp8 : QuantFormat::kMxfp4;
  }
  fs::path made(const char* name, MatrixFormat format = MatrixFormat::kBF16) const {
    const Status status =
        write_synthetic_checkpoint({.seed = 4, .dir = dir_.path() / name, .format = format});
    EXPECT_TRUE(status.ok()) << status.error().message;
    return dir_.path() / name;
  }
  QuantiseReport quantised(const fs::path& from, const fs::path& to) const {
    const auto report = quantise_checkpoint({.from = from, .to = to, .format = quant()});
    EXPECT_TRUE(report.ok()) << error_of(report);
    return report.ok() ? report.value() : QuantiseReport{};
  }

  const TempDir dir_;
};

TEST_P(Quantise, WritesTheLayoutOfTheFormatWithEverythingElse) {
  const fs::path from = made("m"), to = dir_.path() / "q";
  ASSERT_TRUE(write_text_file(from / "tokenizer.json", "{}").ok());
  const QuantiseReport report = quantised(from, to);
  const auto checkpoint = Checkpoint::open(to);
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.error().message;
  EXPECT_EQ(checkpoint->config().quant, quant());
  const LayerWeights& layer = checkpoint->weights().layers[1];
  const bool all = quant() == QuantFormat::kMxfp8;
  EXPECT_EQ(layer.experts[0].down.format(), GetParam());
  EXPECT_EQ(layer.mlp.up.format(), GetParam());  // the shared expert
  EXPECT_EQ(layer.q.format(), all ? MatrixFormat::kMxfp8 : MatrixFormat::kBF16);
  EXPECT_EQ(checkpoint->weights().layers[0].mlp.up.format(),
            all ? MatrixFormat::kMxfp8 : MatrixFormat::kBF16);
  // Files are those of the source; what a random checkpoint of this format has beside its weights is the
  // same.
  const auto before = files_of(from), after = files_of(to), random = files_of(made("r", GetParam()));
  for (const auto& [name, text] : before) EXPECT_TRUE(after.contains(name)) << name;
  EXPECT_EQ(after.size(), before.size());
  EXPECT_EQ(after.at("tokenizer.json"), "{}");
  EXPECT_EQ(after.at("config.json"), random.at("config.json"));
  // The report counts what is there.
  uint64_t bytes = 0;
  for (const QuantisedPart& part : report.parts) bytes += part.bytes_after;
  EXPECT_EQ(bytes, checkpoint->weight_bytes());
}

TEST_P(Quantise, ErrorsAreThoseOfTheFormat) {
  const QuantiseReport report = quantised(made("m"), dir_.path() / "q");
  for (const QuantisedPart& part : report.parts) {
    if (part.matrices == 0) continue;
    const bool all = quant() == QuantFormat::kMxfp8;
    EXPECT_NEAR(part.error.relative(), all ? 0.0287 : 0.109, all ? 0.001 : 0.005);
    EXPECT_GE(part.worst, part.error.relative());
    EXPECT_FALSE(part.worst_matrix.empty());
    EXPECT_GT(part.error.largest, 0.0);
    EXPECT_LT(part.bytes_after, part.bytes_before);
  }
}

// Again from the result, and again from what it stands for: no value changes. Twice from the source: the
// same.
TEST_P(Quantise, ASecondTimeNothingChanges) {
  const fs::path from = made("m"), once = dir_.path() / "once", again = dir_.path() / "again",
                 twice = dir_.path() / "twice", expanded = dir_.path() / "expanded",
                 back = dir_.path() / "back", back_expanded = dir_.path() / "back-expanded";
  quantised(from, once);
  quantised(from, again);
  EXPECT_EQ(files_of(once), files_of(again));
  EXPECT_EQ(quantised(once, twice).from, quant());
  EXPECT_EQ(files_of(once), files_of(twice));
  test::write_expanded(once, expanded);
  for (const QuantisedPart& part : quantised(expanded, back).parts) EXPECT_EQ(part.error.error_squares, 0.0);
  test::write_expanded(back, back_expanded);
  EXPECT_EQ(tensors_of(expanded), tensors_of(back_expanded));
}

// f32 weights round as they are, not by way of bf16, and what is not quantised stays f32.
TEST_P(Quantise, TakesF32) {
  const fs::path from = made("m", MatrixFormat::kF32), to = dir_.path() / "q";
  quantised(from, to);
  const auto checkpoint = Checkpoint::open(to);
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.error().message;
  EXPECT_EQ(checkpoint->config().dtype, DType::kF32);
  EXPECT_EQ(checkpoint->weights().head.values.dtype, DType::kF32);
  const Checkpoint source = Checkpoint::open(from).value();
  const ops::Weight &was = source.weights().layers[1].experts[2].gate,
                    &is = checkpoint->weights().layers[1].experts[2].gate;
  std::vector<uint8_t> codes(static_cast<size_t>(was.values.numel())), scales(codes.size() / 32);
  round_groups(GetParam(), {was.values.as<float>(), codes.size()}, codes.data(), scales.data());
  const auto bytes = static_cast<size_t>(value_bytes(GetParam(), was.values.numel()));
  EXPECT_EQ(std::memcmp(codes.data(), is.values.data, bytes), 0);
  EXPECT_EQ(std::memcmp(scales.data(), is.scales.data, scales.size()), 0);
}

// What only one of the formats has quantised: MXFP4 takes experts of MXFP8 and expands the rest of it; MXFP8
// holds every number of MXFP4.
TEST_P(Quantise, TakesTheOtherFormat) {
  const bool to_mxfp8 = quant() == QuantFormat::kMxfp8;
  const MatrixFormat other = to_mxfp8 ? MatrixFormat::kMxfp4 : MatrixFormat::kMxfp8;
  const fs::path from = made("m", other), to = dir_.path() / "q";
  const QuantiseReport report = quantised(from, to);
  EXPECT_EQ(report.from, to_mxfp8 ? QuantFormat::kMxfp4 : QuantFormat::kMxfp8);
  ASSERT_TRUE(Checkpoint::open(to).ok()) << Checkpoint::open(to).error().message;
  test::write_expanded(from, dir_.path() / "a");
  test::write_expanded(to, dir_.path() / "b");
  const auto a = tensors_of(dir_.path() / "a"), b = tensors_of(dir_.path() / "b");
  for (const auto& [name, tensor] : a) {
    const bool is_expert = name.find("expert") != std::string::npos;
    const bool is_exact = to_mxfp8 == is_expert || name.find("norm") != std::string::npos;
    EXPECT_TRUE(!is_exact || tensor == b.at(name)) << name;
  }
  for (const QuantisedPart& part : report.parts)
    EXPECT_TRUE(part.part != LedgerPart::kRoutedExperts || (part.error.relative() == 0.0) == to_mxfp8);
}

TEST_P(Quantise, NumbersThatDoNotFitAreRefusedByName) {
  const fs::path from = made("m"), to = dir_.path() / "q";
  const std::string name = "language_model.model.layers.2.block_sparse_moe.experts.5.w3.weight";
  for (const auto& [value, text] : {std::pair{65536.0f, "is 65536;"}, {NAN, "nan"}, {-INFINITY, "-inf"}}) {
    overwrite(from, name, (3 * 128 + 70) * sizeof(BFloat16), bytes_of(to_bf16(value)));
    const std::string error = error_of(quantise_checkpoint({.from = from, .to = to, .format = quant()}));
    EXPECT_THAT(error, AllOf(HasSubstr(name), HasSubstr("row 3, column 70"), HasSubstr(text),
                             HasSubstr(name_of(GetParam()))));
    EXPECT_FALSE(fs::exists(to)) << "nothing is left of it";
  }
}

INSTANTIATE_TEST_SUITE_P(Formats, Quantise, ::testing::Values(MatrixFormat::kMxfp8, MatrixFormat::kMxfp4),
                         [](const auto& info) { return std::string(name_of(info.param)); });

// Also where no number is rounded: matrices and norms that are copied, as they are stored.
TEST(Quantise, CopiesAreOfNumbers) {
  const auto expect_refused = [](MatrixFormat stored, const std::string& tensor, size_t at,
                                 std::string_view bytes, const std::string& text) {
    const TempDir dir;
    const fs::path from = dir.path() / "m", to = dir.path() / "q";
    ASSERT_TRUE(write_synthetic_checkpoint({.dir = from, .format = stored}).ok());
    overwrite(from, tensor, at, bytes);
    const QuantFormat format = stored == MatrixFormat::kMxfp8 ? QuantFormat::kMxfp8 : QuantFormat::kMxfp4;
    EXPECT_THAT(error_of(quantise_checkpoint({.from = from, .to = to, .format = format})),
                AllOf(HasSubstr("tensor " + tensor + ": row"), EndsWith(text)));
    EXPECT_FALSE(fs::exists(to)) << "nothing is left of it";
  };
  const std::string q = "language_model.model.layers.1.self_attn.q_proj.weight",
                    norm = "language_model.model.layers.2.input_layernorm.weight",
                    bias = "language_model.model.layers.1.block_sparse_moe.e_score_correction_bias",
                    patch = "vision_tower.vision_model.embeddings.patch_embedding.weight";
  const std::string nan = bytes_of(to_bf16(NAN)), inf = bytes_of(to_bf16(-INFINITY));
  expect_refused(MatrixFormat::kMxfp8, q, 5, "\x7f", "row 0, column 5 is 0x7f, which means NaN");
  expect_refused(MatrixFormat::kMxfp8, q, 3 * 128 + 71, "\xff", "row 3, column 71 is 0xff, which means NaN");
  expect_refused(MatrixFormat::kBF16, q, (3 * 128 + 70) * sizeof(BFloat16), nan, "row 3, column 70 is nan");
  expect_refused(MatrixFormat::kF32, q, (3 * 128 + 70) * sizeof(float), bytes_of(-INFINITY),
                 "row 3, column 70 is -inf");
  expect_refused(MatrixFormat::kBF16, norm, 127 * sizeof(BFloat16), inf, "row 0, column 127 is -inf");
  expect_refused(MatrixFormat::kBF16, bias, 7 * sizeof(float), bytes_of(NAN), "row 0, column 7 is nan");
  expect_refused(MatrixFormat::kBF16, patch, (3 * 2 * 14 * 14 + 2) * sizeof(float), bytes_of(INFINITY),
                 "row 1, column 2 is inf");
}

// What the model has no use for may be anything.
TEST(Quantise, OtherTensorsAreCopiedUnchecked) {
  const TempDir dir;
  const fs::path from = dir.path() / "m", to = dir.path() / "q";
  ASSERT_TRUE(write_synthetic_checkpoint({.dir = from}).ok());
  const std::string name = "language_model.mtp.weight", nan = bytes_of(NAN);
  auto writer = SafetensorsWriter::create(from / "more.safetensors", {{name, DType::kF32, {1}}}, {}).value();
  ASSERT_TRUE(writer.write(0, std::as_bytes(std::span(nan)), 0).ok() && writer.finish().ok());
  std::string index = read_text_file(from / "model.safetensors.index.json", 1 << 20).value();
  index.insert(index.find("weight_map\": {") + 14, json_quoted(name) + ": \"more.safetensors\",");
  ASSERT_TRUE(write_text_file(from / "model.safetensors.index.json", index).ok());
  const auto report = quantise_checkpoint({.from = from, .to = to});
  ASSERT_TRUE(report.ok()) << error_of(report);
  EXPECT_THAT(tensors_of(to).at(name), EndsWith(nan));
}

// Experts as MXFP4 has them and all else as MXFP8 has it, whether it comes from bf16 or from MXFP8.
TEST(Quantise, BothFormatsInOneModel) {
  const TempDir dir;
  ASSERT_TRUE(write_synthetic_checkpoint({.seed = 4, .dir = dir.path() / "m"}).ok());
  const auto made = [&](const char* from, const char* to, QuantFormat format) {
    const auto report =
        quantise_checkpoint({.from = dir.path() / from, .to = dir.path() / to, .format = format});
    EXPECT_TRUE(report.ok()) << error_of(report);
    return tensors_of(dir.path() / to);
  };
  const auto mxfp4 = made("m", "4", QuantFormat::kMxfp4), mxfp8 = made("m", "8", QuantFormat::kMxfp8);
  const auto both = made("m", "both", QuantFormat::kMxfp4Mxfp8);
  size_t experts = 0;
  for (const auto& [name, tensor] : both) {
    const bool is_expert = name.find("expert") != std::string::npos;
    experts += is_expert ? 1 : 0;
    const auto& expected = is_expert ? mxfp4 : mxfp8;
    ASSERT_TRUE(expected.contains(name)) << name;
    EXPECT_TRUE(tensor == expected.at(name)) << name;
  }
  EXPECT_EQ(experts, 2 * (8 + 1) * 3 * 2);  // values and scales of 3 matrices in 2 layers
  EXPECT_EQ(both.size(), mxfp8.size());
  EXPECT_EQ(made("both", "again", QuantFormat::kMxfp4Mxfp8), both);
  for (const auto& [name, tensor] : made("8", "from8", QuantFormat::kMxfp4Mxfp8))
    EXPECT_TRUE(name.find("expert") != std::string::npos || tensor == mxfp8.at(name)) << name;

  const auto checkpoint = Checkpoint::open(dir.path() / "both");
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.error().message;
  EXPECT_EQ(checkpoint->config().quant, QuantFormat::kMxfp4Mxfp8);
  const LayerWeights& layer = checkpoint->weights().layers[1];
  EXPECT_EQ(layer.experts[7].gate.format(), MatrixFormat::kMxfp4);
  EXPECT_EQ(layer.mlp.down.format(), MatrixFormat::kMxfp4);  // the shared expert
  EXPECT_EQ(layer.o.format(), MatrixFormat::kMxfp8);
  EXPECT_EQ(layer.index_q.format(), MatrixFormat::kMxfp8);
  EXPECT_EQ(checkpoint->weights().layers[0].mlp.up.format(), MatrixFormat::kMxfp8);
  EXPECT_EQ(checkpoint->weights().head.format(), MatrixFormat::kBF16);
}

// The dense layer of these is called as one of a MoE layer, and the text model has no prefix: what is
// quantised is decided by the names that the files have, whoever asks.
TEST(Quantise, ModelsInOtherSpellings) {
  const TempDir dir;
  const fs::path golden = test::golden_dir() / "bf16";
  for (const QuantFormat format : {QuantFormat::kMxfp8, QuantFormat::kMxfp4, QuantFormat::kMxfp4Mxfp8}) {
    SCOPED_TRACE(name_of(format));
    const fs::path to = dir.path() / name_of(format);
    const auto report = quantise_checkpoint({.from = golden, .to = to, .format = format});
    ASSERT_TRUE(report.ok()) << error_of(report);
    const auto checkpoint = Checkpoint::open(to);
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.error().message;
    EXPECT_EQ(checkpoint->config().names, (NameScheme{.dense_as_moe = true}));
    EXPECT_EQ(model_config(to).value().names, checkpoint->config().names);
    for (const TensorRow& row : tensor_table(checkpoint->config())) {
      const ops::Weight weight = find_weight(checkpoint->weights(), row.role, row.layer, row.expert);
      if (row.piece == TensorPiece::kValues && !weight.values.empty()) {
        EXPECT_EQ(is_mx(weight.format()), is_mx(row.format)) << row.spec.name;
      }
    }
  }
}

// Checkpoints that others wrote: what they stand for becomes what they are. Quark's to the byte; MXFP8 may
// have been written with larger scales than are needed, and minus zeros.
TEST(Quantise, WhatPublishedCheckpointsStandForBecomesThemAgain) {
  const TempDir dir;
  const fs::path mxfp4 = test::golden_dir() / "mxfp4", mxfp8 = test::golden_dir() / "mxfp8";
  const auto round = [&](const fs::path& from, QuantFormat format) {
    const fs::path expanded = dir.path() / "expanded" / from.filename();
    test::write_expanded(from, expanded);
    const auto report =
        quantise_checkpoint({.from = expanded, .to = dir.path() / from.filename(), .format = format});
    EXPECT_TRUE(report.ok()) << error_of(report);
    int64_t matrices = 0;
    for (const QuantisedPart& part : report->parts) {
      EXPECT_EQ(part.error.error_squares, 0.0);
      matrices += part.matrices;
    }
    EXPECT_GT(matrices, 0);
    return dir.path() / from.filename();
  };
  round(mxfp8, QuantFormat::kMxfp8);
  const fs::path again = round(mxfp4, QuantFormat::kMxfp4);
  EXPECT_TRUE(tensors_of(again) == tensors_of(mxfp4));
  EXPECT_EQ(load_config(again)->unquantised, load_config(mxfp4)->unquantised);
}

}  // namespace
}  // namespace sparrow
