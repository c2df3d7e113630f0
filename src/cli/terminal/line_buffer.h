// SPDX-License-Identifier: Apache-2.0
// LineBuffer: the text that is being typed and the place of the cursor in it. UTF-8 only; moves by what a
// reader calls a character.
#pragma once

#include <string>
#include <string_view>

namespace sparrow::cli {

class LineBuffer {
 public:
  const std::string& text() const { return text_; }
  size_t cursor() const { return cursor_; }  // in bytes, at the start of a character or at the end
  bool empty() const { return text_.empty(); }

  void set(std::string text);  // the cursor goes to its end
  // What is not UTF-8 is replaced; CR LF and CR become a newline.
  void insert(std::string_view text);

  void left();
  void right();
  void word_left();
  void word_right();
  void line_start();
  void line_end();
  // To the same column of the neighbouring line. False: there is none.
  bool line_up();
  bool line_down();

  void erase_before();
  void erase_after();
  // What was cut can be put back by yank().
  void cut_to_line_start();
  void cut_to_line_end();
  void cut_word_before();
  void yank() { insert(cut_); }

 private:
  size_t next(size_t at) const;
  size_t previous(size_t at) const;
  size_t start_of_line(size_t at) const;
  size_t end_of_line(size_t at) const;
  size_t column_to(size_t line_start, size_t column) const;
  size_t num_characters(size_t from, size_t to) const;
  void cut(size_t from, size_t to);

  std::string text_, cut_;
  size_t cursor_ = 0;
};

}  // namespace sparrow::cli
