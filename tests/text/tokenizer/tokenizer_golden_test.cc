// SPDX-License-Identifier: Apache-2.0
// Tokenizers against what Hugging Face `tokenizers` does, as tools/make_tokenizer_goldens.py recorded it.
#include <gtest/gtest.h>

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>

#include "base/files/mapped_file.h"
#include "base/json/json.h"
#include "base/strf.h"
#include "text/tokenizer/detokenizer.h"
#include "text/tokenizer/tokenizer.h"
#include "text/unicode.h"

namespace sparrow {
namespace {

namespace fs = std::filesystem;

const fs::path kGoldens = fs::path(SPARROW_GOLDEN_DIR) / "tokenizer";
constexpr const char* kNames[] = {"m3", "m3_no_slash", "cl100k", "gpt2", "other", "flags"};

std::string read(const fs::path& path) {
  auto text = read_text_file(path, size_t{64} << 20);
  EXPECT_TRUE(text.ok()) << path;
  return text.ok() ? std::move(text).value() : "";
}

Tokenizer load(const std::string& name) {
  auto tokenizer = Tokenizer::parse(read(kGoldens / (name + ".tokenizer.json")));
  if (!tokenizer.ok()) ADD_FAILURE() << name << ": " << tokenizer.error().message;
  SPARROW_CHECK(tokenizer.ok());
  return std::move(tokenizer).value();
}

// CRC-32 as zlib computes it, of the ids as little-endian int32.
std::string digest(const std::vector<int32_t>& ids) {
  uint32_t crc = ~0u;
  for (const int32_t id : ids)
    for (int byte = 0; byte < 4; ++byte) {
      crc ^= static_cast<uint32_t>(id) >> (8 * byte) & 0xFF;
      for (int bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ (crc & 1 ? 0xEDB88320u : 0);
    }
  return strf("{:08x}", ~crc);
}

std::string text_of(const Json& value) {
  if (value.is_string()) return value.as_string().value();
  const std::string hex = value.at("hex").value().as_string().value();
  std::string bytes;
  for (size_t i = 0; i + 1 < hex.size(); i += 2)
    bytes += static_cast<char>(std::strtol(hex.substr(i, 2).c_str(), nullptr, 16));
  return bytes;
}

std::string shown(const std::vector<int32_t>& ids) {
  std::string out;
  for (const int32_t id : ids) out += strf("{} ", id);
  return out;
}

// Returns how many strings were compared.
size_t expect_recorded_ids(const fs::path& folder) {
  std::vector<Tokenizer> tokenizers;
  for (const char* name : kNames) tokenizers.push_back(load(name));
  const auto document = JsonDocument::parse(read(folder / "cases.json"), "cases.json");
  EXPECT_TRUE(document.ok());
  const Json cases = document.value().root();
  int wrong = 0;
  for (size_t i = 0; i < cases.size() && wrong < 20; ++i) {
    const std::string text = text_of(cases.element(i).element(0));
    const std::string digests = cases.element(i).element(1).as_string().value();
    for (size_t t = 0; t < tokenizers.size(); ++t)
      for (const bool special : {true, false}) {
        const auto ids = tokenizers[t].encode(text, special ? Recognise::kAll : Recognise::kNotSpecial);
        EXPECT_TRUE(ids.ok());
        if (digest(ids.value()) == digests.substr(16 * t + (special ? 0 : 8), 8)) continue;
        ++wrong;
        ADD_FAILURE() << "case " << i << ", " << kNames[t] << (special ? "" : " without special tokens")
                      << ": " << json_quoted(text) << " gave " << shown(ids.value());
      }
  }
  return cases.size();
}

TEST(TokenizerGolden, TwentyThousandStringsHaveTheIdsOfTheOracle) {
  EXPECT_GE(expect_recorded_ids(kGoldens), 20000u);
}

TEST(TokenizerGolden, FreshStringsHaveTheIdsOfTheOracle) {
  const char* python = std::getenv("SPARROW_ORACLE_PYTHON");
  if (python == nullptr)
    GTEST_SKIP() << "SPARROW_ORACLE_PYTHON is not set: no Python with `tokenizers` at hand";
  const fs::path folder = fs::temp_directory_path() / strf("sparrow-tokenizer-oracle-{}", ::getpid());
  const fs::path script = fs::path(SPARROW_GOLDEN_DIR) / "../../tools/make_tokenizer_goldens.py";
  const char* seed = std::getenv("SPARROW_ORACLE_SEED");  // others than the one that runs every time
  const std::string command = strf("'{}' '{}' --cases-only --count 5000 --seed {} --out '{}'", python,
                                   script.string(), seed ? seed : "20261115", folder.string());
  ASSERT_EQ(std::system(command.c_str()), 0) << command;
  EXPECT_GT(expect_recorded_ids(folder), 4900u);
  fs::remove_all(folder);
}

TEST(TokenizerGolden, DecodingGivesTheTextOfTheOracle) {
  const auto document = JsonDocument::parse(read(kGoldens / "decode.json"), "decode.json");
  ASSERT_TRUE(document.ok());
  const Json cases = document.value().root();
  std::vector<std::pair<std::string, Tokenizer>> tokenizers;
  for (const char* name : kNames) tokenizers.emplace_back(name, load(name));
  for (size_t i = 0; i < cases.size(); ++i) {
    const Json row = cases.element(i);
    const std::string name = row.element(0).as_string().value();
    const auto found =
        std::find_if(tokenizers.begin(), tokenizers.end(), [&](auto& t) { return t.first == name; });
    ASSERT_NE(found, tokenizers.end());
    std::vector<int32_t> ids;
    for (size_t k = 0; k < row.element(1).size(); ++k)
      ids.push_back(static_cast<int32_t>(row.element(1).element(k).as_int(0, 1 << 20).value()));
    for (const bool skip : {false, true}) {
      const std::string expected = row.element(skip ? 3 : 2).as_string().value();
      EXPECT_EQ(found->second.decode(ids, skip).value(), expected) << name << " " << shown(ids);
      Detokenizer stream(found->second, skip);
      std::string text;
      for (const int32_t id : ids) ASSERT_TRUE(stream.push(id, text).ok());
      stream.finish(text);
      EXPECT_EQ(text, expected) << name << " " << shown(ids);
    }
  }
  EXPECT_GT(cases.size(), 500u);
}

// The oracle's Unicode is newer than utf8proc's: characters that utf8proc does not know yet have no class
// here.
TEST(TokenizerGolden, CharacterClassesAreThoseOfTheOracleExceptForTheNewestCharacters) {
  const auto document = JsonDocument::parse(read(kGoldens / "classes.json"), "classes.json");
  ASSERT_TRUE(document.ok());
  const Json runs = document.value().root();
  std::vector<uint8_t> expected(0x110000, 0);
  for (size_t i = 0; i < runs.size(); ++i) {
    const auto at = [&](size_t k) { return runs.element(i).element(k).as_int(0, 0x10FFFF).value(); };
    for (int64_t c = at(0); c <= at(1); ++c) expected[static_cast<size_t>(c)] = static_cast<uint8_t>(at(2));
  }
  const CharClasses classes;
  int unknown = 0;
  for (uint32_t c = 0; c < 0x110000; ++c) {
    if (classes.of(c) == expected[c]) continue;
    ASSERT_EQ(classes.of(c), 0) << c;
    ++unknown;
  }
  // 15.1 and 16 added about 5,000, most of them ideographs and hieroglyphs.
  EXPECT_LT(unknown, 5200);
}

}  // namespace
}  // namespace sparrow
