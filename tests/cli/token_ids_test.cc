// SPDX-License-Identifier: Apache-2.0
#include "cli/args/token_ids.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "base/text/suggest.h"

namespace sparrow::cli {
namespace {

std::filesystem::path write_temp(const std::string& name, const std::string& text) {
  const auto path = std::filesystem::path(testing::TempDir()) / name;
  std::ofstream(path) << text;
  return path;
}

TEST(TokenIds, AListMayHaveBlanksAndSigns) {
  EXPECT_EQ(parse_int_list("1, 2,-3", "x").value(), (std::vector<int32_t>{1, 2, -3}));
  EXPECT_EQ(parse_int_list("7", "x").value(), (std::vector<int32_t>{7}));
}

TEST(TokenIds, ABadListNamesTheFlagAndTheItem) {
  for (const char* text : {"", "1,,2", "1,a", "1;2", "99999999999", "1.5"}) {
    const auto result = parse_int_list(text, "--positions");
    ASSERT_FALSE(result.ok()) << text;
    EXPECT_TRUE(result.error().message.starts_with("--positions takes integers")) << result.error().message;
  }
}

TEST(TokenIds, APromptIsAListOrAFile) {
  EXPECT_EQ(read_prompt_ids("5,6").value(), (std::vector<int32_t>{5, 6}));
  EXPECT_EQ(read_prompt_ids(write_temp("ids.json", "[1, 2,\n 3]").string()).value(),
            (std::vector<int32_t>{1, 2, 3}));
}

TEST(TokenIds, ABadFileIsAnErrorThatNamesIt) {
  for (const char* text : {"", "{\"a\": 1}", "[1, -2]", "[1, \"x\"]", "[1, 2.5]", "[1", "[99999999999]"}) {
    const auto path = write_temp("bad_ids.json", text);
    const auto result = read_id_file(path);
    ASSERT_FALSE(result.ok()) << text;
    EXPECT_NE(result.error().message.find("bad_ids.json"), std::string::npos) << result.error().message;
  }
  EXPECT_FALSE(read_prompt_ids("/nonexistent/ids.json").ok());
}

TEST(TokenIds, APromptMustFitTheModel) {
  const std::vector<int32_t> ids = {0, 9, 3};
  EXPECT_TRUE(check_prompt(ids, 10, 5, 8).ok());
  EXPECT_EQ(check_prompt(ids, 9, 5, 8).error().message,
            "prompt id 9 at index 1 is not in the vocabulary [0, 9)");
  EXPECT_EQ(check_prompt(ids, 10, 6, 8).error().message,
            "3 prompt tokens and 6 new ones exceed the model's 8 positions");
  EXPECT_FALSE(check_prompt({}, 10, 1, 8).ok());
}

TEST(Suggest, FindsTheNearestWordOrNone) {
  const std::vector<std::string> known = {"--max-tokens", "--model", "--top-p"};
  EXPECT_EQ(nearest_word("--max-token", known), "--max-tokens");
  EXPECT_EQ(nearest_word("--modle", known), "--model");
  EXPECT_EQ(nearest_word("--something-else-entirely", known), "");
}

}  // namespace
}  // namespace sparrow::cli
