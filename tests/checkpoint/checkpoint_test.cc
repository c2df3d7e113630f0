// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/checkpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include "base/files/mapped_file.h"
#include "checkpoint/random/synthetic.h"
#include "checkpoint/tensor_table.h"
#include "support/m3_config.h"
#include "support/temp_dir.h"

namespace sparrow {
namespace {

using test::TempDir;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
namespace fs = std::filesystem;

constexpr const char* kIndex = "model.safetensors.index.json";
constexpr const char* kShard1 = "model-00001-of-00002.safetensors";
constexpr const char* kShard2 = "model-00002-of-00002.safetensors";
const std::string kLayer1 = "language_model.model.layers.1.";

void write_tiny(const fs::path& dir, MatrixFormat format = MatrixFormat::kBF16) {
  const Status status =
      write_synthetic_checkpoint({.preset = "tiny", .seed = 7, .dir = dir, .format = format});
  ASSERT_TRUE(status.ok()) << status.error().message;
}

std::string read_text(const fs::path& path) {
  return read_text_file(path, 1 << 24).value();
}

void edit(const fs::path& path, std::string_view from, std::string_view to) {
  ASSERT_TRUE(write_text_file(path, test::replaced(read_text(path), from, to)).ok());
}

// The tensors of a checkpoint in memory, to be changed and stored again as one file.
struct Stored {
  TensorSpec spec;
  std::vector<std::byte> bytes;
};

std::vector<Stored> read_tensors(const fs::path& dir) {
  std::vector<Stored> all;
  for (const fs::path& shard : {dir / kShard1, dir / kShard2}) {
    const auto file = SafetensorsFile::open(shard);
    EXPECT_TRUE(file.ok());
    for (const auto& [name, entry] : file->header().entries) {
      const auto bytes = file->bytes(entry);
      all.push_back({{name, *entry.dtype, entry.shape}, {bytes.begin(), bytes.end()}});
    }
  }
  return all;
}

void write_file(const fs::path& path, const std::vector<Stored>& tensors) {
  std::vector<TensorSpec> specs;
  for (const Stored& tensor : tensors) specs.push_back(tensor.spec);
  auto writer = SafetensorsWriter::create(path, specs);
  ASSERT_TRUE(writer.ok());
  for (size_t i = 0; i < tensors.size(); ++i) ASSERT_TRUE(writer->write(i, tensors[i].bytes).ok());
  ASSERT_TRUE(writer->finish().ok());
}

Stored& named(std::vector<Stored>& tensors, const std::string& name) {
  for (Stored& tensor : tensors)
    if (tensor.spec.name == name) return tensor;
  ADD_FAILURE() << name;
  return tensors.front();
}

// A tiny checkpoint as a single file, with `change` applied to its tensors.
void write_changed(const fs::path& dir, const std::function<void(std::vector<Stored>&)>& change,
                   MatrixFormat format = MatrixFormat::kBF16) {
  write_tiny(dir, format);
  std::vector<Stored> tensors = read_tensors(dir);
  for (const char* name : {kIndex, kShard1, kShard2}) fs::remove(dir / name);
  change(tensors);
  write_file(dir / "model.safetensors", tensors);
}

std::string open_error(const fs::path& dir) {
  const auto checkpoint = Checkpoint::open(dir);
  return checkpoint.ok() ? "(no error)" : checkpoint.error().message;
}

TEST(Checkpoint, ShardsOpenWithEveryTensorBound) {
  const TempDir dir;
  write_tiny(dir.path());
  uint64_t done = 0, total = 0;
  auto opened = Checkpoint::open(dir.path(), {.progress = [&](uint64_t d, uint64_t t) {
                                   EXPECT_LE(done, d);
                                   done = d;
                                   total = t;
                                 }});
  ASSERT_TRUE(opened.ok()) << opened.error().message;
  const Checkpoint checkpoint = std::move(opened).value();
  EXPECT_GT(total, 0u);
  EXPECT_EQ(done, total);
  size_t bytes = 0;
  for (const TensorRow& row : tensor_table(checkpoint.config())) bytes += row.spec.bytes();
  EXPECT_EQ(checkpoint.weight_bytes(), bytes);

  const Weights& weights = checkpoint.weights();
  EXPECT_EQ(shape_string(weights.embed), "[512, 128]");
  EXPECT_EQ(shape_string(weights.head.values), "[512, 128]");
  ASSERT_EQ(weights.layers.size(), 3u);
  EXPECT_EQ(shape_string(weights.layers[0].mlp.gate.values), "[384, 128]");
  EXPECT_TRUE(weights.layers[0].router.values.empty());
  EXPECT_TRUE(weights.layers[0].index_q.values.empty());
  EXPECT_EQ(shape_string(weights.layers[2].q.values), "[1024, 128]");
  EXPECT_EQ(shape_string(weights.layers[2].o.values), "[128, 1024]");
  EXPECT_EQ(shape_string(weights.layers[2].index_q.values), "[256, 128]");
  EXPECT_EQ(shape_string(weights.layers[2].index_k.values), "[128, 128]");
  EXPECT_EQ(shape_string(weights.layers[2].mlp.down.values), "[128, 64]");
  ASSERT_EQ(weights.layers[2].experts.size(), 8u);
  EXPECT_EQ(shape_string(weights.layers[2].experts[7].down.values), "[128, 64]");
  EXPECT_EQ(weights.layers[2].router_bias.dtype, DType::kF32);
}

TEST(Checkpoint, ViewsHoldTheStoredValues) {
  const TempDir dir;
  write_tiny(dir.path());
  std::vector<Stored> tensors = read_tensors(dir.path());
  const auto checkpoint = Checkpoint::open(dir.path());
  ASSERT_TRUE(checkpoint.ok());
  const auto holds = [&](const Tensor& view, const std::string& name) {
    const Stored& stored = named(tensors, name);
    return std::memcmp(view.data, stored.bytes.data(), stored.bytes.size()) == 0;
  };
  const LayerWeights& layer = checkpoint->weights().layers[1];
  const std::string moe = kLayer1 + "block_sparse_moe.";
  EXPECT_TRUE(holds(layer.experts[3].gate.values, moe + "experts.3.w1.weight"));
  EXPECT_TRUE(holds(layer.experts[3].up.values, moe + "experts.3.w3.weight"));
  EXPECT_TRUE(holds(layer.experts[3].down.values, moe + "experts.3.w2.weight"));
  EXPECT_TRUE(holds(layer.mlp.up.values, moe + "shared_experts.up_proj.weight"));
  EXPECT_TRUE(holds(layer.router.values, moe + "gate.weight"));
  EXPECT_TRUE(holds(layer.router_bias, moe + "e_score_correction_bias"));
  EXPECT_TRUE(holds(layer.k.values, kLayer1 + "self_attn.k_proj.weight"));
  EXPECT_TRUE(holds(layer.v.values, kLayer1 + "self_attn.v_proj.weight"));
  EXPECT_TRUE(holds(layer.index_k_norm, kLayer1 + "self_attn.index_k_norm.weight"));
  EXPECT_TRUE(holds(layer.post_attention_norm, kLayer1 + "post_attention_layernorm.weight"));
  EXPECT_TRUE(holds(checkpoint->weights().head.values, "language_model.lm_head.weight"));
  EXPECT_TRUE(holds(checkpoint->weights().final_norm, "language_model.model.norm.weight"));
}

TEST(Checkpoint, QuantisedWeightsComeWithTheirScales) {
  const TempDir dir;
  write_tiny(dir.path(), MatrixFormat::kMxfp8);
  const auto checkpoint = Checkpoint::open(dir.path());
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.error().message;
  const LayerWeights& layer = checkpoint->weights().layers[1];
  EXPECT_EQ(layer.q.values.dtype, DType::kF8E4M3);
  EXPECT_EQ(shape_string(layer.q.scales), "[1024, 4]");
  EXPECT_EQ(shape_string(layer.experts[0].down.scales), "[128, 2]");
  EXPECT_EQ(layer.router.values.dtype, DType::kF32);
  EXPECT_TRUE(layer.router.scales.empty());
  EXPECT_EQ(checkpoint->weights().head.values.dtype, DType::kBF16);
}

TEST(Checkpoint, GoldenCheckpointsWithTheirOwnSpellingOpen) {
  for (const char* name : {"f32", "bf16", "yarn"}) {
    const auto checkpoint = Checkpoint::open(fs::path(SPARROW_GOLDEN_DIR) / name);
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.error().message;
    EXPECT_EQ(shape_string(checkpoint->weights().layers[0].mlp.gate.values), "[384, 128]");
    EXPECT_EQ(checkpoint->weights().layers[1].router_bias.dtype, DType::kF32);
  }
}

TEST(Checkpoint, TextOnlyNamesWithoutPrefixOpen) {
  const TempDir dir;
  write_changed(dir.path(), [](std::vector<Stored>& tensors) {
    const std::string prefix = "language_model.";
    std::erase_if(tensors, [&](const Stored& t) { return t.spec.name.rfind(prefix, 0) != 0; });
    for (Stored& t : tensors) t.spec.name.erase(0, prefix.size());
  });
  edit(dir.path() / "config.json", "\"vision_config\"", "\"no_vision_config\"");
  EXPECT_EQ(open_error(dir.path()), "(no error)");
}

TEST(Checkpoint, TensorsAtOddAddressesAreCopied) {
  const TempDir dir;
  std::vector<Stored> before;
  write_changed(dir.path(), [&](std::vector<Stored>& tensors) {
    before = tensors;
    // One byte of a tensor that is ignored moves all others off their alignment.
    tensors.insert(tensors.begin(), Stored{{"language_model.model.mtp.x", DType::kU8, {1}}, {std::byte{1}}});
  });
  const auto checkpoint = Checkpoint::open(dir.path());
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.error().message;
  const Tensor& view = checkpoint->weights().layers[1].q.values;
  EXPECT_EQ(reinterpret_cast<uintptr_t>(view.data) % 2, 0u);
  const Stored& stored = named(before, kLayer1 + "self_attn.q_proj.weight");
  EXPECT_EQ(std::memcmp(view.data, stored.bytes.data(), stored.bytes.size()), 0);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(checkpoint->weights().layers[1].router_bias.data) % 4, 0u);
}

TEST(Checkpoint, MissingTensorsAreListed) {
  const TempDir dir;
  write_changed(dir.path(), [](std::vector<Stored>& tensors) {
    std::erase_if(tensors,
                  [](const Stored& t) { return t.spec.name == kLayer1 + "self_attn.index_k_proj.weight"; });
  });
  EXPECT_THAT(open_error(dir.path()),
              AllOf(HasSubstr("1 missing"), HasSubstr(kLayer1 + "self_attn.index_k_proj.weight"),
                    Not(HasSubstr("unexpected")), HasSubstr(dir.path().string())));
}

TEST(Checkpoint, AtMostTenTensorsOfAKindAreListedWithTheirCount) {
  const TempDir dir;
  write_changed(dir.path(), [](std::vector<Stored>& tensors) {
    std::erase_if(tensors,
                  [](const Stored& t) { return t.spec.name.find(".experts.") != std::string::npos; });
  });
  const std::string message = open_error(dir.path());
  EXPECT_THAT(message, AllOf(HasSubstr("48 missing"), HasSubstr("... and 38 more")));
  EXPECT_EQ(std::count(message.begin(), message.end(), '\n'), 0) << "one line, whatever is wrong";
}

TEST(Checkpoint, TensorsLeftOverAreListed) {
  const TempDir dir;
  write_changed(dir.path(), [](std::vector<Stored>& tensors) {
    tensors.push_back({{kLayer1 + "self_attn.gate.weight", DType::kU8, {2}}, std::vector<std::byte>(2)});
  });
  EXPECT_THAT(open_error(dir.path()),
              AllOf(HasSubstr("1 unexpected"), HasSubstr(kLayer1 + "self_attn.gate.weight")));
}

TEST(Checkpoint, AWrongShapeIsListedWithBothShapes) {
  const TempDir dir;
  write_changed(dir.path(), [](std::vector<Stored>& tensors) {
    named(tensors, kLayer1 + "self_attn.q_proj.weight").spec.shape = {128, 1024};
  });
  EXPECT_THAT(open_error(dir.path()),
              HasSubstr(kLayer1 + "self_attn.q_proj.weight is BF16 [128, 1024] and not BF16 [1024, 128]"));
}

TEST(Checkpoint, AWrongTypeIsListedWithBothTypes) {
  const TempDir dir;
  write_changed(dir.path(), [](std::vector<Stored>& tensors) {
    TensorSpec& spec = named(tensors, kLayer1 + "input_layernorm.weight").spec;
    spec.dtype = DType::kU8;
    spec.shape = {256};
  });
  EXPECT_THAT(open_error(dir.path()),
              HasSubstr(kLayer1 + "input_layernorm.weight is U8 [256] and not BF16 [128]"));
}

TEST(Checkpoint, FloatsMayBeStoredInEitherFloatingType) {
  const TempDir dir;
  write_changed(dir.path(), [](std::vector<Stored>& tensors) {
    Stored& norm = named(tensors, kLayer1 + "input_layernorm.weight");
    norm.spec.dtype = DType::kF32;
    norm.bytes.assign(512, std::byte{0});
    Stored& bias = named(tensors, kLayer1 + "block_sparse_moe.e_score_correction_bias");
    bias.spec.dtype = DType::kBF16;
    bias.bytes.assign(16, std::byte{0x3f});
  });
  const auto checkpoint = Checkpoint::open(dir.path());
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.error().message;
  EXPECT_EQ(checkpoint->weights().layers[1].input_norm.dtype, DType::kF32);
  EXPECT_EQ(checkpoint->weights().layers[1].router_bias.as<float>()[7], to_float(BFloat16{0x3f3f}));
}

TEST(Checkpoint, AScaleThatMeansNanIsAnErrorThatNamesItsPlace) {
  const TempDir dir;
  write_changed(
      dir.path(),
      [](std::vector<Stored>& tensors) {
        named(tensors, kLayer1 + "self_attn.q_proj.weight_scale_inv").bytes[4 * 9 + 2] = std::byte{255};
      },
      MatrixFormat::kMxfp8);
  EXPECT_THAT(open_error(dir.path()), AllOf(HasSubstr(kLayer1 + "self_attn.q_proj.weight_scale_inv"),
                                            HasSubstr("row 9, column 2"), HasSubstr("NaN")));
}

TEST(Checkpoint, ATruncatedShardIsAnErrorThatNamesIt) {
  const TempDir dir;
  write_tiny(dir.path());
  fs::resize_file(dir.path() / kShard2, fs::file_size(dir.path() / kShard2) - 1);
  EXPECT_THAT(open_error(dir.path()), AllOf(HasSubstr(kShard2), HasSubstr("data_offsets")));
  fs::resize_file(dir.path() / kShard2, 100);
  EXPECT_THAT(open_error(dir.path()), AllOf(HasSubstr(kShard2), HasSubstr("header claims")));
  fs::resize_file(dir.path() / kShard2, 0);
  EXPECT_THAT(open_error(dir.path()), AllOf(HasSubstr(kShard2), HasSubstr("0 bytes")));
}

TEST(Checkpoint, MissingFilesAreErrorsThatNameThem) {
  const TempDir dir;
  EXPECT_THAT(open_error(dir.path() / "absent"), HasSubstr("absent"));
  EXPECT_THAT(open_error(dir.path()), HasSubstr("config.json"));
  write_tiny(dir.path());
  fs::remove(dir.path() / kShard1);
  EXPECT_THAT(open_error(dir.path()), HasSubstr(kShard1));
  fs::remove(dir.path() / kIndex);
  EXPECT_THAT(open_error(dir.path()), AllOf(HasSubstr(kIndex), HasSubstr("model.safetensors")));
}

TEST(Checkpoint, AConfigThatIsNotJsonIsAnErrorThatNamesIt) {
  const TempDir dir;
  write_tiny(dir.path());
  ASSERT_TRUE(write_text_file(dir.path() / "config.json", "hidden_size: 128").ok());
  EXPECT_THAT(open_error(dir.path()),
              AllOf(HasSubstr(dir.path().string()), HasSubstr("config.json is not valid JSON")));
}

TEST(Checkpoint, AnIndexMayNotLeadOutOfItsFolder) {
  const std::string name = "language_model.model.norm.weight";
  for (const char* file : {"../x.safetensors", "/etc/passwd", "sub/x.safetensors", "..", ""}) {
    const TempDir dir;
    write_tiny(dir.path());
    edit(dir.path() / kIndex, "\"" + name + "\": \"" + kShard2 + "\"", "\"" + name + "\": \"" + file + "\"");
    EXPECT_THAT(open_error(dir.path()), AllOf(HasSubstr(name), HasSubstr("plain name"))) << file;
  }
}

TEST(Checkpoint, AnIndexThatContradictsItsShardsIsAnErrorThatNamesTheTensor) {
  const TempDir dir;
  write_tiny(dir.path());
  const std::string name = "language_model.model.norm.weight";
  const std::string index = read_text(dir.path() / kIndex);
  edit(dir.path() / kIndex, "\"" + name + "\": \"" + kShard2, "\"" + name + "\": \"" + kShard1);
  EXPECT_THAT(open_error(dir.path()), AllOf(HasSubstr(name), HasSubstr(kShard1), HasSubstr("it is not")));
  ASSERT_TRUE(write_text_file(dir.path() / kIndex, test::replaced(index, name, "no.such.tensor")).ok());
  EXPECT_THAT(open_error(dir.path()), HasSubstr("no.such.tensor"));
  ASSERT_TRUE(write_text_file(dir.path() / kIndex, "{}").ok());
  EXPECT_THAT(open_error(dir.path()), AllOf(HasSubstr(kIndex), HasSubstr("weight_map is missing")));
  ASSERT_TRUE(write_text_file(dir.path() / kIndex, R"({"weight_map": {"a": 1}})").ok());
  EXPECT_THAT(open_error(dir.path()), AllOf(HasSubstr(kIndex), HasSubstr("weight_map.a")));
}

TEST(Checkpoint, ATensorInTwoShardsIsAnErrorThatNamesBoth) {
  const TempDir dir;
  write_tiny(dir.path());
  std::vector<Stored> tensors = read_tensors(dir.path());
  const std::string name = "language_model.model.norm.weight";
  std::vector<Stored> twice = {named(tensors, name)};
  write_file(dir.path() / "extra.safetensors", twice);
  edit(dir.path() / kIndex, "\"" + name + "\": \"" + kShard2, "\"" + name + "\": \"extra.safetensors");
  EXPECT_THAT(open_error(dir.path()),
              AllOf(HasSubstr(name), HasSubstr("extra.safetensors"), HasSubstr(kShard2)));
}

TEST(Checkpoint, AbsurdSizesInTheConfigurationAreErrorsAndNotAllocations) {
  const TempDir dir;
  write_tiny(dir.path());
  const std::string config = read_text(dir.path() / "config.json");
  for (const auto& [from, to, field] :
       {std::tuple{"\"num_local_experts\": 8", "\"num_local_experts\": 1000000000", "num_local_experts"},
        std::tuple{"\"vocab_size\": 512", "\"vocab_size\": 9007199254740993", "vocab_size"},
        std::tuple{"\"num_hidden_layers\": 3", "\"num_hidden_layers\": 1e9", "num_hidden_layers"}}) {
    ASSERT_TRUE(write_text_file(dir.path() / "config.json", test::replaced(config, from, to)).ok());
    EXPECT_THAT(open_error(dir.path()), HasSubstr(field));
  }
}

}  // namespace
}  // namespace sparrow
