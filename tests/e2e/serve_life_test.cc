// SPDX-License-Identifier: Apache-2.0
// `sparrow serve` from its first check to its end, as a process.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <thread>

#include "client.h"
#include "server_process.h"
#include "support/program.h"
#include "support/server/http_test_server.h"
#include "support/temp_dir.h"

namespace sparrow::test {
namespace {

namespace fs = std::filesystem;
using testing::EndsWith;
using testing::HasSubstr;
using testing::Not;

class ServeLife : public testing::Test {
 protected:
  ServeLife() {
    EXPECT_EQ(run_sparrow({"make-model", "--preset", "tiny", "--out", model}).exit_code, 0);
    write("junk", "{% junk");
  }

  std::string write(const std::string& name, const std::string& text) const {
    const fs::path path = dir.path() / name;
    std::ofstream(path, std::ios::trunc) << text;
    return path;
  }
  void remove_weights() const {
    for (const auto& entry : fs::directory_iterator(model))
      if (entry.path().filename().string().starts_with("model")) fs::remove(entry.path());
  }
  // One line that says this, and not a word about the weights.
  static void expect_refusal(const std::vector<std::string>& args, const std::string& says) {
    const ProgramResult result = run_sparrow(args);
    EXPECT_EQ(result.exit_code, 2) << says;
    EXPECT_THAT(result.err, HasSubstr(says));
    EXPECT_THAT(result.err, Not(HasSubstr("safetensors")));
    EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
  }

  load::ServerFlags flags(std::vector<std::string> more) const {
    more.insert(more.end(), {"--threads", "1"});
    return {.program = SPARROW_BINARY,
            .model = model,
            .flags = std::move(more),
            .cache_bytes = 8 << 20,
            .log = log};
  }
  std::string log_text() const {
    std::ifstream file(log);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  // What has been asked for by a signal takes a moment to be there.
  static bool becomes_true(const std::function<bool()>& condition) {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (!condition()) {
      if (std::chrono::steady_clock::now() > deadline) return false;
      std::this_thread::yield();
    }
    return true;
  }
  static std::string chat(int max_tokens) {
    return load::post(
        "/v1/chat/completions",
        R"({"messages":[{"role":"user","content":"Hello"}],"ignore_eos":true,"stream":true,"max_tokens":)" +
            std::to_string(max_tokens) + "}");
  }

  TempDir dir;
  const fs::path model = dir.path() / "tiny";
  const std::string log = dir.path() / "log";
};

// The weights are missing, and every other mistake is told first.
TEST_F(ServeLife, WhatIsWrongIsToldBeforeWeightsAreLoaded) {
  remove_weights();
  const HttpTestServer taken{strict_options()};
  const std::string junk = dir.path() / "junk", nothing = dir.path() / "nothing";
  const std::vector<std::pair<std::vector<std::string>, std::string>> cases = {
      {{"--port", std::to_string(taken.port())}, "Address already in use; choose another port"},
      {{"--host", "no.such.host.invalid"}, "no.such.host.invalid"},
      {{"--ssl-certfile", junk, "--ssl-keyfile", junk}, junk},
      {{"--chat-template", nothing}, nothing},
      {{"--chat-template", junk}, "template"},
      {{"--api-key-file", nothing}, nothing},
      {{"--api-key", ""}, "--api-key: an API key must be 1 to 512 printable characters"},
      {{"--kv-cache-memory", "1000T"}, "--kv-cache-memory 1000T is more than this machine's"},
      {{"--allowed-local-media-path", nothing}, "--allowed-local-media-path " + nothing + ": No such file"},
      {{"--mm-processor-cache-gb", "nan"}, "--mm-processor-cache-gb: Value nan"},
      {{"--served-model-name", ""}, "--served-model-name"},
      {{"--served-model-name", "a\nb"}, "--served-model-name"},
      {{"--max-model-len", "65536", "--kv-cache-memory", "8M"}, "--max-model-len 65536: the cache holds"},
  };
  for (const auto& [more, says] : cases) {
    std::vector<std::string> args = {"serve", model, "--allow-unauthenticated"};
    if (more[0] != "--port") args.insert(args.end(), {"--port", "0"});
    args.insert(args.end(), more.begin(), more.end());
    expect_refusal(args, says);
  }
  fs::copy(junk, model / "chat_template.jinja", fs::copy_options::overwrite_existing);
  expect_refusal({"serve", model, "--port", "0"}, "template");
}

TEST_F(ServeLife, GenerateLooksAtItsFilesBeforeWeightsAreLoaded) {
  remove_weights();
  const std::string prompts = write("prompts", "{\"prompt\":\"a\"}\n");
  const std::string nothing = dir.path() / "nothing";
  expect_refusal({"generate", "--model", model, "--prompts", nothing, "--out", dir.path() / "out"}, nothing);
  expect_refusal({"generate", "--model", model, "--prompts", dir.path(), "--out", dir.path() / "out"},
                 "--prompts");
  expect_refusal({"generate", "--model", model, "--prompts", prompts, "--out", nothing + "/out"},
                 nothing + "/out");
  expect_refusal({"generate", "--model", model, "--prompts", prompts, "--out", model}, "--out");
  expect_refusal({"generate", "--model", model, "--prompts", prompts, "--out", prompts}, "--prompts");
}

TEST_F(ServeLife, GenerateLooksAtItsPromptBeforeWeightsAreLoaded) {
  remove_weights();
  const auto refused = [&](std::vector<std::string> more, const std::string& says) {
    more.insert(more.begin(), {"generate", "--model", model});
    expect_refusal(more, says);
  };
  refused({"--prompt-ids", "1,512"}, "prompt id 512");
  refused({"--prompt-ids", "1", "--max-tokens", "70000"}, "65536 positions");
  refused({"--prompt-ids", "1", "--temperature", "nan"}, "temperature must be a number >= 0, got nan");
  refused({"--prompt", "a", "--top-p", "2"}, "top_p");
  refused({"--prompt", "a", "--image", dir.path() / "nothing"}, dir.path() / "nothing");
}

TEST_F(ServeLife, BalancersSeeThatItStopsWhileItStillAnswers) {
  load::ServerProcess server(flags({"--drain-delay", "3600"}));
  const auto ready = [&] { return load::call(server.port(), load::get("/ready")).status; };
  EXPECT_EQ(ready(), 200);
  server.signal(SIGTERM);
  EXPECT_TRUE(becomes_true([&] { return ready() == 503; }));
  EXPECT_EQ(load::call(server.port(), load::get("/health")).status, 200);
  RawClient client(server.port());
  client.send(chat(3));
  const RawResponse answer = client.read_response();
  EXPECT_EQ(answer.status, 200);
  EXPECT_EQ(answer.header("connection"), "close");
  EXPECT_THAT(answer.body, EndsWith("data: [DONE]\n\n"));
  EXPECT_TRUE(server.running());
  server.signal(SIGTERM);  // the second one ends it at once
  EXPECT_EQ(server.wait(), 128 + SIGTERM);
}

TEST_F(ServeLife, StreamsThatHaveBegunAreFinished) {
  for (const int signal : {SIGTERM, SIGINT}) {
    load::ServerProcess server(flags({"--drain-delay", signal == SIGTERM ? "1" : "3600"}));
    RawClient client(server.port());
    client.send(chat(1000));
    const std::string begin = client.read_bytes(200);
    EXPECT_THAT(begin, HasSubstr("200 OK"));
    server.signal(signal);
    EXPECT_THAT(client.read_all(std::chrono::seconds(60)), HasSubstr("data: [DONE]\n\n"));
    client.close();
    EXPECT_EQ(server.wait(), 0);
  }
}

TEST_F(ServeLife, KeysAreReadAgainOnHangup) {
  const std::string keys = write("keys", "sk-a\n");
  load::ServerProcess server(flags({"--api-key-file", keys}));
  const auto status = [&](const char* key) {
    return load::call(server.port(), load::get("/v1/models", key)).status;
  };
  EXPECT_EQ(status("sk-a"), 200);
  EXPECT_EQ(status("sk-b"), 401);
  write("keys", "sk-b\n");
  server.signal(SIGHUP);
  EXPECT_TRUE(becomes_true([&] { return status("sk-b") == 200; }));
  EXPECT_EQ(status("sk-a"), 401);
  write("keys", "sk-c requests=many\n");
  server.signal(SIGHUP);
  EXPECT_TRUE(becomes_true([&] { return log_text().find("keys not read again") != std::string::npos; }));
  EXPECT_THAT(log_text(), HasSubstr("keys not read again, the old ones stay: " + keys + ":1"));
  EXPECT_EQ(status("sk-b"), 200);
  EXPECT_EQ(status("sk-c"), 401);
  EXPECT_EQ(server.stop(), 0);
}

TEST_F(ServeLife, ASmallCacheLowersTheContextInAWord) {
  load::ServerProcess server(flags({"--max-model-len", "auto"}));
  EXPECT_THAT(log_text(), HasSubstr("the model takes 65536 tokens a request, the cache holds"));
  EXPECT_THAT(load::call(server.port(), load::get("/v1/models")).body, Not(HasSubstr("65536")));
}

// A script for vLLM needs no change but the program's name.
TEST_F(ServeLife, FlagsOfOtherServersAreTakenWhereTheyChangeNothing) {
  load::ServerProcess server(
      flags({"--trust-remote-code", "--dtype", "auto", "--disable-log-requests", "--block-size", "128",
             "--mm-encoder-tp-mode", "data", "--mm-processor-cache-type", "shm", "--compilation-config", "{}",
             "--tool-call-parser", "minimax_m3", "--enable-auto-tool-choice", "--max-model-len", "1k",
             "--allowed-origins", R"(["https://a.example","https://b.example"])"}));
  EXPECT_THAT(load::call(server.port(), load::get("/v1/models")).body, HasSubstr("\"max_model_len\":1000"));
  const auto allowed = [&](const std::string& origin) {
    const auto answer = load::call(
        server.port(), "GET /v1/models HTTP/1.1\r\nHost: localhost\r\nOrigin: " + origin + "\r\n\r\n");
    return std::string(answer.field("Access-Control-Allow-Origin"));
  };
  EXPECT_EQ(allowed("https://b.example"), "https://b.example");
  EXPECT_EQ(allowed("https://c.example"), "");
}

TEST_F(ServeLife, WithoutAKeyOtherNamesThanLoopbackAreRefused) {
  load::ServerProcess server(flags({"--allowed-hosts", "box.example"}));
  const auto status = [&](const std::string& host) {
    return load::call(server.port(), "GET /v1/models HTTP/1.1\r\nHost: " + host + "\r\n\r\n").status;
  };
  EXPECT_EQ(status("localhost:8000"), 200);
  EXPECT_EQ(status("127.0.0.1"), 200);
  EXPECT_EQ(status("box.example"), 200);
  EXPECT_EQ(status("evil.example"), 403);
}

TEST_F(ServeLife, AShardThatIsCutShortEndsItWithAWord) {
  load::ServerProcess server(flags({}));
  for (const auto& entry : fs::directory_iterator(model))
    if (entry.path().extension() == ".safetensors") fs::resize_file(entry.path(), 0);
  RawClient client(server.port());
  client.send(chat(3));
  ASSERT_EQ(client.read_response().status, 0);  // no answer any more
  EXPECT_EQ(server.wait(), 2);
  EXPECT_THAT(log_text(), HasSubstr(".safetensors' cannot be read any more"));
}

}  // namespace
}  // namespace sparrow::test
