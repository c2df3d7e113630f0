// SPDX-License-Identifier: Apache-2.0
// Every malformed checkpoint ends the program with exit code 2 and one line that names what is wrong.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <fstream>
#include <functional>
#include <iterator>

#include "support/golden.h"
#include "support/program.h"
#include "support/temp_dir.h"

namespace sparrow::test {
namespace {

namespace fs = std::filesystem;

std::string read(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

void write(const fs::path& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
}

void replace(const fs::path& path, const std::string& from, const std::string& to) {
  std::string text = read(path);
  const size_t at = text.find(from);
  ASSERT_NE(at, std::string::npos) << from;
  write(path, text.replace(at, from.size(), to));
}

// Sets one byte of a tensor's data.
void poke(const fs::path& path, const std::string& tensor, char value) {
  const SafetensorsFile file = SafetensorsFile::open(path).value();
  const SafetensorsEntry* entry = file.find(tensor);
  if (!entry) return;
  std::string bytes = read(path);
  bytes[entry->begin + 3] = value;
  fs::remove(path);  // the old file stays mapped
  write(path, bytes);
}

struct BadCheckpoint {
  std::string what;
  std::function<void(const fs::path& dir)> damage;
  std::string says;
};

void expect_one_line(const BadCheckpoint& bad, const fs::path& original) {
  const TempDir temp;
  const fs::path dir = temp.path() / "model";
  fs::copy(original, dir);
  bad.damage(dir);
  const auto result = run_sparrow({"generate", "--model", dir, "--prompt-ids", "1", "--max-tokens", "2"});
  EXPECT_EQ(result.exit_code, 2) << bad.what << ": " << result.err;
  EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << bad.what << ": " << result.err;
  EXPECT_THAT(result.err, testing::HasSubstr(bad.says)) << bad.what;
  EXPECT_EQ(result.out, "") << bad.what;
}

TEST(BadCheckpoint, GetsExitCode2AndOneLineThatNamesTheCulprit) {
  const std::string first = "model-00001-of-00002.safetensors", second = "model-00002-of-00002.safetensors";
  const std::string index = "model.safetensors.index.json";
  const std::string norm = "language_model.model.norm.weight";
  const std::vector<BadCheckpoint> cases = {
      {"truncated shard", [&](auto dir) { fs::resize_file(dir / second, 100000); }, second},
      {"empty shard", [&](auto dir) { fs::resize_file(dir / second, 0); }, second},
      {"pipe instead of a shard",
       [&](auto dir) {
         fs::remove(dir / second);
         ASSERT_EQ(::mkfifo((dir / second).c_str(), 0600), 0);
       },
       second + "' is not a regular file"},
      {"missing shard", [&](auto dir) { fs::remove(dir / second); }, second},
      {"header longer than the file", [&](auto dir) { write(dir / first, std::string(8, '\x7f') + "{}"); },
       first},
      {"header that is not JSON",
       [&](auto dir) { write(dir / first, std::string("\x02\0\0\0\0\0\0\0", 8) + "{]"); }, first},
      {"wrong dtype", [&](auto dir) { replace(dir / first, "\"dtype\":\"F32\"", "\"dtype\":\"I32\""); },
       "I32"},
      {"unknown dtype", [&](auto dir) { replace(dir / first, "\"dtype\":\"F32\"", "\"dtype\":\"Q32\""); },
       "Q32"},
      {"missing tensor", [&](auto dir) { replace(dir / second, norm, "language_model.model.morn.weight"); },
       norm},
      {"shape mismatch",
       [](auto dir) { replace(dir / "config.json", "\"vocab_size\": 320", "\"vocab_size\": 352"); },
       "[352, 128]"},
      {"absurd size",
       [](auto dir) { replace(dir / "config.json", "\"hidden_size\": 128", "\"hidden_size\": 99999999999"); },
       "hidden_size"},
      {"negative size",
       [](auto dir) {
         replace(dir / "config.json", "\"num_hidden_layers\": 2", "\"num_hidden_layers\": -2");
       },
       "num_hidden_layers"},
      {"huge shape in a header",
       [&](auto dir) { replace(dir / second, "\"shape\":[128]", "\"shape\":[9e9]"); }, "shape"},
      {"deep JSON", [](auto dir) { write(dir / "config.json", std::string(100000, '[')); }, "config.json"},
      {"no JSON", [](auto dir) { write(dir / "config.json", "hello"); }, "config.json"},
      {"no config", [](auto dir) { fs::remove(dir / "config.json"); }, "config.json"},
      {"tokenizer without a model", [](auto dir) { write(dir / "tokenizer.json", "{}"); },
       "model': tokenizer.json.model is missing"},
      {"tokenizer that is a list", [](auto dir) { write(dir / "tokenizer.json", "[]"); },
       "model': tokenizer.json must be an object, got []"},
      {"index names a file outside", [&](auto dir) { replace(dir / index, second, "../../../etc/passwd"); },
       "passwd"},
      {"index that is not an object", [&](auto dir) { write(dir / index, "[1]"); }, index},
      {"unsupported configuration",
       [](auto dir) { replace(dir / "config.json", "\"head_dim\": 128", "\"head_dim\": 64"); }, "head_dim"},
  };
  for (const BadCheckpoint& bad : cases) expect_one_line(bad, golden_dir() / "yarn");
}

TEST(BadCheckpoint, ANaNScaleIsNamed) {
  const TempDir temp;
  const fs::path model = temp.path() / "m";
  ASSERT_EQ(run_sparrow({"make-model", "--preset", "tiny", "--dtype", "mxfp8", "--out", model}).exit_code, 0);
  const std::string scale = "language_model.model.layers.1.self_attn.q_proj.weight_scale_inv";
  const auto damage = [&](const fs::path& dir) {
    for (const auto& entry : fs::directory_iterator(dir))
      if (entry.path().extension() == ".safetensors") poke(entry.path(), scale, '\xff');
  };
  expect_one_line({"NaN scale", damage, scale}, model);
}

}  // namespace
}  // namespace sparrow::test
