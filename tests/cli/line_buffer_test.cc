// SPDX-License-Identifier: Apache-2.0
#include "cli/terminal/line_buffer.h"

#include <gtest/gtest.h>

#include <random>

#include "base/utf8.h"
#include "cli/terminal/keys.h"
#include "cli/terminal/line_editor.h"

namespace sparrow::cli {
namespace {

LineBuffer buffer_of(std::string text) {
  LineBuffer buffer;
  buffer.set(std::move(text));
  return buffer;
}

// The text with a bar where the cursor is.
std::string with_cursor(const LineBuffer& buffer) {
  std::string text = buffer.text();
  return text.insert(buffer.cursor(), "|");
}

TEST(LineBuffer, MovesByWhatAReaderCallsACharacter) {
  LineBuffer buffer = buffer_of("aé日a\u0301👨‍👩‍👧");
  for (const char* expected : {"aé日a\u0301|👨‍👩‍👧", "aé日|a\u0301👨‍👩‍👧",
                               "aé|日a\u0301👨‍👩‍👧", "a|é日a\u0301👨‍👩‍👧",
                               "|aé日a\u0301👨‍👩‍👧", "|aé日a\u0301👨‍👩‍👧"}) {
    buffer.left();
    EXPECT_EQ(with_cursor(buffer), expected);
  }
  buffer.right();
  buffer.right();
  buffer.erase_after();
  buffer.erase_after();
  EXPECT_EQ(with_cursor(buffer), "aé|👨‍👩‍👧");
  buffer.erase_before();
  EXPECT_EQ(with_cursor(buffer), "a|👨‍👩‍👧");
}

TEST(LineBuffer, CutsAndPutsBack) {
  LineBuffer buffer = buffer_of("one two  three");
  buffer.cut_word_before();
  EXPECT_EQ(with_cursor(buffer), "one two  |");
  buffer.cut_word_before();
  EXPECT_EQ(with_cursor(buffer), "one |");
  buffer.yank();
  EXPECT_EQ(with_cursor(buffer), "one two  |");
  buffer.word_left();
  buffer.cut_to_line_end();
  EXPECT_EQ(with_cursor(buffer), "one |");
  buffer.cut_to_line_start();
  buffer.cut_to_line_start();
  EXPECT_EQ(with_cursor(buffer), "|");
  buffer.yank();
  EXPECT_EQ(with_cursor(buffer), "one |");
}

TEST(LineBuffer, LinesHaveStartsAndEndsOfTheirOwn) {
  LineBuffer buffer = buffer_of("first\nse\nthird");
  EXPECT_TRUE(buffer.line_up());
  EXPECT_EQ(with_cursor(buffer), "first\nse|\nthird");
  buffer.line_start();
  EXPECT_EQ(with_cursor(buffer), "first\n|se\nthird");
  EXPECT_TRUE(buffer.line_up());
  EXPECT_EQ(with_cursor(buffer), "|first\nse\nthird");
  EXPECT_FALSE(buffer.line_up());
  buffer.line_end();
  buffer.cut_to_line_end();  // the newline
  EXPECT_EQ(with_cursor(buffer), "first|se\nthird");
  EXPECT_TRUE(buffer.line_down());
  EXPECT_FALSE(buffer.line_down());
  EXPECT_EQ(with_cursor(buffer), "firstse\nthird|");
}

TEST(LineBuffer, TakesPastesOfAnySystem) {
  LineBuffer buffer;
  buffer.insert("a\r\nb\rc\nd\xff");
  EXPECT_EQ(buffer.text(), "a\nb\nc\nd\uFFFD");
}

TEST(Keys, ComeOutTheSameForEveryCut) {
  const std::string typed = "aé\x01\033[A\033[1;5D\033[3~\033\r\033[200~x\ny\033[31m\033[201~\r\x7f\033OH";
  std::string whole;
  for (size_t piece = typed.size(); piece > 0; --piece) {
    KeyDecoder keys;
    std::string seen;
    for (size_t i = 0; i < typed.size(); i += piece) {
      keys.feed(std::string_view(typed).substr(i, piece));
      while (const auto key = keys.next()) {
        seen += std::to_string(static_cast<int>(key->kind)) + ":";
        if (key->kind <= Key::Kind::kControl) seen += key->text;
        seen += " ";
      }
    }
    EXPECT_FALSE(keys.has_pending());
    if (whole.empty()) whole = seen;
    EXPECT_EQ(seen, whole);
  }
  EXPECT_EQ(whole, "0:a 0:é 2:a 9: 13: 6: 4: 1:x\ny\033[31m 3: 5: 11: ");
}

TEST(Keys, AnEscapeAloneIsAKeyOnceItIsQuiet) {
  KeyDecoder keys;
  keys.feed("\033");
  EXPECT_FALSE(keys.next());
  EXPECT_EQ(keys.next(/*quiet=*/true)->kind, Key::Kind::kUnknown);
  keys.feed("a");
  EXPECT_EQ(keys.next()->text, "a");
}

TEST(LineBuffer, SurvivesAnythingThatIsTyped) {
  std::mt19937 random(7);
  const std::vector<std::string> pieces{"a",
                                        " ",
                                        "\n",
                                        "é",
                                        "日",
                                        "👨‍👩‍👧",
                                        "\u0301",
                                        "\t",
                                        "\033[A",
                                        "\033[B",
                                        "\033[D",
                                        "\033[C",
                                        "\x7f",
                                        "\033[3~",
                                        "\x01",
                                        "\x05",
                                        "\x0b",
                                        "\x15",
                                        "\x17",
                                        "\x19",
                                        "\033[1;5D",
                                        "\xff",
                                        "\033\r",
                                        "\033[",
                                        "\033[200~x\ny\033[201~",
                                        "\u200d"};
  for (int round = 0; round < 200; ++round) {
    KeyDecoder keys;
    LineBuffer buffer;
    for (int i = 0; i < 100; ++i) {
      keys.feed(pieces[random() % pieces.size()]);
      while (const auto key = keys.next(random() % 2 == 0)) {
        using Kind = Key::Kind;
        if (key->kind <= Kind::kPaste) buffer.insert(key->text);
        if (key->kind == Kind::kNewline) buffer.insert("\n");
        if (key->kind == Kind::kUp) buffer.line_up();
        if (key->kind == Kind::kDown) buffer.line_down();
        if (key->kind == Kind::kLeft) buffer.left();
        if (key->kind == Kind::kRight) buffer.right();
        if (key->kind == Kind::kBackspace) buffer.erase_before();
        if (key->kind == Kind::kDelete) buffer.erase_after();
        if (key->kind == Kind::kWordLeft) buffer.word_left();
        if (key->kind == Kind::kControl && key->text == "k") buffer.cut_to_line_end();
        if (key->kind == Kind::kControl && key->text == "u") buffer.cut_to_line_start();
        if (key->kind == Kind::kControl && key->text == "w") buffer.cut_word_before();
        if (key->kind == Kind::kControl && key->text == "y") buffer.yank();
      }
      // Whole characters on both sides of the cursor, and a cursor on the screen.
      ASSERT_EQ(valid_utf8_prefix(buffer.text()), buffer.text().size());
      ASSERT_EQ(valid_utf8_prefix(buffer.text().substr(0, buffer.cursor())), buffer.cursor());
      const TextRows rows = lay_out("> ", buffer, 10);
      ASSERT_LT(rows.cursor_row, static_cast<int>(rows.rows.size()));
      ASSERT_LT(rows.cursor_column, 10);
    }
  }
}

TEST(LayOut, WrapsWideCharactersAndShowsControls) {
  LineBuffer buffer = buffer_of("abcd日本\x1b");
  const TextRows rows = lay_out("> ", buffer, 8);
  EXPECT_EQ(rows.rows, (std::vector<std::string>{"> abcd日", "本\033[7m\\x1b\033[27m"}));
  EXPECT_EQ(rows.cursor_row, 1);
  EXPECT_EQ(rows.cursor_column, 6);
}

TEST(LayOut, AFullRowPutsTheCursorOnTheNext) {
  LineBuffer buffer = buffer_of("abcdef\ng");
  TextRows rows = lay_out("> ", buffer, 8);
  EXPECT_EQ(rows.rows, (std::vector<std::string>{"> abcdef", ". g"}));
  buffer.set("abcdef");
  rows = lay_out("> ", buffer, 8);
  EXPECT_EQ(rows.rows, (std::vector<std::string>{"> abcdef", ""}));
  EXPECT_EQ(rows.cursor_row, 1);
  EXPECT_EQ(rows.cursor_column, 0);
}

}  // namespace
}  // namespace sparrow::cli
