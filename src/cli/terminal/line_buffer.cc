// SPDX-License-Identifier: Apache-2.0
#include "cli/terminal/line_buffer.h"

#include <algorithm>

#include "base/utf8.h"
#include "text/unicode.h"

namespace sparrow::cli {
namespace {

constexpr uint32_t kZeroWidthJoiner = 0x200D;

// Belongs to the character before it: an accent, a selector, a joiner.
bool joins(uint32_t c) {
  return c >= 0x300 && display_width(c) == 0;
}

}  // namespace

void LineBuffer::set(std::string text) {
  text_ = std::move(text);
  cursor_ = text_.size();
}

void LineBuffer::insert(std::string_view text) {
  std::string clean;
  for (const char c : replace_invalid_utf8(text)) {
    if (c == '\n' && clean.ends_with('\r')) clean.pop_back();
    clean += c;
  }
  std::replace(clean.begin(), clean.end(), '\r', '\n');
  text_.insert(cursor_, clean);
  cursor_ += clean.size();
}

size_t LineBuffer::next(size_t at) const {
  int length;
  uint32_t c = decode_valid_utf8(text_.data() + at, length);
  at += static_cast<size_t>(length);
  while (at < text_.size()) {
    const bool joined = c == kZeroWidthJoiner;
    c = decode_valid_utf8(text_.data() + at, length);
    if (!joined && !joins(c)) break;
    at += static_cast<size_t>(length);
  }
  return at;
}

size_t LineBuffer::previous(size_t at) const {
  // From the line's start, because joiners bind forward.
  size_t before = at > 0 && text_[at - 1] == '\n' ? at - 1 : start_of_line(at);
  for (size_t i = before; i < at; i = next(i)) before = i;
  return before;
}

size_t LineBuffer::start_of_line(size_t at) const {
  const size_t newline = at == 0 ? std::string::npos : text_.rfind('\n', at - 1);
  return newline == std::string::npos ? 0 : newline + 1;
}

size_t LineBuffer::end_of_line(size_t at) const {
  return std::min(text_.find('\n', at), text_.size());
}

size_t LineBuffer::num_characters(size_t from, size_t to) const {
  size_t count = 0;
  for (; from < to; from = next(from)) ++count;
  return count;
}

size_t LineBuffer::column_to(size_t at, size_t column) const {
  for (const size_t end = end_of_line(at); column > 0 && at < end; --column) at = next(at);
  return at;
}

void LineBuffer::left() {
  if (cursor_ > 0) cursor_ = previous(cursor_);
}

void LineBuffer::right() {
  if (cursor_ < text_.size()) cursor_ = next(cursor_);
}

void LineBuffer::word_left() {
  const auto is_space = [this](size_t i) { return text_[i] == ' ' || text_[i] == '\n' || text_[i] == '\t'; };
  while (cursor_ > 0 && is_space(cursor_ - 1)) --cursor_;
  while (cursor_ > 0 && !is_space(cursor_ - 1)) --cursor_;
}

void LineBuffer::word_right() {
  const auto is_space = [this](size_t i) { return text_[i] == ' ' || text_[i] == '\n' || text_[i] == '\t'; };
  while (cursor_ < text_.size() && is_space(cursor_)) ++cursor_;
  while (cursor_ < text_.size() && !is_space(cursor_)) ++cursor_;
}

void LineBuffer::line_start() {
  cursor_ = start_of_line(cursor_);
}

void LineBuffer::line_end() {
  cursor_ = end_of_line(cursor_);
}

bool LineBuffer::line_up() {
  const size_t start = start_of_line(cursor_);
  if (start == 0) return false;
  cursor_ = column_to(start_of_line(start - 1), num_characters(start, cursor_));
  return true;
}

bool LineBuffer::line_down() {
  const size_t end = end_of_line(cursor_);
  if (end == text_.size()) return false;
  cursor_ = column_to(end + 1, num_characters(start_of_line(cursor_), cursor_));
  return true;
}

void LineBuffer::erase_before() {
  const size_t end = cursor_;
  left();
  text_.erase(cursor_, end - cursor_);
}

void LineBuffer::erase_after() {
  if (cursor_ < text_.size()) text_.erase(cursor_, next(cursor_) - cursor_);
}

void LineBuffer::cut(size_t from, size_t to) {
  if (from == to) return;
  cut_ = text_.substr(from, to - from);
  text_.erase(from, to - from);
  cursor_ = from;
}

void LineBuffer::cut_to_line_start() {
  cut(start_of_line(cursor_), cursor_);
}

void LineBuffer::cut_to_line_end() {
  // At a line's end the newline itself, so that pressing again joins lines.
  const size_t end = end_of_line(cursor_);
  cut(cursor_, end == cursor_ && end < text_.size() ? end + 1 : end);
}

void LineBuffer::cut_word_before() {
  const size_t end = cursor_;
  word_left();
  cut(cursor_, end);
}

}  // namespace sparrow::cli
