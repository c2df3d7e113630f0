// SPDX-License-Identifier: Apache-2.0
// The line editor in a pseudo-terminal.
#include "cli/terminal/line_editor.h"

#include <gtest/gtest.h>
#include <pty.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <thread>

#include "support/temp_dir.h"

namespace sparrow::cli {
namespace {

class Editing : public testing::Test {
 protected:
  void SetUp() override {
    ::setenv("TERM", "xterm", 1);
    const winsize size{.ws_row = 10, .ws_col = 40, .ws_xpixel = 0, .ws_ypixel = 0};
    ASSERT_EQ(::openpty(&ours_, &theirs_, nullptr, nullptr, &size), 0);
    terminal_ = RawTerminal::open(theirs_, theirs_);
    ASSERT_NE(terminal_, nullptr);
    // Somebody looks at the screen: the editor must never wait for room.
    reader_ = std::thread([this] {
      char bytes[4096];
      for (ssize_t n; (n = ::read(ours_, bytes, sizeof bytes)) > 0;)
        shown_.append(bytes, static_cast<size_t>(n));
    });
    editor_ = std::make_unique<LineEditor>(*terminal_, history_);
  }
  void TearDown() override {
    hang_up();
    ::close(ours_);
  }
  // What was shown, all of it: the editor is done.
  const std::string& hang_up() {
    editor_.reset();
    terminal_.reset();
    if (theirs_ >= 0) ::close(std::exchange(theirs_, -1));
    if (reader_.joinable()) reader_.join();
    return shown_;
  }
  // What the editor makes of these keys.
  UserInput typed(std::string_view keys) {
    terminal_->edit();  // before the keys come, so that Ctrl-C is one of them
    EXPECT_EQ(::write(ours_, keys.data(), keys.size()), static_cast<ssize_t>(keys.size()));
    return editor_->read("> ");
  }
  std::string line(std::string_view keys) {
    UserInput input = typed(keys);
    EXPECT_EQ(input.kind, UserInput::Kind::kText);
    history_.add(input.text);
    return input.text;
  }

  int ours_ = -1, theirs_ = -1;
  std::unique_ptr<RawTerminal> terminal_;
  History history_;
  std::unique_ptr<LineEditor> editor_;
  std::thread reader_;
  std::string shown_;
};

TEST_F(Editing, TheUsualKeysWork) {
  EXPECT_EQ(line("hello\r"), "hello");
  EXPECT_EQ(line("wrld\033[D\033[D\033[Do\r"), "world");
  EXPECT_EQ(line("b\x01"
                 "a\x05"
                 "c\r"),
            "abc");
  EXPECT_EQ(line("日本語\x7f\x7f"
                 "x\r"),
            "日x");
  EXPECT_EQ(line("one two\x17three\r"), "one three");
  EXPECT_EQ(line("gone\x15kept\r"), "kept");
  EXPECT_EQ(line("ab\033[H\033[3~\033[F!\r"), "b!");
  EXPECT_EQ(line("a\x0c"
                 "b\r"),
            "ab");
}

TEST_F(Editing, PastedLinesAreOneTurn) {
  EXPECT_EQ(line("\033[200~first\nsecond\rthird\n\033[201~ and more\r"), "first\nsecond\nthird\n and more");
}

TEST_F(Editing, ALineGoesOnAfterABackslashAndAltEnter) {
  EXPECT_EQ(line("one\\\rtwo\033\rthree\r"), "one\ntwo\nthree");
  EXPECT_EQ(line("path\\\\\r"), "path\\\\");
}

TEST_F(Editing, UpAndDownFindWhatStartsTheSame) {
  line("what is a block?\r");
  line("other\r");
  line("what is a page?\r");
  EXPECT_EQ(line("\033[A\r"), "what is a page?");
  EXPECT_EQ(line("what\033[A\033[A\r"), "what is a block?");
  EXPECT_EQ(line("what\033[A\033[A\033[B\033[B!\r"), "what!");
  EXPECT_EQ(line("block\x12\r"), "what is a block?");
}

TEST_F(Editing, CtrlCEmptiesTheLineAndThenInterrupts) {
  EXPECT_EQ(line("wrong\x03right\r"), "right");
  EXPECT_EQ(typed("\x03").kind, UserInput::Kind::kInterrupt);
  EXPECT_EQ(typed("\x04").kind, UserInput::Kind::kEnd);
  EXPECT_EQ(line("ab\x01\x04\r"), "b");  // with text it deletes
}

TEST_F(Editing, WhatIsPastedCannotCommandTheTerminal) {
  EXPECT_EQ(line("\033[200~\033]0;title\x07\033[201~\r"), "\033]0;title\x07");
  const std::string& shown = hang_up();
  EXPECT_EQ(shown.find("\033]0"), std::string::npos);
  EXPECT_NE(shown.find("\\x1b"), std::string::npos);
}

TEST_F(Editing, ATextTallerThanTheScreenIsTaken) {
  std::string text = "start";
  for (int i = 0; i < 60; ++i) text += "\nline " + std::to_string(i);
  EXPECT_EQ(line("\033[200~" + text + "\033[201~\033[A\033[B\r"), text);
}

TEST(History, IsKeptForItsOwnerAlone) {
  const test::TempDir dir;
  const auto file = dir.path() / "state/sparrow/chat_history";
  {
    History history;
    ASSERT_TRUE(history.load(file).ok());
    history.add("one\ntwo \\n three\\");
    history.add("second");
    history.add("second");
    history.add("");
  }
  struct stat info {};
  ASSERT_EQ(::stat(file.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
  History again;
  ASSERT_TRUE(again.load(file).ok());
  ASSERT_EQ(again.size(), 2u);
  EXPECT_EQ(again.entry(0), "second");
  EXPECT_EQ(again.entry(1), "one\ntwo \\n three\\");
}

TEST(History, DoesNotGrowForEver) {
  const test::TempDir dir;
  const auto file = dir.path() / "history";
  {
    std::ofstream out(file);
    for (int i = 0; i < 5000; ++i) out << "line " << i << "\n";
  }
  History history;
  ASSERT_TRUE(history.load(file).ok());
  EXPECT_EQ(history.size(), History::kMaxEntries);
  EXPECT_EQ(history.entry(0), "line 4999");
  EXPECT_LT(std::filesystem::file_size(file), 20'000u);
}

TEST(History, SaysWhyItIsNotKept) {
  const test::TempDir dir;
  History history;
  EXPECT_FALSE(history.load("/dev/null/x").ok());
  EXPECT_FALSE(history.load(dir.path()).ok());
  history.add("in memory");
  EXPECT_EQ(history.size(), 1u);
}

}  // namespace
}  // namespace sparrow::cli
