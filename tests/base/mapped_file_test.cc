// SPDX-License-Identifier: Apache-2.0
#include "base/files/mapped_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <fstream>

#include "base/files/mapped_fault.h"
#include "support/temp_dir.h"

namespace sparrow {
namespace {

using testing::HasSubstr;

void fill(const std::filesystem::path& path, size_t size) {
  std::ofstream(path, std::ios::binary) << std::string(size, 'x');
}

// Opening a pipe that nobody writes to would wait for ever.
TEST(MappedFile, TakesRegularFilesOnly) {
  const test::TempDir dir;
  const auto pipe = dir.path() / "pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  for (const std::filesystem::path& path : {pipe, dir.path(), std::filesystem::path("/dev/zero")}) {
    const auto mapped = MappedFile::open(path);
    ASSERT_FALSE(mapped.ok()) << path;
    EXPECT_THAT(mapped.error().message, HasSubstr(quoted(path) + " is not a regular file"));
    const auto text = read_text_file(path, 1 << 20);
    ASSERT_FALSE(text.ok()) << path;
    EXPECT_THAT(text.error().message, HasSubstr(quoted(path) + " is not a regular file"));
  }
}

using MappedFileDeathTest = testing::Test;

TEST(MappedFileDeathTest, AFileThatIsCutShortEndsTheProgramWithItsName) {
  const test::TempDir dir;
  const auto kept = dir.path() / "kept", cut = dir.path() / "cut";
  fill(kept, 1 << 20);
  fill(cut, 1 << 20);
  const auto read_after_cut = [&] {
    report_mapping_faults(/*exit_code=*/2);
    MappedFile first = MappedFile::open(kept).value();
    MappedFile second = MappedFile::open(kept).value();
    second = MappedFile::open(cut).value();  // its place in the list is used again
    std::filesystem::resize_file(cut, 0);
    for (const MappedFile* file : {&first, &second})
      if (file->bytes().back() == std::byte{0}) std::exit(1);
  };
  EXPECT_EXIT(read_after_cut(), testing::ExitedWithCode(2), "sparrow: '.*/cut' cannot be read any more");
}

// A fault that belongs to no file is a bug: it must look like one.
TEST(MappedFileDeathTest, OtherFaultsAreNotTakenForFiles) {
  EXPECT_EXIT(
      {
        report_mapping_faults(/*exit_code=*/2);
        ::raise(SIGBUS);
        ::raise(SIGBUS);
      },
      testing::KilledBySignal(SIGBUS), "^$");
}

}  // namespace
}  // namespace sparrow
