// SPDX-License-Identifier: Apache-2.0
// `sparrow chat` as its user sees it: in a terminal, in a pipe, with a real server and with one that
// misbehaves.
#include <gtest/gtest.h>

#include <fstream>

#include "base/json/json.h"
#include "server_process.h"
#include "support/program.h"
#include "support/server/fake_server.h"
#include "support/temp_dir.h"
#include "support/terminal_program.h"

namespace sparrow::test {
namespace {

using Peer = FakeServer::Peer;
using Request = FakeServer::Request;

constexpr std::string_view kPromptShown = "\r\033[J> \r\033[2C";

// Answers "one", "two", ... whatever is asked.
FakeServer::Handler counting() {
  return chat_server("m3", [n = 0](const Request&, const Peer& peer) mutable {
    static const char* const kNumbers[] = {"one", "two", "three", "four"};
    peer.send(stream_head() + stream_delta(std::string(R"({"content":")") + kNumbers[n++ % 4] + "\"}") +
              stream_delta("{}", "stop") + std::string(kStreamEnd));
  });
}

// The text of messages[i] in a request's body.
std::string content(const Request& request, size_t i) {
  const auto document = JsonDocument::parse(request.body, "body");
  if (!document.ok()) return "(no JSON)";
  const Json messages = document->root().at("messages").value();
  return i < messages.size() ? std::string(messages.element(i).at("content").value().string_view())
                             : "(none)";
}

class Chat : public testing::Test {
 protected:
  TempDir state_;
  std::vector<std::pair<std::string, std::string>> environment_{{"XDG_STATE_HOME", state_.path()}};
};

TEST_F(Chat, PastedLinesAreOneTurnAndTheHistoryIsKept) {
  const FakeServer server(counting());
  {
    TerminalProgram chat({"chat", "--url", server.url()}, environment_);
    chat.read_until(kPromptShown);
    chat.type("\033[200~first line\nsecond line\033[201~\r");
    chat.read_until("one");
    chat.read_until(kPromptShown);
    chat.type("/quit\r");
    EXPECT_EQ(chat.finish().second, 0);
  }
  ASSERT_EQ(server.requests().size(), 2u);  // the models, one turn
  EXPECT_EQ(content(server.requests()[1], 0), "first line\nsecond line");

  TerminalProgram again({"chat", "--url", server.url()}, environment_);
  again.read_until(kPromptShown);
  again.type("first\033[A\r");
  again.read_until("two");
  again.read_until(kPromptShown);
  again.type("\x04");
  EXPECT_EQ(again.finish().second, 0);
  EXPECT_EQ(content(server.requests().back(), 0), "first line\nsecond line");
}

TEST_F(Chat, CtrlCStopsAnAnswerAndKeepsWhatCame) {
  const FakeServer server(chat_server("m3", [n = 0](const Request&, const Peer& peer) mutable {
    peer.send(stream_head() + stream_delta(R"({"content":"partial"})"));
    if (n++ == 0) return peer.wait_until_gone();
    peer.send(stream_delta("{}", "stop") + std::string(kStreamEnd));
  }));
  TerminalProgram chat({"chat", "--url", server.url()}, environment_);
  chat.read_until(kPromptShown);
  chat.type("long\r");
  chat.read_until("partial");
  chat.type("\x03");
  chat.read_until("stopped");
  server.wait_for_answers(2);  // the client has closed the stream
  chat.read_until(kPromptShown);
  chat.type("next\r");
  chat.read_until("partial");
  chat.read_until(kPromptShown);
  chat.type("\x03");
  chat.read_until("Ctrl-C again");
  chat.read_until(kPromptShown);
  chat.type("\x03");
  EXPECT_EQ(chat.finish().second, 0);
  const Request last = server.requests().back();
  EXPECT_EQ(content(last, 0), "long");
  EXPECT_EQ(content(last, 1), "partial");
  EXPECT_EQ(content(last, 2), "next");
}

TEST_F(Chat, CallsAreShownAndTheirResultsSentBack) {
  const FakeServer server(chat_server("m3", [n = 0](const Request&, const Peer& peer) mutable {
    const std::string call =
        R"({"tool_calls":[{"index":0,"id":"c1","type":"function","function":{"name":"weather",)"
        R"("arguments":"{\"city\":\"Paris\"}"}}]})";
    peer.send(
        stream_head() + stream_delta(R"({"reasoning_content":"ask the tool"})") +
        (n++ == 0 ? stream_delta(call, "tool_calls") : stream_delta(R"({"content":"It rains."})", "stop")) +
        std::string(kStreamEnd));
  }));
  const std::string tools = R"([{"type":"function","function":{"name":"weather","parameters":{}}}])";
  std::ofstream(state_.path() / "tools.json") << tools;
  TerminalProgram chat({"chat", "--url", server.url()}, environment_);
  chat.read_until(kPromptShown);
  chat.type("/tools " + (state_.path() / "none.json").string() + "\r");
  chat.read_until("cannot open");
  chat.type("/tools " + (state_.path() / "tools.json").string() + "\r");
  chat.read_until("tools: weather");
  chat.read_until(kPromptShown);
  chat.type("Paris?\r");
  chat.read_until("[call weather] {\"city\":\"Paris\"}");
  chat.read_until("weather> ");
  chat.type("rain\r");
  chat.read_until("It rains.");
  chat.read_until(kPromptShown);
  chat.type("/save " + (state_.path() / "saved.json").string() + "\r");
  chat.read_until("4 messages");
  chat.type("\x04");
  EXPECT_EQ(chat.finish().second, 0);
  const std::string body = server.requests().back().body;
  EXPECT_NE(body.find("\"tools\":" + tools), std::string::npos) << body;
  EXPECT_NE(body.find(R"("reasoning_content":"ask the tool","tool_calls":[{"id":"c1","type":"function",)"),
            std::string::npos)
      << body;
  EXPECT_NE(body.find(R"({"role":"tool","content":"rain","tool_call_id":"c1"})"), std::string::npos) << body;
  EXPECT_TRUE(std::filesystem::exists(state_.path() / "saved.json"));
}

TEST_F(Chat, RetryAsksAgainAfterAnErrorAndAfterAnAnswer) {
  const FakeServer server(chat_server("m3", [n = 0](const Request&, const Peer& peer) mutable {
    if (n++ == 0) {
      peer.send(http_answer("429 Too Many Requests", R"({"error":{"message":"the queue is full"}})"));
      return;
    }
    peer.send(stream_head() + stream_delta(R"({"content":"fine"})", "stop") + std::string(kStreamEnd));
  }));
  TerminalProgram chat({"chat", "--url", server.url()}, environment_);
  chat.read_until(kPromptShown);
  chat.type("hello\r");
  chat.read_until("busy (429: the queue is full): /retry asks again");
  for (int i = 0; i < 2; ++i) {
    chat.read_until(kPromptShown);
    chat.type("/retry\r");
    chat.read_until("fine");
  }
  chat.read_until(kPromptShown);
  chat.type("/helpp\r");
  chat.read_until("did you mean /help?");
  chat.type("\x04");
  EXPECT_EQ(chat.finish().second, 0);
  for (size_t i = 1; i < 4; ++i) {
    EXPECT_EQ(content(server.requests()[i], 0), "hello");
    EXPECT_EQ(content(server.requests()[i], 1), "(none)");
  }
}

TEST_F(Chat, ADumbTerminalGetsNoEscapes) {
  const FakeServer server(counting());
  environment_.emplace_back("TERM", "dumb");
  TerminalProgram chat({"chat", "--url", server.url()}, environment_);
  std::string shown = chat.read_until("> ");
  chat.type("hello\n");
  shown += chat.read_until("one");
  chat.type("\x04");
  const auto [rest, code] = chat.finish();
  EXPECT_EQ(code, 0);
  EXPECT_EQ((shown + rest).find('\033'), std::string::npos) << shown << rest;
}

TEST_F(Chat, NoColourWhereNoneIsWanted) {
  for (const bool wanted : {true, false}) {
    const FakeServer server(counting());
    if (!wanted) environment_.emplace_back("NO_COLOR", "1");
    TerminalProgram chat({"chat", "--url", server.url()}, environment_);
    const std::string shown = chat.read_until(kPromptShown);  // lines can be edited all the same
    chat.type("\x04");
    EXPECT_EQ(chat.finish().second, 0);
    EXPECT_EQ(shown.find("\033[2m") != std::string::npos, wanted);
  }
}

TEST_F(Chat, EachLineOfAPipeIsATurn) {
  const FakeServer server(counting());
  const ProgramResult result =
      run_sparrow({"chat", "--url", server.url()}, "first\n\nsecond\\\nline\n/exit\nno\n");
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.out, "one\ntwo\n");
  EXPECT_EQ(result.err, "");
  EXPECT_EQ(content(server.requests().back(), 2), "second\nline");

  EXPECT_EQ(run_sparrow({"chat", "--one-turn", "--url", server.url()}, "/a\nb\\\n").out, "three\n");
  EXPECT_EQ(content(server.requests().back(), 0), "/a\nb\\\n");
}

TEST_F(Chat, ThinkingIsNoPartOfWhatAPipeReads) {
  const FakeServer server(chat_server("m3", [](const Request&, const Peer& peer) {
    peer.send(stream_head() + stream_delta(R"({"reasoning_content":"hm"})") +
              stream_delta(R"({"content":"\u001b[1mbold"})", "stop") + std::string(kStreamEnd));
  }));
  const ProgramResult result = run_sparrow({"chat", "--url", server.url()}, "q\n");
  EXPECT_EQ(result.out, "\\x1b[1mbold\n");
  EXPECT_EQ(result.err, "(thinking) hm\n");
  EXPECT_EQ(run_sparrow({"chat", "--raw", "--url", server.url()}, "q\n").out, "\x1b[1mbold\n");
}

TEST_F(Chat, AFailureInAPipeIsOneLineAndAnExitCode) {
  std::string bytes;
  const FakeServer server(chat_server("m3", [&](const Request&, const Peer& peer) { peer.send(bytes); }));
  const auto refused = [&](std::string answer) {
    bytes = std::move(answer);
    const ProgramResult result = run_sparrow({"chat", "--url", server.url()}, "q\nq\n");
    EXPECT_EQ(result.exit_code, 2);
    EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
    return result.err;
  };
  const auto has = [](const std::string& text, const char* part) {
    return text.find(part) != std::string::npos;
  };
  EXPECT_TRUE(has(refused(http_answer("401 Unauthorized", "{}")), "--api-key"));
  EXPECT_TRUE(
      has(refused(http_answer("404 Not Found", R"({"error":{"message":"no model x"}})")), "no model x"));
  EXPECT_TRUE(has(refused(http_answer("429 Too Many Requests", "")), "busy (429): try again later"));
  EXPECT_TRUE(has(refused(http_answer("502 Bad Gateway", "<h1>\nno</h1>")), "<h1>\\x0ano</h1>"));
  EXPECT_TRUE(has(refused(stream_head() + stream_delta(R"({"content":"a"})")), "was cut"));
  EXPECT_TRUE(has(refused(stream_head() + stream_delta(R"({"content":"a"})") +
                          stream_event(R"({"error":{"message":"no finite logits"}})")),
                  "gave up: no finite logits"));
  EXPECT_TRUE(has(refused("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"), "garbled"));
  EXPECT_TRUE(has(refused(""), "without an answer"));
}

TEST_F(Chat, TalksToSparrowServe) {
  const auto model = state_.path() / "tiny";
  ASSERT_EQ(run_sparrow({"make-model", "--preset", "tiny", "--out", model}).exit_code, 0);
  load::ServerProcess server({.program = SPARROW_BINARY, .model = model, .log = state_.path() / "log"});
  const std::string url = "http://127.0.0.1:" + std::to_string(server.port());
  TerminalProgram chat({"chat", "--url", url, "--max-tokens", "24", "--temperature", "0"}, environment_);
  chat.read_until("m3 at " + url);
  chat.read_until(kPromptShown);
  chat.type(
      "Hello, \xe4\xb8\x96\xe7\x95\x8c! What is a block of a cache, and how many tokens does it hold?\r");
  chat.read_until(" out");
  chat.read_until(kPromptShown);
  chat.type("And then?\r");
  chat.read_until(" cached), ");  // the first turn went back as it was
  chat.read_until(kPromptShown);
  chat.type("\x04");
  EXPECT_EQ(chat.finish().second, 0);
}

}  // namespace
}  // namespace sparrow::test
