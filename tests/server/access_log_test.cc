// SPDX-License-Identifier: Apache-2.0
#include "server/access_log.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>
#include <sstream>
#include <thread>

#include "base/json/json.h"

namespace sparrow {
namespace {

using testing::HasSubstr;
using testing::Not;

class AccessLine : public testing::Test {
 protected:
  std::string line(LogFormat format) {
    const AccessRecord record{.request = request,
                              .status = 200,
                              .response_bytes = 345,
                              .seconds = 0.01234,
                              .complete = complete,
                              .notes = notes,
                              .failure = failure};
    return access_line(record, format,
                       std::chrono::system_clock::time_point(std::chrono::milliseconds(1'700'000'000'123)));
  }

  HttpRequest request{.method = "POST",
                      .path = "/v1/completions",
                      .query = "key=secret",
                      .body = "the prompt",
                      .request_id = "req-1",
                      .peer = "127.0.0.1:5000"};
  std::vector<AccessRecord::Note> notes = {{"model", "demo", false}, {"prompt_tokens", "12", true}};
  bool complete = true;
  std::string failure;
};

TEST_F(AccessLine, IsOneLineForPeople) {
  EXPECT_EQ(line(LogFormat::kHuman),
            "2023-11-14T22:13:20.123Z 200 POST /v1/completions 12.3ms 345B 127.0.0.1:5000 req-1 model=demo "
            "prompt_tokens=12\n");
}

TEST_F(AccessLine, IsOneJsonObjectForPrograms) {
  EXPECT_EQ(line(LogFormat::kJson),
            R"({"time":"2023-11-14T22:13:20.123Z","status":200,"method":"POST","path":"/v1/completions",)"
            R"("seconds":0.01234,"bytes":345,"peer":"127.0.0.1:5000","request_id":"req-1","complete":true,)"
            R"("model":"demo","prompt_tokens":12})"
            "\n");
}

TEST_F(AccessLine, HoldsNeitherBodyNorQuery) {
  for (const LogFormat format : {LogFormat::kHuman, LogFormat::kJson}) {
    EXPECT_THAT(line(format), Not(HasSubstr("secret")));
    EXPECT_THAT(line(format), Not(HasSubstr("prompt\"")));
    EXPECT_THAT(line(format), Not(HasSubstr("the prompt")));
  }
}

TEST_F(AccessLine, StaysOneShortLineWhateverThePeerSent) {
  request.path = "/a b\"\n2023 200 GET /forged " + std::string(10'000, 'x');
  notes = {{"model", "x\r\ny\x1b[31m", false}};
  for (const LogFormat format : {LogFormat::kHuman, LogFormat::kJson}) {
    const std::string text = line(format);
    EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 1);
    EXPECT_EQ(text.find('\x1b'), std::string::npos);
    EXPECT_EQ(text.find('\r'), std::string::npos);
    EXPECT_LT(text.size(), 1000u);
  }
  EXPECT_TRUE(JsonDocument::parse(line(LogFormat::kJson), "line").ok());
}

TEST_F(AccessLine, ShowsWhatIsMissingAndWhatFailed) {
  request = {.peer = "-"};
  complete = false;
  failure = "std::bad_alloc in handler";
  EXPECT_THAT(line(LogFormat::kHuman), HasSubstr("200 - - 12.3ms"));
  EXPECT_THAT(line(LogFormat::kHuman), HasSubstr(" incomplete failure=\"std::bad_alloc in handler\"\n"));
}

// A pipe that nobody reads holds 64 KB.
class UnreadLog : public testing::Test {
 protected:
  UnreadLog() {
    int ends[2];
    EXPECT_EQ(::pipe2(ends, O_CLOEXEC), 0);
    read_end_ = ends[0];
    write_end_ = ends[1];
  }

  static constexpr int kLines = 100'000;  // more than a queue holds
  static void write_lines(const AccessLog& log) {
    const HttpRequest request{.method = "GET", .path = "/health", .request_id = "req-1", .peer = "-"};
    const std::vector<AccessRecord::Note> notes;
    const std::string failure;
    for (int i = 0; i < kLines; ++i)
      log.write({.request = request,
                 .status = 200,
                 .response_bytes = i,
                 .seconds = 0,
                 .complete = true,
                 .notes = notes,
                 .failure = failure});
  }

  int read_end_, write_end_;
};

TEST_F(UnreadLog, HoldsNobodyUpAndTellsWhatWasLost) {
  std::string text;
  std::thread reader;
  {
    const AccessLog log(write_end_, LogFormat::kHuman);
    write_lines(log);
    reader = std::thread([&] {
      char buffer[64 << 10];
      for (ssize_t n; (n = ::read(read_end_, buffer, sizeof(buffer))) > 0;)
        text.append(buffer, static_cast<size_t>(n));
    });
  }
  ::close(write_end_);
  reader.join();
  ::close(read_end_);
  int whole = 0, lost = 0;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string time, second, third;
    words >> time >> second >> third;
    if (third == "lines")
      lost += std::stoi(second);
    else
      whole += line.ends_with("B - req-1");
  }
  EXPECT_EQ(whole + lost, kLines);
  EXPECT_GT(whole, 10'000);
  EXPECT_GT(lost, 10'000);
}

TEST_F(UnreadLog, DoesNotKeepTheProgramFromEnding) {
  const auto start = std::chrono::steady_clock::now();
  {
    const AccessLog log(write_end_, LogFormat::kJson);
    write_lines(log);
  }
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(20));
  // Let the thread that is stuck there go: the descriptor is its own.
  std::signal(SIGPIPE, SIG_IGN);
  ::close(read_end_);
}

}  // namespace
}  // namespace sparrow
