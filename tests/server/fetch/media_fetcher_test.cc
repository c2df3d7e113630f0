// SPDX-License-Identifier: Apache-2.0
#include "server/fetch/media_fetcher.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <future>

#include "base/strf.h"
#include "support/server/fake_server.h"
#include "support/temp_dir.h"

namespace sparrow {
namespace {

using namespace std::chrono_literals;
using test::FakeServer;
using testing::HasSubstr;

std::string text_of(const Result<MediaBytes>& bytes) {
  if (!bytes.ok()) return "error: " + bytes.error().message;
  return {reinterpret_cast<const char*>(bytes->data()), bytes->size()};
}

struct Asked {
  std::future<std::string> answer;
  Result<uint64_t> id;
};

Asked ask(MediaFetcher& fetcher, const std::string& key, const std::string& url) {
  auto promise = std::make_shared<std::promise<std::string>>();
  Asked asked{promise->get_future(), uint64_t{0}};
  asked.id =
      fetcher.submit(key, url, [promise](const Result<MediaBytes>& r) { promise->set_value(text_of(r)); });
  return asked;
}

std::string refusal(MediaFetcher& fetcher, const std::string& url) {
  const Asked asked = ask(fetcher, "key", url);
  return asked.id.ok() ? "" : asked.id.error().message;
}

MediaFetcherOptions options_for(const FakeServer& server) {
  MediaFetcherOptions options;
  options.web.domains = AllowedDomains::parse({"a.test"}).value();
  options.web.ports = {static_cast<uint16_t>(server.port())};
  options.web.time_limit = 600s;
  options.web.is_allowed_address = [](const IpAddress&) { return true; };
  options.web.resolve = [](const std::string&) -> Result<std::vector<IpAddress>> {
    return std::vector<IpAddress>{*IpAddress::parse("127.0.0.1")};
  };
  return options;
}

std::unique_ptr<MediaFetcher> start(const MediaFetcherOptions& options) {
  auto fetcher = MediaFetcher::start(options);
  EXPECT_TRUE(fetcher.ok()) << fetcher.error().message;
  return std::move(fetcher).value();
}

TEST(MediaFetcher, IsOffByDefault) {
  const auto fetcher = start({});
  EXPECT_THAT(refusal(*fetcher, "http://example.com/x.png"), HasSubstr("--allowed-media-domains"));
  EXPECT_THAT(refusal(*fetcher, "https://example.com/x.png"), HasSubstr("--allowed-media-domains"));
  EXPECT_THAT(refusal(*fetcher, "file:///etc/passwd"), HasSubstr("--allowed-local-media-path"));
  for (const char* url : {"", "x.png", "/etc/passwd", "ftp://example.com/", "gopher://x", "//example.com/x"})
    EXPECT_THAT(refusal(*fetcher, url), HasSubstr("neither data:")) << url;
}

TEST(MediaFetcher, GetsFilesAndPages) {
  const test::TempDir dir;
  std::ofstream(dir.path() / "x.png") << "file";
  const FakeServer server([](const FakeServer::Request&, const FakeServer::Peer& peer) {
    peer.send(test::http_answer("200 OK", "page"));
  });
  MediaFetcherOptions options = options_for(server);
  options.local_path = dir.path().string();
  options.max_bytes = 4;
  const auto fetcher = start(options);
  EXPECT_EQ(ask(*fetcher, "a", "file://" + (dir.path() / "x.png").string()).answer.get(), "file");
  EXPECT_EQ(ask(*fetcher, "a", strf("http://a.test:{}/", server.port())).answer.get(), "page");
  EXPECT_THAT(ask(*fetcher, "a", "file:///etc/passwd").answer.get(), HasSubstr("not a file below"));
  options.max_bytes = 3;
  const auto small = start(options);
  EXPECT_THAT(ask(*small, "a", "file://" + (dir.path() / "x.png").string()).answer.get(),
              HasSubstr("at most 3"));
  EXPECT_THAT(ask(*small, "a", strf("http://a.test:{}/", server.port())).answer.get(),
              HasSubstr("the 3 that"));
  options.local_path = "/no/such/folder";
  EXPECT_EQ(MediaFetcher::start(options).error().field, "allowed-local-media-path");
}

TEST(MediaFetcher, CancelsAndRefusesWhatIsTooMuch) {
  const FakeServer server(
      [](const FakeServer::Request&, const FakeServer::Peer& peer) { peer.wait_until_gone(); });
  MediaFetcherOptions options = options_for(server);
  options.threads = 1;
  options.max_fetches = 3;
  options.max_fetches_of_key = 2;
  const auto fetcher = start(options);
  const std::string url = strf("http://a.test:{}/", server.port());
  Asked running = ask(*fetcher, "a", url), waiting = ask(*fetcher, "a", url);
  ASSERT_TRUE(running.id.ok() && waiting.id.ok());
  EXPECT_THAT(ask(*fetcher, "a", url).id.error().message, HasSubstr("of this key"));
  Asked last = ask(*fetcher, "b", url);
  ASSERT_TRUE(last.id.ok());
  EXPECT_EQ(ask(*fetcher, "c", url).id.error().code, Errc::kBusy);
  fetcher->cancel(waiting.id.value());
  EXPECT_EQ(waiting.answer.get(), "error: cancelled");
  fetcher->cancel(running.id.value());
  EXPECT_THAT(running.answer.get(), HasSubstr("cancelled"));
  fetcher->cancel(last.id.value());
  EXPECT_THAT(last.answer.get(), HasSubstr("cancelled"));
}

TEST(MediaFetcher, EndsWithWhatStillRunsAndWaits) {
  const FakeServer server(
      [](const FakeServer::Request&, const FakeServer::Peer& peer) { peer.wait_until_gone(); });
  MediaFetcherOptions options = options_for(server);
  options.threads = 1;
  auto fetcher = start(options);
  const std::string url = strf("http://a.test:{}/", server.port());
  Asked first = ask(*fetcher, "a", url), second = ask(*fetcher, "a", url);
  fetcher.reset();
  EXPECT_THAT(first.answer.get(), HasSubstr("cancelled"));
  EXPECT_THAT(second.answer.get(), HasSubstr("cancelled"));
}

}  // namespace
}  // namespace sparrow
