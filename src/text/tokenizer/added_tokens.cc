// SPDX-License-Identifier: Apache-2.0
#include "text/tokenizer/added_tokens.h"

#include <algorithm>

#include "base/utf8.h"
#include "text/m3_tokens.h"
#include "text/unicode.h"

namespace sparrow {
namespace {

// Start of the character that ends at `end` > 0.
size_t previous_character(std::string_view text, size_t end) {
  do --end;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80);
  return end;
}

bool stands_alone(std::string_view text, size_t start, size_t end) {
  if (start > 0 && is_word_character(decode_utf8(text.substr(previous_character(text, start))).code_point))
    return false;
  return end == text.size() || !is_word_character(decode_utf8(text.substr(end)).code_point);
}

size_t strip_left(std::string_view text, size_t start, size_t limit) {
  while (start > limit) {
    const size_t previous = previous_character(text, start);
    if (!is_white_space(decode_utf8(text.substr(previous)).code_point)) break;
    start = previous;
  }
  return std::max(start, limit);
}

size_t strip_right(std::string_view text, size_t end) {
  while (end < text.size()) {
    const Utf8Char next = decode_utf8(text.substr(end));
    if (!is_white_space(next.code_point)) break;
    end += next.length;
  }
  return end;
}

}  // namespace

bool AddedToken::is_control() const {
  return special || is_unflagged_control(content);
}

// Where control tokens may stand. Asked in the order of the text.
class AddedTokenFinder::Permits {
 public:
  explicit Permits(std::optional<std::span<const TextRange>> markup) : markup_(markup) {}

  bool allows(const AddedToken& token, size_t start, size_t end) {
    if (!markup_ || !token.is_control()) return true;
    while (next_ < markup_->size() && (*markup_)[next_].end <= start) ++next_;
    return next_ < markup_->size() && (*markup_)[next_].start <= start && end <= (*markup_)[next_].end;
  }

 private:
  std::optional<std::span<const TextRange>> markup_;
  size_t next_ = 0;  // the first range that does not end before what is asked for
};

AddedTokenFinder::AddedTokenFinder(std::span<const AddedToken* const> tokens) {
  for (const AddedToken* token : tokens) {
    if (token->content.empty()) continue;
    tokens_.push_back(token);
    max_bytes_ = std::max(max_bytes_, token->content.size());
    starts_[static_cast<unsigned char>(token->content.front())] = true;
    for (const char c : token->content) {
      uint8_t& symbol = symbol_[static_cast<unsigned char>(c)];
      // With all 256 bytes in use the last symbol would be 256; UTF-8 leaves 13 bytes out.
      if (symbol == 0) symbol = static_cast<uint8_t>(num_symbols_++);
    }
  }
  children_.assign(num_symbols_, 0);
  token_at_.assign(1, -1);
  for (size_t t = 0; t < tokens_.size(); ++t) {
    size_t node = 0;
    for (const char c : tokens_[t]->content) {
      const size_t edge = node * num_symbols_ + symbol_[static_cast<unsigned char>(c)];
      if (children_[edge] == 0) {
        children_[edge] = static_cast<uint32_t>(token_at_.size());
        token_at_.push_back(-1);
        children_.resize(children_.size() + num_symbols_, 0);
      }
      node = children_[edge];
    }
    token_at_[node] = static_cast<int32_t>(t);
  }
}

bool AddedTokenFinder::next(std::string_view text, size_t from, Permits& permits, Match& match) const {
  for (size_t start = from; start < text.size(); ++start) {
    if (!starts_[static_cast<unsigned char>(text[start])]) continue;
    const AddedToken* longest = nullptr;
    size_t node = 0;
    for (size_t i = start; i < text.size(); ++i) {
      const uint8_t symbol = symbol_[static_cast<unsigned char>(text[i])];
      if (symbol == 0) break;
      node = children_[node * num_symbols_ + symbol];
      if (node == 0) break;
      if (token_at_[node] < 0) continue;
      const AddedToken* token = tokens_[static_cast<size_t>(token_at_[node])];
      if (permits.allows(*token, start, i + 1)) longest = token;
    }
    if (longest == nullptr) continue;
    match = {longest, start, start + longest->content.size()};
    return true;
  }
  return false;
}

std::vector<AddedTokenFinder::Match> AddedTokenFinder::find_all(std::string_view text, size_t from,
                                                                const Recognition& recognition) const {
  std::vector<Match> matches;
  if (empty() || recognition.which == Recognise::kNone) return matches;
  Permits permits(recognition.markup);
  size_t taken = from;  // end of what the matches so far cover
  Match match{};
  for (size_t at = from; next(text, at, permits, match);) {
    at = match.end;  // a token that is passed over is plain text, and so is what overlaps it
    if (recognition.which == Recognise::kNotSpecial && match.token->special) continue;
    if (match.token->single_word && !stands_alone(text, match.start, match.end)) continue;
    if (match.token->lstrip) match.start = strip_left(text, match.start, taken);
    if (match.token->rstrip) match.end = strip_right(text, match.end);
    if (match.start < taken) continue;  // white space that the token before took along
    taken = match.end;
    at = std::max(at, taken);
    matches.push_back(match);
  }
  return matches;
}

}  // namespace sparrow
