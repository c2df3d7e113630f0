// SPDX-License-Identifier: Apache-2.0
// Pictures through workers: the same pixels as without them, and an error for everything that is no picture.
#include "media/picture/picture_decoder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <future>
#include <map>
#include <random>

#include "media/picture/picture_work.h"

namespace sparrow {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

constexpr DecodeLimits kLimits{.max_bytes = 8 << 20, .max_pixels = 4 << 20};

MediaBytes bytes_of(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

// Name -> bytes of every image of the goldens.
std::map<std::string, MediaBytes> golden_files() {
  std::map<std::string, MediaBytes> files;
  for (const auto& entry : fs::directory_iterator(fs::path(SPARROW_GOLDEN_DIR) / "vision/images"))
    files[entry.path().filename().string()] = bytes_of(entry.path());
  return files;
}

Result<Image> without_workers(const MediaBytes& file) {
  const ImageHeader header = SPARROW_TRY(admit_image(file, kLimits));
  const PictureTask task{.size = SPARROW_TRY(smart_resize(header.height, header.width, {})),
                         .limits = kLimits};
  MediaBytes output(task.output_bytes());
  SPARROW_TRY(decode_picture(options_of(task), file, output));
  return picture_of(output, task);
}

class PictureDecoderTest : public testing::Test {
 protected:
  PictureDecoderTest() {
    MediaWorkersOptions options = picture_worker_options(kLimits, {}, 2);
    options.command = {.program = SPARROW_MEDIA_TEST_WORKER, .arguments = {"pictures"}};
    options.start_time = options.least_time = std::chrono::minutes(10);
    auto workers = MediaWorkers::start(options);
    EXPECT_TRUE(workers.ok()) << workers.error().message;
    workers_ = std::move(workers).value();
  }

  std::future<Result<Image>> submit(MediaBytes file, const SizeRule& rule = {}) {
    auto promise = std::make_shared<std::promise<Result<Image>>>();
    const auto id = PictureDecoder(*workers_, kLimits)
                        .submit("key", std::move(file), rule,
                                [promise](Result<Image> image) { promise->set_value(std::move(image)); });
    if (!id.ok()) promise->set_value(id.error());
    return promise->get_future();
  }

  std::unique_ptr<MediaWorkers> workers_;
};

TEST_F(PictureDecoderTest, GivesThePixelsThatDecodingHereGives) {
  std::map<std::string, std::future<Result<Image>>> answers;
  const auto files = golden_files();
  ASSERT_GE(files.size(), 30u);
  for (const auto& [name, bytes] : files) answers[name] = submit(bytes);
  for (const auto& [name, bytes] : files) {
    const Result<Image> image = answers[name].get(), expected = without_workers(bytes);
    ASSERT_EQ(image.ok(), expected.ok()) << name << ": " << (image.ok() ? "" : image.error().message);
    EXPECT_TRUE(!image.ok() || image.value() == expected.value()) << name;
  }
  EXPECT_EQ(workers_->counts().broken, 0);
}

TEST_F(PictureDecoderTest, RefusesBeforeAnybodyDecodes) {
  const MediaBytes nothing;
  EXPECT_FALSE(submit(nothing).get().ok());
  EXPECT_FALSE(submit(MediaBytes(100, std::byte{'x'})).get().ok());
  EXPECT_FALSE(submit(MediaBytes(kLimits.max_bytes + 1, std::byte{'x'})).get().ok());
  SizeRule huge;
  huge.min_pixels = huge.max_pixels = int64_t{1} << 26;
  const auto files = golden_files();
  EXPECT_THAT(submit(files.at("square.png"), huge).get().error().message, HasSubstr("as the model sees it"));
  EXPECT_EQ(workers_->counts().started, 1);  // and that one has done nothing
}

// Damaged files end as they do without workers, and no worker breaks.
TEST_F(PictureDecoderTest, DamagedFilesCostThemselvesOnly) {
  std::mt19937 random(7);
  std::vector<MediaBytes> damaged;
  for (const auto& [name, bytes] : golden_files()) {
    if (bytes.size() > 100'000) continue;
    MediaBytes cut(bytes.begin(), bytes.begin() + static_cast<ptrdiff_t>(random() % bytes.size()));
    MediaBytes flipped = bytes;
    for (int i = 0; i < 8; ++i)
      flipped[random() % flipped.size()] ^= static_cast<std::byte>(1 << random() % 8);
    damaged.push_back(std::move(cut));
    damaged.push_back(std::move(flipped));
  }
  std::vector<std::future<Result<Image>>> answers;
  for (const MediaBytes& file : damaged) answers.push_back(submit(file));
  for (size_t i = 0; i < damaged.size(); ++i) {
    const Result<Image> image = answers[i].get(), expected = without_workers(damaged[i]);
    ASSERT_EQ(image.ok(), expected.ok()) << i;
    EXPECT_TRUE(!image.ok() || image.value() == expected.value()) << i;
  }
  EXPECT_EQ(workers_->counts().broken, 0);
}

}  // namespace
}  // namespace sparrow
