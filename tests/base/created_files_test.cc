// SPDX-License-Identifier: Apache-2.0
#include "base/files/created_files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include "base/files/mapped_file.h"
#include "support/temp_dir.h"

namespace sparrow {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;

TEST(CreatedFiles, AreKeptWholeOrNotAtAll) {
  const test::TempDir dir;
  ASSERT_TRUE(fs::create_directory(dir.path() / "o") && write_text_file(dir.path() / "o/mine", "old").ok());
  for (const bool kept : {false, true}) {
    for (const char* folder : {"o", "o/p/q", "o/r/"}) {
      CreatedFiles first = CreatedFiles::create(dir.path() / folder, 1).value();
      CreatedFiles files = std::move(first);
      for (const char* name : {"one", "other"})
        ASSERT_TRUE(write_text_file(files.add(name).value(), "new").ok());
      if (kept) files.keep();
    }
    for (const char* path : {"o/other", "o/p/q/one", "o/r/other"})
      EXPECT_EQ(fs::exists(dir.path() / path), kept) << path;
    EXPECT_TRUE(kept || (!fs::exists(dir.path() / "o/p") && !fs::exists(dir.path() / "o/r")));
  }
}

TEST(CreatedFiles, WhatIsThereIsNeverWrittenOver) {
  const test::TempDir dir;
  CreatedFiles files = CreatedFiles::create(dir.path() / "o", 1).value();
  ASSERT_TRUE(write_text_file(files.add("shard").value(), "the first run's").ok());
  {
    CreatedFiles others = CreatedFiles::create(dir.path() / "o", 1).value();
    EXPECT_THAT(others.add("shard").error().message, HasSubstr("shard' exists already"));
    ASSERT_TRUE(others.add("more").ok());
  }
  files.keep();
  EXPECT_EQ(read_text_file(dir.path() / "o/shard", 100).value(), "the first run's");
  EXPECT_FALSE(fs::exists(dir.path() / "o/more"));
  EXPECT_THAT(CreatedFiles::create("", 1).error().message, HasSubstr("empty name"));
}

TEST(CreatedFiles, AreRemovedByASignalThatEndsTheProgram) {
  const test::TempDir dir;
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    const auto interrupted = [&] {
      CreatedFiles::remove_when_interrupted();
      CreatedFiles files = CreatedFiles::create(dir.path() / "o/p", 1).value();
      if (files.add("shard").ok() && fs::exists(dir.path() / "o/p/shard")) ::raise(signal);
    };
    EXPECT_EXIT(interrupted(), testing::KilledBySignal(signal), "");
    EXPECT_FALSE(fs::exists(dir.path() / "o"));
  }
}

TEST(CreatedFiles, WithoutRoomNothingIsBegun) {
  const test::TempDir dir;
  const auto files = CreatedFiles::create(dir.path() / "o/p", uint64_t{1} << 60);
  ASSERT_FALSE(files.ok());
  EXPECT_THAT(files.error().message,
              AllOf(HasSubstr("o/p' needs 1099511627776.0 MiB"), HasSubstr("free some")));
  EXPECT_FALSE(fs::exists(dir.path() / "o"));
  ASSERT_TRUE(write_text_file(dir.path() / "file", "").ok());
  EXPECT_THAT(CreatedFiles::create(dir.path() / "file/p", 0).error().message,
              AllOf(HasSubstr("cannot create '"), HasSubstr("file/p': Not a directory")));
}

}  // namespace
}  // namespace sparrow
