// SPDX-License-Identifier: Apache-2.0
// `sparrow tokenize` as a user meets it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "support/program.h"
#include "support/temp_dir.h"

namespace sparrow::test {
namespace {

using testing::HasSubstr;
namespace fs = std::filesystem;

// A folder with nothing but a recorded tokenizer.
class TokenizeCommand : public testing::Test {
 protected:
  TokenizeCommand() {
    fs::copy_file(fs::path(SPARROW_GOLDEN_DIR) / "tokenizer/m3.tokenizer.json",
                  dir_.path() / "tokenizer.json");
  }
  ProgramResult run(std::vector<std::string> args) {
    args.insert(args.begin(), {"tokenize", "--model", dir_.path().string()});
    return run_sparrow(args);
  }
  TempDir dir_;
};

TEST_F(TokenizeCommand, IdsDecodeToTheTextTheyCameFrom) {
  const std::string text = "The cat's 日本 😀 \n]~b]user <mm:think>";
  ProgramResult ids = run({text});
  ASSERT_EQ(ids.exit_code, 0) << ids.err;
  ids.out.pop_back();  // the line break
  EXPECT_EQ(ids.out.find_first_not_of("0123456789,"), std::string::npos) << ids.out;
  const ProgramResult back = run({"--decode", ids.out});
  EXPECT_EQ(back.exit_code, 0) << back.err;
  EXPECT_EQ(back.out, text);
}

TEST_F(TokenizeCommand, SpecialTokensCanBePlainTextOrLeftOut) {
  const ProgramResult one = run({"]~b]"});
  EXPECT_EQ(one.out.find(','), std::string::npos) << one.out;
  EXPECT_NE(run({"--plain", "]~b]"}).out.find(','), std::string::npos);
  EXPECT_EQ(run({"--decode", "--skip-special", one.out}).out, "");
}

TEST_F(TokenizeCommand, TableHasALineForEachToken) {
  const ProgramResult table = run({"--table", "a\n[e~["});
  EXPECT_EQ(table.exit_code, 0) << table.err;
  EXPECT_THAT(table.out, HasSubstr("\"a\"\n"));
  EXPECT_THAT(table.out, HasSubstr("\"\\n\"\n"));
  EXPECT_THAT(table.out, HasSubstr("\"[e~[\"  special\n"));
}

TEST_F(TokenizeCommand, BadInputIsOneLineThatNamesIt) {
  EXPECT_THAT(run({"--decode", "1,x2"}).err, HasSubstr("got \"x2\""));
  EXPECT_THAT(run({"--decode", "99999999"}).err, HasSubstr("got 99999999"));
  EXPECT_EQ(run({"--decode", "99999999"}).exit_code, 2);
  fs::remove(dir_.path() / "tokenizer.json");
  EXPECT_THAT(run({"a"}).err, HasSubstr("tokenizer.json"));
}

}  // namespace
}  // namespace sparrow::test
