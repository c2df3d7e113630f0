// SPDX-License-Identifier: Apache-2.0
// How a rank walks through files: what it announces, and which files it leaves alone.
#include "model/load/file_walk.h"

#include <gtest/gtest.h>

#include <thread>

#include "support/temp_dir.h"

namespace sparrow {
namespace {

class FileWalkTest : public ::testing::Test {
 protected:
  // Four files of one tensor each.
  void SetUp() override {
    for (const char* name : {"a", "b", "c", "d"}) {
      const auto path = dir_.path() / name;
      auto writer = SafetensorsWriter::create(path, {{name, DType::kF32, {16}}}).value();
      ASSERT_TRUE(writer.write(0, std::vector<std::byte>(64)).ok());
      ASSERT_TRUE(writer.finish().ok());
      files_.push_back(SafetensorsFile::open(path).value());
      memory_.resize(LoadPacer::bytes_for(static_cast<int>(files_.size())));
    }
  }
  const std::byte* data(size_t file, const char* name) const {
    return static_cast<const std::byte*>(files_[file].tensor(name).value().data);
  }
  LoadOrder order(int local_world, bool gives_up = false) {
    return {files_, [this, local_world, gives_up](std::vector<char> reads) {
              reads_ = reads;
              return std::make_unique<LoadPacer>(memory_.data(), local_world, std::move(reads),
                                                 [gives_up] { return gives_up; });
            }};
  }

  const test::TempDir dir_;
  std::vector<SafetensorsFile> files_;
  std::vector<std::byte> memory_;
  std::vector<char> reads_;
};

TEST_F(FileWalkTest, KnowsWhereATensorLies) {
  const LoadOrder order = this->order(1);
  const FileWalk walk(order);
  EXPECT_EQ(walk.file_of(data(0, "a")), 0);
  EXPECT_EQ(walk.file_of(data(2, "c") + 63), 2);
  EXPECT_EQ(walk.file_of(memory_.data()), FileWalk::kNoFile);
}

TEST_F(FileWalkTest, SaysWhichFilesItReadsAndGoesThroughThem) {
  const LoadOrder order = this->order(1);
  FileWalk walk(order);
  for (const int file : {FileWalk::kNoFile, 0, 2, 2}) walk.expect(file);
  walk.start();
  EXPECT_EQ(reads_, (std::vector<char>{1, 0, 1, 0}));
  for (const int file : {FileWalk::kNoFile, 0, 2, 2}) {
    EXPECT_TRUE(walk.begin(file).ok());
    walk.end(file);
  }
}

TEST_F(FileWalkTest, AFileEndsWithItsLastChunk) {
  const LoadOrder order = this->order(2);
  FileWalk walk(order);
  for (const int file : {0, 0, 1, 2, 3}) walk.expect(file);
  walk.start();
  LoadPacer ahead(memory_.data(), 2, {1, 1, 1, 1}, [] { return true; });
  for (const int file : {0, 1, 2}) {
    EXPECT_TRUE(ahead.begin(file));
    ahead.end(file);
  }
  for (const bool is_last : {false, true}) {
    EXPECT_TRUE(walk.begin(0).ok());
    EXPECT_FALSE(ahead.begin(3));
    walk.end(0);
    EXPECT_EQ(ahead.begin(3), is_last);
  }
}

TEST_F(FileWalkTest, ThreadsOfTwoRanksGetThroughTogether) {
  const auto walk_all = [](FileWalk& walk) {
    std::atomic<int> next{0};
    std::vector<std::thread> threads;
    for (int t = 0; t < 3; ++t)
      threads.emplace_back([&] {
        for (int chunk; (chunk = next++) < 16;) {
          EXPECT_TRUE(walk.begin(chunk / 4).ok());
          walk.end(chunk / 4);
        }
      });
    for (std::thread& thread : threads) thread.join();
  };
  const LoadOrder order = this->order(2);
  FileWalk first(order), second(order);
  for (FileWalk* walk : {&first, &second}) {
    for (int chunk = 0; chunk < 16; ++chunk) walk->expect(chunk / 4);
    walk->start();
  }
  std::thread other([&] { walk_all(second); });
  walk_all(first);
  other.join();
}

TEST_F(FileWalkTest, ARankThatIsGoneIsAnError) {
  const LoadOrder order = this->order(2, /*gives_up=*/true);
  FileWalk walk(order);
  walk.expect(0);
  walk.start();
  EXPECT_NE(walk.begin(0).error().message.find("another rank of this node"), std::string::npos);
}

TEST_F(FileWalkTest, AloneNobodyIsAsked) {
  const LoadOrder order;
  FileWalk walk(order);
  walk.expect(walk.file_of(data(0, "a")));
  walk.start();
  EXPECT_TRUE(walk.begin(FileWalk::kNoFile).ok());
  walk.end(FileWalk::kNoFile);
}

}  // namespace
}  // namespace sparrow
