// SPDX-License-Identifier: Apache-2.0
#include "cli/terminal/terminal_text.h"

#include <gtest/gtest.h>

namespace sparrow::cli {
namespace {

TEST(TerminalText, ShowsControlsInsteadOfObeyingThem) {
  EXPECT_EQ(terminal_text("a\tb\nc"), "a\tb\nc");
  EXPECT_EQ(terminal_text("\x1b]52;c;eA==\x07"), "\\x1b]52;c;eA==\\x07");
  EXPECT_EQ(terminal_text("\x1b[2J\x7f\b"), "\\x1b[2J\\x7f\\x08");
  EXPECT_EQ(terminal_text(std::string_view("\0", 1)), "\\x00");
  EXPECT_EQ(terminal_text("\u0080\u009b31m\u009f"), "\\u0080\\u009b31m\\u009f");
  EXPECT_EQ(terminal_text("\u202e\u2066\u200b\ufeff\u2028"), "\\u202e\\u2066\\u200b\\ufeff\\u2028");
  EXPECT_EQ(terminal_text("\U000e0041"), "\\U000e0041");
}

TEST(TerminalText, LeavesWritingAlone) {
  for (const char* text : {"Größe", "日本語", "می‌خواهم", "👨‍👩‍👧 ❤️", "a\u0301",
                           "שלום", "\u00a0", "\u2026"})
    EXPECT_EQ(terminal_text(text), text);
}

TEST(TerminalText, AReturnOverwritesNothing) {
  EXPECT_EQ(terminal_text("lie\rtruth"), "lie\\x0dtruth");
  EXPECT_EQ(terminal_text("one\r\ntwo\r"), "one\r\ntwo\\x0d");
  EXPECT_EQ(terminal_text("\r\r\n"), "\\x0d\r\n");
}

TEST(TerminalText, ReplacesWhatIsNotUtf8) {
  // C1 as a raw byte too: some terminals would take it.
  EXPECT_EQ(terminal_text("a\x9b"
                          "b\xff"),
            "a\uFFFD"
            "b\uFFFD");
  EXPECT_EQ(terminal_text("\xe2\x80"), "\uFFFD");
}

TEST(TerminalText, IsTheSameForEveryCut) {
  const std::string text = "a\x1b[2J\r\nb\rc\u202e日\xff\u009b\r";
  const std::string whole = terminal_text(text);
  for (size_t first = 0; first <= text.size(); ++first)
    for (size_t second = first; second <= text.size(); ++second) {
      TerminalText filter(/*highlight=*/false);
      std::string shown = filter.push(text.substr(0, first));
      shown += filter.push(text.substr(first, second - first));
      shown += filter.push(text.substr(second));
      shown += filter.finish();
      ASSERT_EQ(shown, whole) << first << " " << second;
    }
}

TEST(TerminalText, HighlightsOnlyWhatItChanged) {
  TerminalText filter(/*highlight=*/true);
  EXPECT_EQ(filter.push("a\x1b"), "a\033[7m\\x1b\033[27m");
}

TEST(TerminalLine, IsOneLine) {
  EXPECT_EQ(terminal_line("a\nb\tc\r\x1b\u202e\xff"), "a\\x0ab\\x09c\\x0d\\x1b\\u202e\uFFFD");
}

}  // namespace
}  // namespace sparrow::cli
