// SPDX-License-Identifier: Apache-2.0
// The files of `quantize`: what is refused, what is copied and what is left out, and that nothing stays
// behind.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <csignal>
#include <map>

#include "base/files/mapped_fault.h"
#include "base/files/mapped_file.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/mx/quantise.h"
#include "checkpoint/random/synthetic.h"
#include "support/checkpoint/folder_files.h"
#include "support/temp_dir.h"

namespace sparrow {
namespace {

using test::files_of;
using test::TempDir;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
namespace fs = std::filesystem;

std::string error_of(const Result<QuantiseReport>& report) {
  return report.ok() ? "" : report.error().message;
}

TEST(QuantiseFiles, FoldersThatWouldBeLostAreRefused) {
  const TempDir dir;
  const fs::path from = dir.path() / "m";
  ASSERT_TRUE(write_synthetic_checkpoint({.dir = from}).ok());
  const auto before = files_of(from);
  const auto error = [&](const fs::path& a, const fs::path& b) {
    return error_of(quantise_checkpoint({.from = a, .to = b}));
  };
  EXPECT_THAT(error(from, from / "."), HasSubstr("is the source itself"));
  fs::create_directories(dir.path() / "used");
  ASSERT_TRUE(write_text_file(dir.path() / "used/notes", "mine").ok());
  EXPECT_THAT(error(from, dir.path() / "used"),
              AllOf(HasSubstr("holds files already"), HasSubstr("notes"), HasSubstr("name a new folder")));
  EXPECT_THAT(error(from, dir.path() / "used/notes"), HasSubstr("is no folder"));
  EXPECT_THAT(error(from, dir.path() / "used/notes/q"), HasSubstr("cannot create"));
  EXPECT_THAT(error(from, ""), HasSubstr("empty name"));
  EXPECT_THAT(error(dir.path() / "absent", dir.path() / "q"), HasSubstr("is no folder"));
  EXPECT_THAT(error(dir.path() / "used", dir.path() / "q"), HasSubstr("config.json"));
  EXPECT_EQ(files_of(from), before);
  EXPECT_EQ(files_of(dir.path() / "used").size(), 1u);
  EXPECT_FALSE(fs::exists(dir.path() / "q"));
}

TEST(QuantiseFiles, WhatIsNotCopiedIsNamed) {
  const TempDir dir;
  const fs::path from = dir.path() / "m", to = dir.path() / "q";
  ASSERT_TRUE(write_synthetic_checkpoint({.dir = from}).ok());
  for (const char* name : {"LICENSE", "original.safetensors", ".gitattributes"})
    ASSERT_TRUE(write_text_file(from / name, name).ok());
  fs::create_directory(from / "additional_chat_templates");
  fs::create_symlink("absent", from / "tokenizer.json");
  fs::create_symlink("LICENSE", from / "NOTICE");
  ASSERT_EQ(::mkfifo((from / "pipe").c_str(), 0600), 0);
  const auto report = quantise_checkpoint({.from = from, .to = to});
  ASSERT_TRUE(report.ok()) << error_of(report);
  EXPECT_THAT(report->left_out,
              ElementsAre("additional_chat_templates/", "original.safetensors", "pipe", "tokenizer.json"));
  const auto copied = files_of(to);
  EXPECT_EQ(copied.at("LICENSE"), "LICENSE");
  EXPECT_EQ(copied.at("NOTICE"), "LICENSE");
  EXPECT_FALSE(copied.contains("tokenizer.json"));
}

// No file may become larger than this.
void limit_files(rlim_t bytes) {
  rlimit limit{};
  ::getrlimit(RLIMIT_FSIZE, &limit);
  limit.rlim_cur = bytes;
  ::setrlimit(RLIMIT_FSIZE, &limit);
}

TEST(QuantiseFiles, WithoutRoomNothingIsLeft) {
  const TempDir dir;
  ASSERT_TRUE(write_synthetic_checkpoint({.dir = dir.path() / "m"}).ok());
  fs::create_directories(dir.path() / "q");
  for (const char* to : {"q", "q/o/p/", "o/p/q"}) {
    const auto before = ::signal(SIGXFSZ, SIG_IGN);
    limit_files(1 << 20);
    const auto report = quantise_checkpoint({.from = dir.path() / "m", .to = dir.path() / to});
    limit_files(RLIM_INFINITY);
    ::signal(SIGXFSZ, before);
    EXPECT_THAT(error_of(report), AllOf(HasSubstr("/model-0000"), HasSubstr("too large")));
    EXPECT_TRUE(fs::is_empty(dir.path() / "q"));
    EXPECT_FALSE(fs::exists(dir.path() / "o"));
  }
}

// A mapped file that is cut ends the program in a signal handler.
TEST(QuantiseFiles, WithoutItsSourceNothingIsLeft) {
  const TempDir dir;
  const fs::path from = dir.path() / "m";
  ASSERT_TRUE(write_synthetic_checkpoint({.dir = from}).ok());
  EXPECT_EXIT(
      {
        report_mapping_faults(/*exit_code=*/2);
        static_cast<void>(quantise_checkpoint(
            {.from = from, .to = dir.path() / "o/p/q"},
            [&](uint64_t, uint64_t) { fs::resize_file(from / "model-00002-of-00002.safetensors", 0); }));
      },
      ::testing::ExitedWithCode(2), "cannot be read any more");
  EXPECT_FALSE(fs::exists(dir.path() / "o"));
}

TEST(QuantiseFiles, WhatIsKilledIsNoCheckpoint) {
  const TempDir dir;
  const fs::path from = dir.path() / "m", to = dir.path() / "q";
  ASSERT_TRUE(write_synthetic_checkpoint({.dir = from}).ok());
  // The kernel kills who writes more than it may.
  EXPECT_EXIT(
      {
        limit_files(1 << 20);
        static_cast<void>(quantise_checkpoint({.from = from, .to = to}));
      },
      ::testing::KilledBySignal(SIGXFSZ), "");
  ASSERT_FALSE(fs::is_empty(to)) << "it got as far as writing";
  EXPECT_FALSE(fs::exists(to / "config.json") || fs::exists(to / "model.safetensors.index.json"));
  EXPECT_FALSE(Checkpoint::open(to).ok());
  EXPECT_THAT(error_of(quantise_checkpoint({.from = from, .to = to})),
              HasSubstr("an interrupted run has left"));
}

}  // namespace
}  // namespace sparrow
