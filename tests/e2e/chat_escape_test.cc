// SPDX-License-Identifier: Apache-2.0
// `sparrow chat` and a hostile server: nothing that it sends reaches the terminal as a command.
#include <gtest/gtest.h>

#include "support/program.h"
#include "support/server/fake_server.h"
#include "support/temp_dir.h"
#include "support/terminal_program.h"

namespace sparrow::test {
namespace {

// Clipboard, window title, clear screen, a line that overwrites itself, C1's CSI, a right-to-left override;
// as JSON writes them.
constexpr std::string_view kAttack =
    R"(\u001b]52;c;cm0gLXJmIH4=\u0007\u001b]0;title\u0007\u001b[2Jlie\rtruth\u009b31m\u202eabc)";

void attack(const FakeServer::Request&, const FakeServer::Peer& peer) {
  peer.send(stream_head());
  peer.send(stream_delta(R"({"reasoning":")" + std::string(kAttack) + "\"}"));
  peer.send(stream_delta(R"({"content":")" + std::string(kAttack) + "\"}"));
  peer.send(stream_delta(R"({"tool_calls":[{"index":0,"id":"c1","type":"function","function":{"name":")" +
                         std::string(kAttack) + R"(","arguments":"{\"a\":\"\u001b[2J\"}"}}]})"));
  peer.send(stream_event(R"({"error":{"message":")" + std::string(kAttack) + "\"}}"));
}

bool has_control(std::string_view text) {
  for (const char c : text)
    if ((static_cast<unsigned char>(c) < 0x20 && c != '\n' && c != '\t') || c == 0x7f) return true;
  return text.find("\xC2\x9B") != text.npos || text.find("\xE2\x80\xAE") != text.npos;
}

TEST(ChatEscapes, NothingThatTheServerSendsIsACommandInAPipe) {
  const FakeServer server(chat_server("m3\x1b[2J", attack));
  const ProgramResult result = run_sparrow({"chat", "--url", server.url()}, "hello\n");
  EXPECT_FALSE(has_control(result.out)) << result.out;
  EXPECT_FALSE(has_control(result.err)) << result.err;
  EXPECT_NE(result.out.find("\\x1b]52;c;"), std::string::npos) << result.out;
  EXPECT_NE(result.exit_code, 0);
}

TEST(ChatEscapes, NorInATerminal) {
  const FakeServer server(chat_server("m3\x1b[2J\xC2\x9B", attack));
  const TempDir state;
  TerminalProgram chat({"chat", "--url", server.url()}, {{"XDG_STATE_HOME", state.path()}});
  std::string shown = chat.read_until("> ");
  chat.type("hello\r");
  shown += chat.read_until("> ");
  shown += chat.read_until("abc");  // of the error's line
  chat.type("\x04");
  shown += chat.finish().first;
  for (const char* command : {"\x1b]52", "\x1b]0;", "\x1b[2J", "lie\r", "\xC2\x9B", "\xE2\x80\xAE", "\x07"})
    EXPECT_EQ(shown.find(command), std::string::npos) << command;
}

}  // namespace
}  // namespace sparrow::test
