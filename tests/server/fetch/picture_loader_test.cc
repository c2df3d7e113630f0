// SPDX-License-Identifier: Apache-2.0
// Pictures of a request from all sources at once.
#include "server/fetch/picture_loader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <deque>
#include <filesystem>
#include <fstream>
#include <future>

#include "base/strf.h"
#include "media/prepare.h"
#include "support/server/fake_server.h"

namespace sparrow {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;
using test::FakeServer;
using testing::HasSubstr;

const fs::path kImages = fs::path(SPARROW_GOLDEN_DIR) / "vision/images";

std::string file_text(const char* name) {
  std::ifstream file(kImages / name, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}
MediaBytes file_bytes(const char* name) {
  const std::string text = file_text(name);
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

constexpr const char* kOnePixel =
    "data:image/"
    "png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+"
    "M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==";

class PictureLoaderTest : public testing::Test {
 protected:
  // A server that has one picture, and says nothing at /silent.
  PictureLoaderTest()
      : server_([](const FakeServer::Request& request, const FakeServer::Peer& peer) {
          if (request.line.find("/silent") != std::string::npos) return peer.wait_until_gone();
          peer.send(test::http_answer("200 OK", file_text("square.png"), "image/png"));
        }) {
    MediaWorkersOptions workers = picture_worker_options(limits_.decode, {}, 2);
    workers.command = {.program = SPARROW_MEDIA_TEST_WORKER, .arguments = {"pictures"}};
    workers.start_time = workers.least_time = 600s;
    workers_ = MediaWorkers::start(workers).value();
    MediaFetcherOptions fetcher;
    fetcher.local_path = fs::canonical(kImages).string();
    fetcher.web.domains = AllowedDomains::parse({"a.test"}).value();
    fetcher.web.ports = {static_cast<uint16_t>(server_.port())};
    fetcher.web.time_limit = 600s;
    fetcher.web.is_allowed_address = [](const IpAddress&) { return true; };
    fetcher.web.resolve = [](const std::string&) -> Result<std::vector<IpAddress>> {
      return std::vector<IpAddress>{*IpAddress::parse("127.0.0.1")};
    };
    fetcher_ = MediaFetcher::start(fetcher).value();
  }

  std::string url(const char* path) const { return strf("http://a.test:{}{}", server_.port(), path); }
  static std::string file_url(const char* name) {
    return "file://" + (fs::canonical(kImages) / name).string();
  }

  // Waits for the end.
  Result<std::vector<LoadedPicture>> load(std::vector<PictureSource> sources, PictureStores stores = {}) {
    auto promise = std::make_shared<std::promise<Result<std::vector<LoadedPicture>>>>();
    const auto load = PictureLoader(*workers_, *fetcher_, limits_, stores)
                          .load("key", std::move(sources),
                                [promise](auto images) { promise->set_value(std::move(images)); });
    if (!load.ok()) return load.error();
    return promise->get_future().get();
  }

  PictureLimits limits_;
  std::deque<ByteBudget> budgets_;  // who failed gives back on the workers' thread, perhaps after the load
  FakeServer server_;
  std::unique_ptr<MediaWorkers> workers_;
  std::unique_ptr<MediaFetcher> fetcher_;
};

TEST_F(PictureLoaderTest, TakesPicturesFromEverywhereInTheirOrder) {
  const auto images = load({{.from = kOnePixel},
                            {.from = url("/square.png")},
                            {.from = file_url("progressive.jpg")},
                            {.from = file_bytes("webp.webp")}});
  ASSERT_TRUE(images.ok()) << images.error().message;
  ASSERT_EQ(images->size(), 4u);
  const auto size_of = [](const LoadedPicture& picture) {
    return ImageSize{.height = picture.image.height, .width = picture.image.width};
  };
  EXPECT_EQ(size_of(images.value()[0]), (ImageSize{.height = 56, .width = 56}));
  const char* const names[] = {"", "square.png", "progressive.jpg", "webp.webp"};
  for (size_t i = 1; i < 4; ++i)
    EXPECT_EQ(size_of(images.value()[i]), planned_size(file_bytes(names[i]), {}, {}).value()) << names[i];
}

TEST_F(PictureLoaderTest, TheFirstThatFailsEndsTheOthers) {
  const auto images = load({{.from = url("/silent"), .field = "messages[0]"},  // would never end
                            {.from = file_url("none.png"), .field = "messages[1]"}});
  ASSERT_FALSE(images.ok());
  EXPECT_THAT(images.error().message, HasSubstr("is not a file below"));
  EXPECT_EQ(images.error().field, "messages[1]");
}

TEST_F(PictureLoaderTest, RefusesAtOnceWhatItCan) {
  const auto refusal = [&](std::vector<PictureSource> sources) {
    const auto images = load(std::move(sources));
    return images.ok() ? "" : strf("{}: {}", images.error().field, images.error().message);
  };
  EXPECT_THAT(refusal({}), HasSubstr("0 pictures"));
  EXPECT_THAT(refusal(std::vector<PictureSource>(9, {.from = kOnePixel})),
              HasSubstr("9 pictures; at most 8"));
  EXPECT_THAT(refusal({{.from = kOnePixel}, {.from = "data:image/png;base64,x", .field = "f"}}),
              HasSubstr("f: base64"));
  EXPECT_THAT(refusal({{.from = "ftp://a.test/", .field = "f"}}), HasSubstr("f: URL ftp://a.test/: neither"));
  EXPECT_THAT(refusal({{.from = MediaBytes(10), .field = "f"}}), testing::StartsWith("f: "));
  limits_.all_pixels = 2 * 56 * 56;
  EXPECT_EQ(refusal({{.from = kOnePixel}, {.from = kOnePixel}}), "");
  EXPECT_THAT(refusal({{.from = kOnePixel}, {.from = kOnePixel}, {.from = kOnePixel, .field = "f"}}),
              HasSubstr("f: pictures of more than 6272 pixels"));
  limits_.all_bytes = 100;
  EXPECT_THAT(refusal({{.from = kOnePixel}, {.from = kOnePixel, .field = "f"}}),
              HasSubstr("f: pictures of more than 100"));
}

// Pictures of one request that never have room together are no matter of waiting. One alone is always taken.
TEST_F(PictureLoaderTest, WhatCanNeverFitIsNotToldToComeAgain) {
  const auto error = [&](int64_t room, size_t count, int64_t taken = 0) {
    ByteBudget& memory = budgets_.emplace_back(room);
    const auto share = memory.take(taken);
    const auto images = load(std::vector<PictureSource>(count, {.from = kOnePixel}), {.memory = &memory});
    return images.ok() ? Error{} : images.error();
  };
  EXPECT_EQ(error(100, 1).message, "");
  const Error never = error(100, 2);
  EXPECT_EQ(never.code, Errc::kInvalidArgument);
  EXPECT_THAT(never.message, HasSubstr("--media-memory"));
  EXPECT_EQ(error(200'000, 2).message, "");
  EXPECT_EQ(error(200'000, 1, 150'000).code, Errc::kBusy);
  EXPECT_EQ(error(200'000, 2, 150'000).code, Errc::kBusy);
}

// Who else sent it is nobody's business.
TEST_F(PictureLoaderTest, APictureIsDecodedOnceForEachSender) {
  const MediaBytes file = file_bytes("square.png");
  const Image marked{.width = 28, .height = 28, .rgb = std::vector<uint8_t>(size_t{3} * 28 * 28, 7)};
  const SizeRule small{.max_pixels = 100'000};
  PictureCache cache(1 << 20);
  cache.add(PictureCache::id_of("a", sha256({file}), {}), "a", marked);
  const auto load = [&](const char* salt, const SizeRule& rule = {}) {
    auto promise = std::make_shared<std::promise<Result<std::vector<LoadedPicture>>>>();
    const auto begun = PictureLoader(*workers_, *fetcher_, limits_, {.cache = &cache})
                           .load(
                               "key", {{.from = file, .rule = rule}},
                               [promise](auto pictures) { promise->set_value(std::move(pictures)); }, salt);
    EXPECT_TRUE(begun.ok());
    return promise->get_future().get().value()[0].image;
  };
  EXPECT_EQ(load("a"), marked);
  EXPECT_NE(load("b"), marked);
  EXPECT_NE(load("a", small), marked);
  EXPECT_TRUE(cache.find(PictureCache::id_of("b", sha256({file}), {})));
  EXPECT_FALSE(cache.find(PictureCache::id_of("b", sha256({file}), small)));
}

TEST_F(PictureLoaderTest, ALoadThatIsDestroyedEndsWhatItBegan) {
  std::vector<PictureSource> sources{{.from = url("/silent")}, {.from = kOnePixel}};
  auto load = PictureLoader(*workers_, *fetcher_, limits_).load("key", std::move(sources), [](const auto&) {
    ADD_FAILURE() << "one of the two never comes";
  });
  ASSERT_TRUE(load.ok()) << load.error().message;
  load.value().reset();
  server_.wait_for_answers(server_.requests().size());  // the fetch, if it had begun, is gone
}

}  // namespace
}  // namespace sparrow
