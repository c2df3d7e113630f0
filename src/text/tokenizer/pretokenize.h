// SPDX-License-Identifier: Apache-2.0
// Pretokenizer: cuts text into the words that BPE works on, by the pattern in tokenizer.json. The
// patterns of known families run in hand-written scanners, linear in the text; any other runs in PCRE2.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "text/unicode.h"

namespace sparrow {

// The end of the word that starts at `p`. [p, end) is valid UTF-8 and not empty.
using ScanFn = const char* (*)(const CharClasses& classes, const char* p, const char* end);

// The scanner of a pattern; nullptr if there is none for it.
ScanFn known_scanner(std::string_view pattern);
// The model's own pattern, the same as that of o200k.
extern const std::string_view kM3Pattern;
// What ByteLevel cuts by when it is asked to use its own pattern.
extern const std::string_view kGpt2Pattern;

// A pattern compiled by PCRE2. May be used by many threads.
class RegexSplitter {
 public:
  enum class Syntax { kRegex, kLiteral };

  static Result<RegexSplitter> compile(std::string_view pattern, Syntax syntax);
  RegexSplitter(RegexSplitter&&) noexcept;
  RegexSplitter& operator=(RegexSplitter&&) noexcept;
  ~RegexSplitter();

  struct Piece {
    std::string_view text;
    bool matched;
  };
  // Matches and the gaps between them, in order. Error: the pattern needs more steps than it may take.
  Result<std::vector<Piece>> split(std::string_view text) const;

 private:
  struct State;
  explicit RegexSplitter(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

// One entry of a pre-tokenizer sequence.
struct SplitRule {
  std::string pattern;
  RegexSplitter::Syntax syntax = RegexSplitter::Syntax::kRegex;
  bool keep_matches = true;
  bool keep_gaps = true;
};

class Pretokenizer {
 public:
  // kRegexOnly: known patterns go through PCRE2 too, so that the two can be compared.
  enum class Engine { kFastest, kRegexOnly };
  static Result<Pretokenizer> make(std::vector<SplitRule> rules, Engine engine = Engine::kFastest);

  // Not null: this scanner alone does all the cutting.
  ScanFn only_scanner() const { return rules_.size() == 1 ? rules_.front().scan : nullptr; }
  const CharClasses& classes() const { return *classes_; }

  // The words of valid UTF-8, in order.
  Result<std::vector<std::string_view>> split(std::string_view text) const;

 private:
  struct Rule {
    ScanFn scan;  // nullptr: regex
    std::optional<RegexSplitter> regex;
    bool keep_matches, keep_gaps;
  };
  Pretokenizer() : classes_(std::make_unique<CharClasses>()) {}

  std::unique_ptr<const CharClasses> classes_;
  std::vector<Rule> rules_;  // none: text is one word
};

}  // namespace sparrow
