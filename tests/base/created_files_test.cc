// SPDX-License-Identifier: Apache-2.0
#include "base/files/created_files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

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
      for (const char* name : {"mine", "other"}) ASSERT_TRUE(write_text_file(files.add(name), "new").ok());
      if (kept) files.keep();
    }
    EXPECT_TRUE(fs::exists(dir.path() / "o/mine")) << "was there before";
    for (const char* path : {"o/other", "o/p/q/mine", "o/r/other"})
      EXPECT_EQ(fs::exists(dir.path() / path), kept) << path;
    EXPECT_TRUE(kept || (!fs::exists(dir.path() / "o/p") && !fs::exists(dir.path() / "o/r")));
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
