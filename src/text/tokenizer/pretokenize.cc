// SPDX-License-Identifier: Apache-2.0
// The scanners follow what a backtracking regex engine would do with each pattern, worked out by hand: where
// an alternative can give characters back, the comment says what is left of it.
#include "text/tokenizer/pretokenize.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

namespace sparrow {
namespace {

using C = CharClasses;

constexpr std::string_view kO200kNoSlash =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
    R"(|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
    R"(|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kCl100k =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+)"
    R"(|\s+(?!\S)|\s+)";

bool is_newline(char c) {
  return c == '\n' || c == '\r';
}

// How many of the eight bytes at `p` come before the first that is not a to z. Most words end within eight
// letters, and a loop that leaves at another letter each time is mispredicted each time.
int lower_ascii_letters(const char* p) {
  constexpr uint64_t kEach = 0x0101010101010101u;
  uint64_t bytes;
  std::memcpy(&bytes, p, sizeof bytes);
  const uint64_t low = bytes & 0x7F * kEach;
  const uint64_t at_least_a = low + (0x80 - 'a') * kEach, past_z = low + (0x80 - 'z' - 1) * kEach;
  const uint64_t others = ~(at_least_a & ~past_z & ~bytes) & 0x80 * kEach;
  return others == 0 ? 8 : std::countr_zero(others) / 8;
}

// The end of the longest run of characters with any of the classes `mask`.
const char* run(const C& classes, const char* p, const char* end, uint8_t mask) {
  while (p < end) {
    if (classes.ascii(*p) & mask) {
      ++p;
      continue;
    }
    int length;
    if (static_cast<unsigned char>(*p) < 0x80 || !(classes.at(p, length) & mask)) break;
    p += length;
  }
  return p;
}

// (?i:'s|'t|'re|'ve|'m|'ll|'d) at `p`, or `p` where it does not match.
const char* contraction(const char* p, const char* end) {
  if (end - p < 2 || *p != '\'') return p;
  const auto lower = [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; };
  const char a = lower(p[1]);
  if (a == 's' || a == 't' || a == 'm' || a == 'd') return p + 2;
  if (end - p < 3) return p;
  if (p[1] == '\xC5' && p[2] == '\xBF') return p + 3;  // U+017F, the long s, folds to s
  const char b = lower(p[2]);
  return ((a == 'r' || a == 'v') && b == 'e') || (a == 'l' && b == 'l') ? p + 3 : p;
}

// Both letter alternatives of o200k:  P?U*W+  and then  P?U+W*  , each with an optional contraction after it.
// U* takes all it can; where no character of W follows, it gives back down to the last character that is also
// in W.
const char* o200k_letters(const C& classes, const char* p, const char* end) {
  int length;
  const uint8_t first = classes.at(p, length);
  const char* start = first & (C::kWord | C::kNewline) ? p : p + length;
  const char* upper_end = start;
  const char* last_lower = nullptr;  // end of the last character of the U run that is in W as well
  while (upper_end < end) {
    int step;
    const uint8_t c = classes.at(upper_end, step);
    if (!(c & C::kUpper)) break;
    upper_end += step;
    if (c & C::kLower) last_lower = upper_end;
  }
  const char* lower_end = upper_end;
  if (end - lower_end >= 8) lower_end += lower_ascii_letters(lower_end);
  lower_end = run(classes, lower_end, end, C::kLower);
  if (lower_end > upper_end) return contraction(lower_end, end);
  if (last_lower != nullptr) return contraction(last_lower, end);
  // A mark taken for the prefix is in W: without a prefix it is a word of its own.
  if (start != p && first & C::kLower) return contraction(start, end);
  return upper_end > start ? contraction(upper_end, end) : nullptr;
}

//  [^\r\n\p{L}\p{N}]?\p{L}+
const char* cl100k_letters(const C& classes, const char* p, const char* end) {
  int length;
  const uint8_t first = classes.at(p, length);
  const char* start = first & (C::kWord | C::kNewline) ? p : p + length;
  const char* letters_end = run(classes, start, end, C::kLetter);
  return letters_end > start ? letters_end : nullptr;
}

//  \p{N}{1,limit}  at a number.
const char* numbers(const C& classes, const char* p, const char* end, int limit) {
  for (int n = 0; n < limit && p < end; ++n) {
    int length;
    if (!(classes.at(p, length) & C::kNumber)) break;
    p += length;
  }
  return p;
}

//  [^\s\p{L}\p{N}]+
const char* symbols(const C& classes, const char* p, const char* end) {
  while (p < end) {
    int length;
    if (classes.at(p, length) & (C::kSpace | C::kWord)) break;
    p += length;
  }
  return p;
}

//  \s*[\r\n]+|\s+(?!\S)|\s+  at white space: up to the last line break of the run if it has one; else all of
//  it at
// the end of the text; else all but the last character, which belongs to the word that follows.
const char* white_space(const C& classes, const char* p, const char* end, bool cut_at_newline) {
  const char* after_newline = nullptr;
  const char* last = p;
  const char* q = p;
  while (q < end) {
    int length;
    const uint8_t c = classes.at(q, length);
    if (!(c & C::kSpace)) break;
    last = q;
    q += length;
    if (c & C::kNewline) after_newline = q;
  }
  if (cut_at_newline && after_newline != nullptr) return after_newline;
  return q == end || last == p ? q : last;
}

template <bool kSlash>
const char* scan_o200k(const C& classes, const char* p, const char* end) {
  if (const char* word = o200k_letters(classes, p, end)) return word;
  int length;
  if (classes.at(p, length) & C::kNumber) return numbers(classes, p, end, 3);
  const char* q = symbols(classes, *p == ' ' ? p + 1 : p, end);
  if (q > p + (*p == ' ')) {
    while (q < end && (is_newline(*q) || (kSlash && *q == '/'))) ++q;
    return q;
  }
  return white_space(classes, p, end, true);
}

const char* scan_cl100k(const C& classes, const char* p, const char* end) {
  if (const char* q = contraction(p, end); q > p) return q;
  if (const char* word = cl100k_letters(classes, p, end)) return word;
  int length;
  if (classes.at(p, length) & C::kNumber) return numbers(classes, p, end, 3);
  const char* q = symbols(classes, *p == ' ' ? p + 1 : p, end);
  if (q > p + (*p == ' ')) {
    while (q < end && is_newline(*q)) ++q;
    return q;
  }
  return white_space(classes, p, end, true);
}

//  's|'t|'re|'ve|'m|'ll|'d  in lower case only.
const char* gpt2_contraction(const char* p, const char* end) {
  const char* q = contraction(p, end);
  return std::all_of(p, q, [](char c) { return c == '\'' || (c >= 'a' && c <= 'z'); }) ? q : p;
}

const char* scan_gpt2(const C& classes, const char* p, const char* end) {
  if (const char* q = gpt2_contraction(p, end); q > p) return q;
  const char* start = *p == ' ' ? p + 1 : p;
  for (const uint8_t mask : {C::kLetter, C::kNumber})
    if (const char* q = run(classes, start, end, mask); q > start) return q;
  if (const char* q = symbols(classes, start, end); q > start) return q;
  return white_space(classes, p, end, false);
}

}  // namespace

const std::string_view kM3Pattern =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
    R"(|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
    R"(|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
const std::string_view kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

ScanFn known_scanner(std::string_view pattern) {
  if (pattern == kM3Pattern) return scan_o200k<true>;
  if (pattern == kO200kNoSlash) return scan_o200k<false>;
  if (pattern == kCl100k) return scan_cl100k;
  if (pattern == kGpt2Pattern) return scan_gpt2;
  return nullptr;
}

Result<Pretokenizer> Pretokenizer::make(std::vector<SplitRule> rules, Engine engine) {
  Pretokenizer made;
  for (SplitRule& rule : rules) {
    const bool known = engine == Engine::kFastest && rule.syntax == RegexSplitter::Syntax::kRegex;
    Rule next{known ? known_scanner(rule.pattern) : nullptr, std::nullopt, rule.keep_matches, rule.keep_gaps};
    // A known pattern leaves no gaps: there is something to keep only where matches are kept.
    if (next.scan != nullptr && !rule.keep_matches) next.scan = nullptr;
    if (next.scan == nullptr) next.regex = SPARROW_TRY(RegexSplitter::compile(rule.pattern, rule.syntax));
    made.rules_.push_back(std::move(next));
  }
  return made;
}

Result<std::vector<std::string_view>> Pretokenizer::split(std::string_view text) const {
  std::vector<std::string_view> words;
  if (!text.empty()) words.push_back(text);
  for (const Rule& rule : rules_) {
    std::vector<std::string_view> cut;
    for (const std::string_view word : words) {
      if (rule.scan != nullptr) {
        const char* const end = word.data() + word.size();
        for (const char *p = word.data(), *q; p < end; p = q) {
          q = rule.scan(*classes_, p, end);
          cut.emplace_back(p, static_cast<size_t>(q - p));
        }
        continue;
      }
      const std::vector<RegexSplitter::Piece> pieces = SPARROW_TRY(rule.regex->split(word));
      for (const RegexSplitter::Piece& piece : pieces)
        if (piece.matched ? rule.keep_matches : rule.keep_gaps) cut.push_back(piece.text);
    }
    words = std::move(cut);
  }
  return words;
}

}  // namespace sparrow
