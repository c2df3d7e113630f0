// SPDX-License-Identifier: Apache-2.0
// Quantised checkpoints that others wrote, as they are and with something wrong.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <openssl/sha.h>

#include <cmath>
#include <fstream>

#include "base/files/mapped_file.h"
#include "base/json/json.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/mx/mx_faults.h"
#include "checkpoint/tensor_table.h"
#include "ops/cpu/reference.h"
#include "support/golden.h"
#include "support/m3_config.h"
#include "support/temp_dir.h"

namespace sparrow {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
namespace fs = std::filesystem;

const std::string kExpert = "language_model.model.layers.1.block_sparse_moe.experts.3.w2.weight";
const std::string kQuery = "language_model.model.layers.1.self_attn.q_proj.weight";

class Copy {
 public:
  explicit Copy(const std::string& name) {
    for (const auto& file : fs::directory_iterator(test::golden_dir() / name)) {
      fs::copy(file.path(), path() / file.path().filename());
      fs::permissions(path() / file.path().filename(), fs::perms::owner_write, fs::perm_options::add);
    }
  }
  const fs::path& path() const { return dir_.path(); }

  std::string error(const CheckpointOptions& options = {}) const {
    const auto checkpoint = Checkpoint::open(path(), options);
    const std::string message = checkpoint.ok() ? "(no error)" : checkpoint.error().message;
    EXPECT_EQ(message.find('\n'), std::string::npos);
    return message;
  }
  void set_byte(const std::string& tensor, int64_t at, uint8_t value) const {
    for_each_shard([&](const fs::path& shard) {
      const auto file = SafetensorsFile::open(shard).value();
      const SafetensorsEntry* const entry = file.find(tensor);
      if (entry == nullptr) return;
      std::fstream out(shard, std::ios::in | std::ios::out | std::ios::binary);
      out.seekp(static_cast<std::streamoff>(entry->begin) + at);
      out.put(static_cast<char>(value));
    });
  }
  // The same number of characters, in index and headers, where `from` follows the tensor's name.
  void edit(const std::string& tensor, const std::string& from, const std::string& to) const {
    ASSERT_EQ(from.size(), to.size());
    for (const auto& file : fs::directory_iterator(path())) {
      std::string text = read_text_file(file.path(), 1 << 24).value();
      const size_t name = text.find('"' + tensor + '"');
      const size_t at = name == std::string::npos ? name : text.find(from, name);
      if (at == std::string::npos) continue;
      ASSERT_TRUE(write_text_file(file.path(), text.replace(at, from.size(), to)).ok());
    }
  }

 private:
  void for_each_shard(auto&& body) const {
    for (const auto& file : fs::directory_iterator(path()))
      if (file.path().extension() == ".safetensors") body(file.path());
  }
  test::TempDir dir_;
};

class GoldenFormat : public ::testing::TestWithParam<std::string> {};

std::string sha256(const std::vector<uint16_t>& values) {
  unsigned char hash[SHA256_DIGEST_LENGTH];
  SHA256(reinterpret_cast<const unsigned char*>(values.data()), values.size() * sizeof(uint16_t), hash);
  std::string hex;
  for (const unsigned char byte : hash) hex += strf("{:02x}", byte);
  return hex;
}

TEST_P(GoldenFormat, EveryWeightIsWhatItsHashSays) {
  const Checkpoint checkpoint = Checkpoint::open(test::golden_dir() / GetParam()).value();
  const std::string text =
      read_text_file(test::golden_dir() / (GetParam() + ".dequant.json"), 1 << 24).value();
  const JsonDocument document = JsonDocument::parse(text, "dequant.json").value();
  const Json weights = document.root().at("weights").value();
  size_t found = 0;
  for (const TensorRow& row : tensor_table(checkpoint.config())) {
    if (row.piece != TensorPiece::kValues || !is_mx(row.format)) continue;
    const ops::Weight weight = find_weight(checkpoint.weights(), row.role, row.layer, row.expert);
    ASSERT_EQ(weight.format(), row.format);
    std::vector<uint16_t> values;
    for (int64_t o = 0; o < weight.out(); ++o)
      for (int64_t k = 0; k < weight.in(); ++k)
        values.push_back(to_bf16(ops::reference::weight_at(weight, o, k)).bits);
    const Json golden = weights.at(row.spec.name).value();
    EXPECT_EQ(sha256(values), golden.at("sha256").value().as_string().value()) << row.spec.name;
    ++found;
  }
  EXPECT_EQ(found, weights.size());
}

INSTANTIATE_TEST_SUITE_P(Goldens, GoldenFormat, ::testing::Values("mxfp8", "mxfp4"),
                         [](const auto& info) { return info.param; });

TEST(Quantised, ANanCodeIsAnErrorThatNamesTensorRowColumnAndCode) {
  const Copy mxfp8("mxfp8");
  mxfp8.set_byte(kExpert, 128 * 100 + 77, 0xff);
  const std::string message = mxfp8.error();
  EXPECT_THAT(message, HasSubstr("tensor " + kExpert + ": row 100, column 77 is 0xff, which means NaN"));
  EXPECT_THAT(message, HasSubstr(".safetensors"));
  // Not read in: whoever opens it for a GPU looks at the codes there.
  EXPECT_EQ(mxfp8.error({.prefault = false}), "(no error)");
  const Copy mxfp4("mxfp4");
  mxfp4.set_byte(kExpert, 3, 0xff);  // two times minus six
  EXPECT_EQ(mxfp4.error(), "(no error)");
}

TEST(Quantised, AScaleThatGivesNoFiniteNumberIsAnErrorThatNamesItsPlace) {
  struct Item {
    std::string name, suffix;
    int largest;
  };
  for (const auto& [name, suffix, largest] :
       {Item{"mxfp8", "_scale_inv", 246}, Item{"mxfp4", "_scale", 252}}) {
    const Copy copy(name);
    copy.set_byte(kExpert + suffix, 4 * 31 + 2, static_cast<uint8_t>(largest));
    EXPECT_EQ(copy.error(), "(no error)");
    copy.set_byte(kExpert + suffix, 4 * 31 + 2, static_cast<uint8_t>(largest + 1));
    EXPECT_THAT(copy.error(), HasSubstr(strf("tensor {}{}: row 31, column 2 is {}, 2^{}; the largest that is "
                                             "supported is {}",
                                             kExpert, suffix, largest + 1, largest - 126, largest)));
    copy.set_byte(kExpert + suffix, 4 * 31 + 2, 255);
    EXPECT_THAT(copy.error({.prefault = false}),
                HasSubstr(kExpert + suffix + ": row 31, column 2 is 255, which means NaN"));
  }
}

TEST(Quantised, ScalesThatAreMissingOrMisspeltAreNamed) {
  const Copy copy("mxfp4");
  copy.edit(kExpert + "_scale", "weight_scale", "weight_scalf");
  EXPECT_THAT(copy.error(), AllOf(HasSubstr("1 missing: " + kExpert + "_scale"),
                                  HasSubstr("1 unexpected: " + kExpert + "_scalf")));
}

TEST(Quantised, ScalesOfAnotherTypeOrShapeAreNamed) {
  const Copy type("mxfp4");
  type.edit(kExpert + "_scale", "U8", "I8");
  EXPECT_THAT(type.error(), HasSubstr(kExpert + "_scale is I8 [128, 4] and not U8 [128, 4]"));
  const Copy shape("mxfp8");
  shape.edit(kExpert + "_scale_inv", "[128,4]", "[4,128]");
  EXPECT_THAT(shape.error(), HasSubstr(kExpert + "_scale_inv is U8 [4, 128] and not U8 [128, 4]"));
}

TEST(Quantised, AConfigurationThatSaysOtherwiseIsAnErrorThatNamesTheMatrix) {
  const Copy scaled("mxfp8");
  scaled.edit("ignored_layers", "\"patch_merge_mlp\"", "\"*.1.self_attn.*\"");
  EXPECT_THAT(scaled.error(),
              AllOf(HasSubstr("6 with scales, which it says are not quantised"), HasSubstr(kQuery),
                    Not(HasSubstr("unexpected")), Not(HasSubstr("another shape or type"))));
  const Copy plain("mxfp4");
  plain.edit("exclude", "layers.1.self_attn.q_proj", "layers.1.self_attn.q_nope");
  EXPECT_THAT(plain.error(), AllOf(HasSubstr("1 without scales, which it says are quantised: " + kQuery),
                                   Not(HasSubstr("missing")), Not(HasSubstr("another shape or type"))));
}

TEST(Quantised, ManyCodesAreSearchedWithoutMissingOne) {
  std::vector<std::byte> codes(103, std::byte{0x7e});
  EXPECT_FALSE(has_nan_code(codes));
  std::ranges::fill(codes, std::byte{0x80});
  EXPECT_FALSE(has_nan_code(codes));
  for (size_t at = 0; at < codes.size(); ++at)
    for (const uint8_t nan : {0x7f, 0xff}) {
      codes[at] = std::byte{nan};
      EXPECT_TRUE(has_nan_code(codes)) << at;
      EXPECT_THAT(check_codes("t", codes, 10).error().message,
                  HasSubstr(strf("row {}, column {} is {:#04x}", at / 10, at % 10, nan)));
      codes[at] = std::byte{0xfe};
    }
}

// Of every magnitude of bf16, beside the largest numbers and minus zeros; and of f32, whose upper half it is.
TEST(Quantised, NumbersAreSearchedWithoutMissingOne) {
  const auto is_finite = [](MatrixFormat format, const auto& numbers) {
    return all_finite(format, std::as_bytes(std::span(numbers)));
  };
  std::vector<uint16_t> halves(7);
  std::vector<uint32_t> floats(3);
  for (uint32_t bits = 0; bits < 1 << 16; ++bits) {
    const bool expected = std::isfinite(to_float(BFloat16{static_cast<uint16_t>(bits)}));
    for (auto& near : halves) near = bits % 2 == 0 ? 0x7f7f : 0x8000;
    for (auto& near : floats) near = bits % 2 == 0 ? 0xff7fffff : 0x80000000;
    halves[bits % halves.size()] = static_cast<uint16_t>(bits);
    floats[bits % floats.size()] = bits << 16;
    ASSERT_EQ(is_finite(MatrixFormat::kBF16, halves), expected) << bits;
    ASSERT_EQ(is_finite(MatrixFormat::kF32, floats), expected) << bits;
  }
  floats[0] = 0x7f800001;
  EXPECT_FALSE(is_finite(MatrixFormat::kF32, floats));
  EXPECT_TRUE(is_finite(MatrixFormat::kMxfp4, std::vector<uint8_t>(9, 0xff)));
  EXPECT_TRUE(is_finite(MatrixFormat::kF32, std::vector<float>()));
}

}  // namespace
}  // namespace sparrow
