// SPDX-License-Identifier: Apache-2.0
#include "text/jinja/syntax/lexer.h"

#include <algorithm>
#include <array>

#include "base/strf.h"
#include "base/utf8.h"
#include "text/jinja/value/unicode.h"

namespace sparrow::jinja {

namespace {

bool is_ascii_digit(char c) {
  return c >= '0' && c <= '9';
}
bool starts_name(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' ||
         static_cast<unsigned char>(c) >= 0x80;
}

// Line ends become \n, and one at the very end is dropped: jinja2's keep_trailing_newline is off.
std::string normalized(std::string_view source) {
  std::string out;
  out.reserve(source.size());
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] == '\r') {
      out += '\n';
      if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
    } else {
      out += source[i];
    }
  }
  if (!out.empty() && out.back() == '\n') out.pop_back();
  return out;
}

class Lexer {
 public:
  explicit Lexer(std::string source) : source_(std::move(source)) {}

  Result<std::vector<Token>> run() {
    while (at_ < source_.size()) SPARROW_TRY(text_and_tag());
    add(TokenKind::kEof, "");
    return std::move(tokens_);
  }

 private:
  std::string_view rest() const { return std::string_view(source_).substr(at_); }
  bool next_is(std::string_view text) const { return rest().substr(0, text.size()) == text; }

  void add(TokenKind kind, std::string text) { tokens_.push_back({kind, line_, std::move(text)}); }

  void advance(size_t bytes) {
    const auto from = source_.begin() + static_cast<std::ptrdiff_t>(at_);
    line_ += static_cast<int>(std::count(from, from + static_cast<std::ptrdiff_t>(bytes), '\n'));
    at_ += bytes;
    if (bytes > 0) line_starting_ = source_[at_ - 1] == '\n';
  }

  void skip_space() {
    const std::string_view text = rest();
    advance(text.size() - strip_left(text, nullptr).size());
  }

  // The next {{, {% or {# at or after `from`; npos without one.
  size_t find_tag(size_t from) const {
    for (size_t i = source_.find('{', from); i != std::string::npos; i = source_.find('{', i + 1))
      if (i + 1 < source_.size() && (source_[i + 1] == '{' || source_[i + 1] == '%' || source_[i + 1] == '#'))
        return i;
    return std::string::npos;
  }

  // Adds the text up to `tag`, shortened as the tag's sign and lstrip_blocks ask.
  void add_data(size_t tag, char sign, bool is_variable) {
    std::string_view text = std::string_view(source_).substr(at_, tag - at_);
    const size_t whole = text.size();
    if (sign == '-') {
      text = strip_right(text, nullptr);
    } else if (sign != '+' && !is_variable) {
      const size_t line_start = text.rfind('\n') + 1;  // npos + 1 is 0
      const std::string_view last_line = text.substr(line_start);
      if ((line_start > 0 || line_starting_) && strip_left(last_line, nullptr).empty())
        text = text.substr(0, line_start);
    }
    if (!text.empty()) add(TokenKind::kData, std::string(text));
    advance(whole);
  }

  char sign_at(size_t i) const {
    return i < source_.size() && (source_[i] == '-' || source_[i] == '+') ? source_[i] : ' ';
  }

  Status text_and_tag() {
    const size_t tag = find_tag(at_);
    if (tag == std::string::npos) {
      add(TokenKind::kData, std::string(rest()));
      advance(rest().size());
      return Ok{};
    }
    const char type = source_[tag + 1];
    add_data(tag, sign_at(tag + 2), type == '{');
    const bool signed_tag = sign_at(at_ + 2) != ' ';
    if (type == '#') {
      advance(signed_tag ? 3 : 2);
      return comment();
    }
    if (type == '%') {
      if (const size_t bytes = raw_tag_bytes("raw", /*is_end=*/false)) return raw(bytes);
    }
    add(type == '{' ? TokenKind::kVariableBegin : TokenKind::kBlockBegin, "");
    advance(signed_tag ? 3 : 2);
    return inside(type == '{');
  }

  // After a tag: -%} eats all space, %} one newline, +%} nothing.
  void finish_tag(size_t bytes, char sign, bool trims_newline) {
    advance(bytes);
    if (sign == '-') {
      skip_space();
    } else if (trims_newline && sign != '+' && next_is("\n")) {
      advance(1);
    }
  }

  Status comment() {
    const int start = line_;
    const size_t end = source_.find("#}", at_);
    if (at_ == source_.size()) return Ok{};  // jinja2 lets a template end right here
    if (end == std::string::npos) return syntax_error(start, "Missing end of comment tag");
    const char sign = end > at_ ? sign_at(end - 1) : ' ';
    finish_tag(end + 2 - at_, sign, /*trims_newline=*/true);
    return Ok{};
  }

  // Bytes of a {% raw %} or {% endraw %} tag that starts here; 0 if it is another tag.
  size_t raw_tag_bytes(std::string_view name, bool is_end) const {
    const std::string_view text = rest();
    if (text.substr(0, 2) != "{%") return 0;
    std::string_view left = text.substr(2);
    if (!left.empty() && (left.front() == '-' || left.front() == '+')) left.remove_prefix(1);
    left = strip_left(left, nullptr);
    if (left.substr(0, name.size()) != name) return 0;
    left = strip_left(left.substr(name.size()), nullptr);
    if (!left.empty() && (left.front() == '-' || (is_end && left.front() == '+'))) left.remove_prefix(1);
    if (left.substr(0, 2) != "%}") return 0;
    return text.size() - left.size() + 2;
  }

  Status raw(size_t bytes) {
    const int start = line_;
    finish_tag(bytes, source_[at_ + bytes - 3], /*trims_newline=*/false);
    for (size_t tag = source_.find("{%", at_); tag != std::string::npos; tag = source_.find("{%", tag + 1)) {
      const size_t before = std::exchange(at_, tag);
      const size_t end_bytes = raw_tag_bytes("endraw", /*is_end=*/true);
      at_ = before;
      if (end_bytes == 0) continue;
      add_data(tag, sign_at(tag + 2), /*is_variable=*/false);
      finish_tag(end_bytes, source_[at_ + end_bytes - 3], /*trims_newline=*/true);
      return Ok{};
    }
    if (at_ == source_.size()) return Ok{};
    return syntax_error(start, "Missing end of raw directive");
  }

  // The tokens of one tag, its end included.
  Status inside(bool is_variable) {
    const std::string_view end = is_variable ? "}}" : "%}";
    brackets_.clear();
    while (true) {
      skip_space();
      if (at_ == source_.size()) return Ok{};  // the parser says what is missing
      if (brackets_.empty()) {
        const char sign = sign_at(at_);
        const bool has_sign = sign == '-' || (sign == '+' && !is_variable);
        if (rest().substr(has_sign ? 1 : 0, 2) == end) {
          add(is_variable ? TokenKind::kVariableEnd : TokenKind::kBlockEnd, "");
          finish_tag(has_sign ? 3 : 2, has_sign ? sign : ' ', /*trims_newline=*/!is_variable);
          return Ok{};
        }
      }
      SPARROW_TRY(token());
    }
  }

  Status token() {
    const char c = source_[at_];
    if (is_ascii_digit(c)) return number();
    if (starts_name(c)) {
      size_t end = at_ + 1;
      while (end < source_.size() && (starts_name(source_[end]) || is_ascii_digit(source_[end]))) ++end;
      add(TokenKind::kName, source_.substr(at_, end - at_));
      advance(end - at_);
      return Ok{};
    }
    if (c == '\'' || c == '"') return string(c);
    return oper();
  }

  // Digits of `base` from `i` on, single underscores between them allowed; where they end.
  size_t digits_end(size_t i, int base) const {
    const auto is_digit = [base](char c) {
      if (base == 16 && ((c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F'))) return true;
      return c >= '0' && c < '0' + std::min(base, 10);
    };
    while (i < source_.size()) {
      const bool underscore = source_[i] == '_' && i + 1 < source_.size() && is_digit(source_[i + 1]);
      if (!underscore && !is_digit(source_[i])) break;
      ++i;
    }
    return i;
  }

  void add_number(TokenKind kind, size_t end) {
    std::string text = source_.substr(at_, end - at_);
    std::erase(text, '_');
    add(kind, std::move(text));
    advance(end - at_);
  }

  Status number() {
    static constexpr std::array<std::pair<char, int>, 3> kBases{{{'b', 2}, {'o', 8}, {'x', 16}}};
    if (source_[at_] == '0' && at_ + 2 < source_.size()) {
      for (const auto& [letter, base] : kBases) {
        if ((source_[at_ + 1] | 0x20) != letter) continue;
        const size_t end = digits_end(at_ + 2, base);
        if (end == at_ + 2) break;
        add_number(TokenKind::kInteger, end);
        return Ok{};
      }
    }
    const size_t whole = digits_end(at_, 10);
    size_t end = whole;
    // x.0.1 asks for items of x: what follows a dot is no float.
    const bool after_dot = at_ > 0 && source_[at_ - 1] == '.';
    if (!after_dot) {
      if (end + 1 < source_.size() && source_[end] == '.' && is_ascii_digit(source_[end + 1]))
        end = digits_end(end + 1, 10);
      size_t exponent = end;
      if (exponent < source_.size() && (source_[exponent] | 0x20) == 'e') {
        ++exponent;
        if (exponent < source_.size() && (source_[exponent] == '+' || source_[exponent] == '-')) ++exponent;
        if (exponent < source_.size() && is_ascii_digit(source_[exponent])) end = digits_end(exponent, 10);
      }
    }
    if (end != whole) {
      add_number(TokenKind::kFloat, end);
      return Ok{};
    }
    // A leading zero ends the number, as in jinja2: 007 is two tokens.
    if (source_[at_] == '0') end = std::min(whole, source_.find_first_not_of("0_", at_));
    add_number(TokenKind::kInteger, end);
    return Ok{};
  }

  Status string(char quote) {
    size_t end = at_ + 1;
    while (end < source_.size() && source_[end] != quote) end += source_[end] == '\\' ? 2 : 1;
    if (end >= source_.size())
      return syntax_error(line_, strf("unexpected char {}: the string has no end", quote));
    std::string value = SPARROW_TRY(unescaped(std::string_view(source_).substr(at_ + 1, end - at_ - 1)));
    add(TokenKind::kString, std::move(value));
    advance(end + 1 - at_);
    return Ok{};
  }

  // Up to `max_digits` digits of `base` from `at` on; at least `min_digits` of them.
  Status append_code(std::string_view text, size_t& at, int base, size_t min_digits, size_t max_digits,
                     std::string& out) const {
    char32_t code = 0;
    size_t n = 0;
    for (; n < max_digits && at < text.size(); ++n, ++at) {
      const char c = text[at];
      const int digit = is_ascii_digit(c) ? c - '0' : (c | 0x20) >= 'a' ? (c | 0x20) - 'a' + 10 : 99;
      if (digit >= base) break;
      code = code * static_cast<char32_t>(base) + static_cast<char32_t>(digit);
    }
    if (n < min_digits) return syntax_error(line_, "truncated escape in a string");
    if (code > 0x10ffff || (code >= 0xd800 && code <= 0xdfff))
      return syntax_error(line_, "an escape in a string is not a Unicode character");
    append_utf8(out, code);
    return Ok{};
  }

  Result<std::string> unescaped(std::string_view text) const {
    static constexpr std::string_view kEscapes = "abfnrtv\\'\"";
    static constexpr std::string_view kValues = "\a\b\f\n\r\t\v\\'\"";
    std::string out;
    for (size_t i = 0; i < text.size();) {
      if (text[i] != '\\' || i + 1 == text.size()) {
        out += text[i++];
        continue;
      }
      const char c = text[i + 1];
      i += 2;
      if (const size_t k = kEscapes.find(c); k != std::string_view::npos) {
        out += kValues[k];
      } else if (c == 'x') {
        SPARROW_TRY(append_code(text, i, 16, 2, 2, out));
      } else if (c == 'u') {
        SPARROW_TRY(append_code(text, i, 16, 4, 4, out));
      } else if (c == 'U') {
        SPARROW_TRY(append_code(text, i, 16, 8, 8, out));
      } else if (c >= '0' && c <= '7') {
        --i;
        SPARROW_TRY(append_code(text, i, 8, 1, 3, out));
      } else if (c == 'N') {
        return syntax_error(line_, "\\N escapes are not supported");
      } else if (c != '\n') {
        out += '\\';
        out += c;
      }
    }
    return out;
  }

  Status oper() {
    static constexpr std::array<std::string_view, 6> kLong{"//", "**", "==", "!=", ">=", "<="};
    static constexpr std::string_view kShort = "+-/*%~[](){}><=.:|,;";
    std::string text;
    for (const std::string_view op : kLong)
      if (next_is(op)) text = op;
    if (text.empty() && kShort.find(source_[at_]) != std::string_view::npos) text = source_[at_];
    if (text.empty())
      return syntax_error(line_, strf("unexpected char '{}'", rest().substr(0, char_bytes(rest()))));
    if (text == "(" || text == "[" || text == "{") {
      brackets_ += text == "(" ? ')' : text == "[" ? ']' : '}';
    } else if (text == ")" || text == "]" || text == "}") {
      if (brackets_.empty()) return syntax_error(line_, strf("unexpected '{}'", text));
      if (brackets_.back() != text[0])
        return syntax_error(line_, strf("unexpected '{}', expected '{}'", text, brackets_.back()));
      brackets_.pop_back();
    }
    add(TokenKind::kOperator, text);
    advance(text.size());
    return Ok{};
  }

  const std::string source_;
  size_t at_ = 0;
  int line_ = 1;
  bool line_starting_ = true;
  std::string brackets_;  // that must still close before the tag may end
  std::vector<Token> tokens_;
};

}  // namespace

std::string Token::described() const {
  switch (kind) {
    case TokenKind::kData:
      return "template data";
    case TokenKind::kVariableBegin:
      return "begin of print statement";
    case TokenKind::kVariableEnd:
      return "end of print statement";
    case TokenKind::kBlockBegin:
      return "begin of statement block";
    case TokenKind::kBlockEnd:
      return "end of statement block";
    case TokenKind::kEof:
      return "end of template";
    default:
      return text.substr(0, 60);
  }
}

Result<std::vector<Token>> tokenize(std::string_view source) {
  return Lexer(normalized(source)).run();
}

Error syntax_error(int line, const std::string& message) {
  return {Errc::kInvalidArgument, strf("chat template, line {}: {}", line, message)};
}

}  // namespace sparrow::jinja
