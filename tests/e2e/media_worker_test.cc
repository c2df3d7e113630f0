// SPDX-License-Identifier: Apache-2.0
// The program itself as a worker: with all that it links it can be locked up, and decodes as before.
#include <gtest/gtest.h>

#include <fstream>
#include <future>

#include "cli/commands.h"
#include "media/picture/picture_decoder.h"
#include "media/prepare.h"
#include "support/program.h"

namespace sparrow {
namespace {

MediaBytes golden_picture(const char* name) {
  std::ifstream file(std::string(SPARROW_GOLDEN_DIR) + "/vision/images/" + name, std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

TEST(MediaWorkerCommand, DecodesEveryFormat) {
  const DecodeLimits limits;
  MediaWorkersOptions options = picture_worker_options(limits, {}, 2);
  options.command = {.program = SPARROW_BINARY, .arguments = {cli::kMediaWorkerCommand}};
  options.start_time = options.least_time = std::chrono::minutes(10);
  const auto workers = MediaWorkers::start(options);
  ASSERT_TRUE(workers.ok()) << workers.error().message;
  for (const char* name : {"square.png", "progressive.jpg", "webp.webp", "gif.gif"}) {
    const MediaBytes file = golden_picture(name);
    std::promise<Result<Image>> promise;
    const auto id =
        PictureDecoder(*workers.value(), limits).submit("key", file, {}, [&](Result<Image> image) {
          promise.set_value(std::move(image));
        });
    ASSERT_TRUE(id.ok()) << name << ": " << id.error().message;
    const Result<Image> image = promise.get_future().get();
    ASSERT_TRUE(image.ok()) << name << ": " << image.error().message;
    const ImageSize size{.height = image->height, .width = image->width};
    EXPECT_EQ(planned_size(file, {}, limits).value(), size) << name;
  }
  EXPECT_LE(workers.value()->counts().started, 2) << "none had to be started again";
}

// Started by hand it finds no server, and says nothing.
TEST(MediaWorkerCommand, IsNoneForUsers) {
  const test::ProgramResult result = test::run_sparrow({cli::kMediaWorkerCommand});
  EXPECT_NE(result.exit_code, 0);
  EXPECT_EQ(result.out, "");
}

}  // namespace
}  // namespace sparrow
