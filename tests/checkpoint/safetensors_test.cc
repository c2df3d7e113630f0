// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "support/temp_dir.h"

namespace sparrow {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string file_with(const std::string& header, size_t data_bytes) {
  const uint64_t length = header.size();
  std::string file(sizeof(length), '\0');
  std::memcpy(file.data(), &length, sizeof(length));
  return file + header + std::string(data_bytes, '\x01');
}

Result<SafetensorsHeader> parse(const std::string& file) {
  return parse_safetensors_header(std::as_bytes(std::span(file)));
}

std::string error_of(const std::string& header, size_t data_bytes) {
  const auto result = parse(file_with(header, data_bytes));
  return result.ok() ? "(no error)" : result.error().message;
}

std::string entry(const std::string& name, const std::string& dtype, const std::string& shape,
                  const std::string& offsets) {
  return "\"" + name + "\": {\"dtype\": \"" + dtype + "\", \"shape\": " + shape +
         ", \"data_offsets\": " + offsets + "}";
}

TEST(SafetensorsHeader, DescribesTensorsAndMetadata) {
  const std::string header = "{\"__metadata__\": {\"format\": \"pt\"}, " +
                             entry("b", "BF16", "[2, 3]", "[8, 20]") + ", " +
                             entry("a", "F32", "[2]", "[0, 8]") + "}   ";
  const auto parsed = parse(file_with(header, 20));
  ASSERT_TRUE(parsed.ok()) << parsed.error().message;
  EXPECT_EQ(parsed->metadata.at("format"), "pt");
  ASSERT_EQ(parsed->entries.size(), 2u);
  const SafetensorsEntry& b = parsed->entries.at("b");
  EXPECT_EQ(b.dtype, DType::kBF16);
  EXPECT_THAT(b.shape, ElementsAre(2, 3));
  EXPECT_EQ(b.begin, 8 + header.size() + 8);
  EXPECT_EQ(b.end, 8 + header.size() + 20);
}

TEST(SafetensorsHeader, TypesThatAreNeverUsedMayBeInTheFile) {
  const auto parsed = parse(file_with(
      "{" + entry("i", "I64", "[2]", "[0, 16]") + ", " + entry("new", "F4_E2M1", "[3]", "[16, 18]") + "}",
      18));
  ASSERT_TRUE(parsed.ok()) << parsed.error().message;
  EXPECT_FALSE(parsed->entries.at("i").dtype.has_value());
  EXPECT_EQ(parsed->entries.at("new").dtype_name, "F4_E2M1");
}

TEST(SafetensorsHeader, EmptyTensorsAndScalarsAreAllowed) {
  const auto parsed = parse(file_with("{" + entry("none", "F32", "[0, 9223372036854775807]", "[0, 0]") +
                                          ", " + entry("scalar", "F32", "[]", "[0, 4]") + "}",
                                      4));
  ASSERT_TRUE(parsed.ok()) << parsed.error().message;
  EXPECT_EQ(parsed->entries.at("scalar").shape.size(), 0u);
}

TEST(SafetensorsHeader, ALengthBeyondTheFileIsAnError) {
  EXPECT_THAT(parse("").error().message, HasSubstr("0 bytes"));
  EXPECT_THAT(parse("1234567").error().message, HasSubstr("too short"));
  std::string file = file_with("{}", 0);
  file[0] = 3;
  EXPECT_THAT(parse(file).error().message, HasSubstr("claims 3 bytes"));
  std::memset(file.data(), 0xff, 8);
  EXPECT_THAT(parse(file).error().message, HasSubstr("18446744073709551615"));
}

TEST(SafetensorsHeader, AnythingButTheRightJsonIsAnErrorThatNamesTheTensor) {
  EXPECT_THAT(error_of("not json", 0), HasSubstr("not valid JSON"));
  EXPECT_THAT(error_of("[]", 0), HasSubstr("must be an object"));
  EXPECT_THAT(error_of("{\"w\": 5}", 0), HasSubstr("w must be an object, got 5"));
  EXPECT_THAT(error_of("{\"w\": {\"shape\": [1], \"data_offsets\": [0, 1]}}", 1),
              HasSubstr("w.dtype is missing"));
  EXPECT_THAT(error_of("{\"w\": {\"dtype\": \"U8\", \"data_offsets\": [0, 1]}}", 1),
              HasSubstr("w.shape is missing"));
  EXPECT_THAT(error_of("{" + entry("w", "U8", "[-1]", "[0, 1]") + "}", 1), HasSubstr("w.shape[0]"));
  EXPECT_THAT(error_of("{" + entry("w", "U8", "[1]", "[0]") + "}", 1), HasSubstr("w.data_offsets"));
  EXPECT_THAT(error_of("{" + entry("w", "U8", "[1]", "[0, \"x\"]") + "}", 1), HasSubstr("w.data_offsets[1]"));
  EXPECT_THAT(error_of("{" + entry("w", "U8", "[1,1,1,1,1,1,1,1,1]", "[0, 1]") + "}", 1),
              HasSubstr("9 extents"));
  EXPECT_THAT(error_of("{\"__metadata__\": {\"k\": 1}}", 0), HasSubstr("__metadata__.k"));
  EXPECT_THAT(error_of("{\"w\": " + std::string(5000, '[') + "}", 0),
              HasSubstr("the header is nested more than 4 levels deep"));
}

TEST(SafetensorsHeader, ATensorListedTwiceIsAnError) {
  EXPECT_THAT(
      error_of("{" + entry("w", "U8", "[1]", "[0, 1]") + ", " + entry("w", "U8", "[1]", "[1, 2]") + "}", 2),
      HasSubstr("\"w\" occurs twice"));
}

TEST(SafetensorsHeader, OffsetsOutsideTheDataAreErrorsThatNameTheTensor) {
  EXPECT_THAT(error_of("{" + entry("w", "U8", "[4]", "[0, 4]") + "}", 3), HasSubstr("w.data_offsets [0, 4]"));
  EXPECT_THAT(error_of("{" + entry("w", "U8", "[4]", "[4, 0]") + "}", 4), HasSubstr("w.data_offsets [4, 0]"));
  EXPECT_THAT(error_of("{" + entry("w", "U8", "[4]", "[0, 9223372036854775807]") + "}", 4),
              HasSubstr("w.data_offsets"));
  EXPECT_THAT(error_of("{" + entry("w", "U8", "[4]", "[18446744073709551615, 4]") + "}", 4),
              HasSubstr("w.data_offsets[0]"));
}

TEST(SafetensorsHeader, AShapeThatDoesNotFillItsDataIsAnError) {
  EXPECT_THAT(error_of("{" + entry("w", "F32", "[2]", "[0, 4]") + "}", 4), HasSubstr("tensor w of type F32"));
  // The product wraps around to 4 in 64 bits.
  EXPECT_THAT(error_of("{" + entry("w", "F32", "[4611686018427387905]", "[0, 4]") + "}", 4),
              HasSubstr("tensor w"));
  EXPECT_THAT(error_of("{" + entry("w", "I64", "[2]", "[0, 8]") + "}", 8), HasSubstr("tensor w of type I64"));
}

TEST(SafetensorsHeader, OverlapsAndHolesAreErrors) {
  EXPECT_THAT(
      error_of("{" + entry("a", "U8", "[4]", "[0, 4]") + ", " + entry("b", "U8", "[4]", "[3, 7]") + "}", 7),
      HasSubstr("tensors a and b overlap"));
  EXPECT_THAT(
      error_of("{" + entry("a", "U8", "[4]", "[0, 4]") + ", " + entry("b", "U8", "[4]", "[0, 4]") + "}", 4),
      HasSubstr("overlap"));
  EXPECT_THAT(
      error_of("{" + entry("a", "U8", "[4]", "[0, 4]") + ", " + entry("b", "U8", "[1]", "[5, 6]") + "}", 6),
      HasSubstr("1 bytes of data before tensor b"));
  EXPECT_THAT(error_of("{" + entry("a", "U8", "[4]", "[0, 4]") + "}", 6), HasSubstr("last 2 bytes"));
}

TEST(SafetensorsFile, WhatWasWrittenReadsBack) {
  const test::TempDir dir;
  const std::filesystem::path path = dir.path() / "x.safetensors";
  std::vector<float> floats(12);
  std::iota(floats.begin(), floats.end(), 0.5f);
  const std::vector<uint8_t> bytes = {1, 2, 3};
  auto writer = SafetensorsWriter::create(
      path, {{"odd \"name\"", DType::kU8, {3}}, {"empty", DType::kF32, {0, 4}}, {"f", DType::kF32, {3, 4}}},
      {{"note", "a\nb"}});
  ASSERT_TRUE(writer.ok()) << writer.error().message;
  ASSERT_TRUE(writer->write(0, std::as_bytes(std::span(bytes))).ok());
  const auto data = std::as_bytes(std::span(floats));
  std::thread second([&] { ASSERT_TRUE(writer->write(2, data.subspan(20), 20).ok()); });
  ASSERT_TRUE(writer->write(2, data.subspan(0, 20)).ok());
  second.join();
  ASSERT_TRUE(writer->finish().ok());

  const auto file = SafetensorsFile::open(path);
  ASSERT_TRUE(file.ok()) << file.error().message;
  EXPECT_EQ(file->header().metadata.at("note"), "a\nb");
  EXPECT_EQ(file->find("odd \"name\"")->begin % 64, 0u);
  EXPECT_EQ(std::memcmp(file->bytes(*file->find("f")).data(), floats.data(), data.size()), 0);
  EXPECT_EQ(file->bytes(*file->find("empty")).size(), 0u);
  const auto odd = file->tensor("odd \"name\"");
  ASSERT_TRUE(odd.ok());
  EXPECT_EQ(odd->as<uint8_t>()[2], 3);
  EXPECT_THAT(file->tensor("f").error().message, HasSubstr("multiple of 4"));  // three bytes come before it
  EXPECT_THAT(file->tensor("g").error().message, HasSubstr("no tensor g"));
}

TEST(SafetensorsFile, AnIncompleteFileIsAnErrorAtTheEnd) {
  const test::TempDir dir;
  auto writer = SafetensorsWriter::create(dir.path() / "x.safetensors", {{"f", DType::kF32, {3}}});
  ASSERT_TRUE(writer.ok());
  const std::vector<std::byte> some(8);
  ASSERT_TRUE(writer->write(0, some).ok());
  EXPECT_THAT(writer->finish().error().message, HasSubstr("8 of 12 bytes"));
}

TEST(SafetensorsFile, ErrorsNameTheFile) {
  const test::TempDir dir;
  EXPECT_THAT(SafetensorsFile::open(dir.path() / "absent").error().message, HasSubstr("absent"));
  EXPECT_THAT(SafetensorsFile::open(dir.path()).error().message, HasSubstr("not a regular file"));
  EXPECT_THAT(SafetensorsWriter::create(dir.path() / "no" / "x", {}).error().message, HasSubstr("no/x"));
}

TEST(SafetensorsFile, AFullDiskIsAnErrorBeforeAnythingIsWritten) {
  const test::TempDir dir;
  const auto writer = SafetensorsWriter::create(dir.path() / "x", {{"f", DType::kU8, {int64_t{1} << 60}}});
  ASSERT_FALSE(writer.ok());
  EXPECT_THAT(writer.error().message, HasSubstr("cannot reserve"));
}

TEST(SafetensorsFile, GoldenFilesOpen) {
  const auto file =
      SafetensorsFile::open(std::filesystem::path(SPARROW_GOLDEN_DIR) / "bf16.golden.safetensors");
  ASSERT_TRUE(file.ok()) << file.error().message;
  const auto ids = file->tensor("input_ids");
  ASSERT_TRUE(ids.ok());
  EXPECT_EQ(ids->dtype, DType::kI32);
  EXPECT_EQ(ids->rows(), 3000);
  EXPECT_EQ(file->tensor("selected_blocks.1")->rank, 3);
}

}  // namespace
}  // namespace sparrow
