// SPDX-License-Identifier: Apache-2.0
// The only file that knows PCRE2. Patterns come from model files, never from users.
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>

#include "base/json/json.h"
#include "text/tokenizer/pretokenize.h"

namespace sparrow {
namespace {

// Steps of one match. A word of a megabyte takes about as many steps as it has bytes; a pattern that needs
// ten times that is running away.
constexpr uint32_t kMatchLimit = 10'000'000;

template <typename T, void (*free_function)(T*)>
struct Free {
  void operator()(T* p) const { free_function(p); }
};
template <typename T, void (*free_function)(T*)>
using Owned = std::unique_ptr<T, Free<T, free_function>>;

using Code = Owned<pcre2_code, pcre2_code_free>;
using MatchContext = Owned<pcre2_match_context, pcre2_match_context_free>;
using MatchData = Owned<pcre2_match_data, pcre2_match_data_free>;

std::string pcre2_message(int code) {
  unsigned char buffer[256];
  pcre2_get_error_message(code, buffer, sizeof buffer);
  return reinterpret_cast<const char*>(buffer);
}

bool is_script(std::string_view name) {
  const std::string pattern = strf("\\p{{sc:{}}}", name);
  int error = 0;
  PCRE2_SIZE at = 0;
  return Code(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(), PCRE2_UTF, &error,
                            &at, nullptr)) != nullptr;
}

// {Han} or {^Han} at the start of `text`, as it must be written so that only characters of that script match;
// empty: it names no script. PCRE2 takes a script's bare name to include what it shares with others, such as
// the full stop of Chinese; the engines that tokenizers are trained with do not.
std::string script_property(std::string_view text) {
  const size_t close = text.find('}');
  if (!text.starts_with('{') || close == std::string_view::npos) return "";
  std::string_view name = text.substr(1, close - 1);
  const bool negated = name.starts_with('^');
  if (negated) name.remove_prefix(1);
  return is_script(name) ? strf("{{{}sc:{}}}", negated ? "^" : "", name) : "";
}

// The pattern in PCRE2's terms. PCRE2 counts U+180E as white space, Unicode and the engines that tokenizers
// are trained with do not: so \s is spelled out. Scripts: see above.
std::string in_terms_of_pcre2(std::string_view pattern) {
  constexpr std::string_view kSpaces =
      R"(\x09-\x0d\x20\x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000})";
  constexpr std::string_view kOthers =
      R"(\x{0}-\x{8}\x{e}-\x{1f}\x{21}-\x{84}\x{86}-\x{9f}\x{a1}-\x{167f}\x{1681}-\x{1fff}\x{200b}-\x{2027})"
      R"(\x{202a}-\x{202e}\x{2030}-\x{205e}\x{2060}-\x{2fff}\x{3001}-\x{10ffff})";
  std::string out;
  bool in_class = false;
  for (size_t i = 0; i < pattern.size(); ++i) {
    const char c = pattern[i];
    if (c == '\\' && i + 1 < pattern.size()) {
      const char next = pattern[++i];
      if (next == 's' || next == 'S')
        out.append(in_class ? "" : "[").append(next == 's' ? kSpaces : kOthers).append(in_class ? "" : "]");
      else
        out.append({c, next});
      if (next == 'p' || next == 'P')
        if (const std::string script = script_property(pattern.substr(i + 1)); !script.empty()) {
          out += script;
          i = pattern.find('}', i);
        }
      continue;
    }
    if (c == '[') in_class = true;
    if (c == ']') in_class = false;
    out += c;
  }
  return out;
}

}  // namespace

struct RegexSplitter::State {
  Code code;
  MatchContext context;
  std::string pattern;
};

RegexSplitter::RegexSplitter(std::unique_ptr<State> state) : state_(std::move(state)) {}
RegexSplitter::RegexSplitter(RegexSplitter&&) noexcept = default;
RegexSplitter& RegexSplitter::operator=(RegexSplitter&&) noexcept = default;
RegexSplitter::~RegexSplitter() = default;

Result<RegexSplitter> RegexSplitter::compile(std::string_view pattern, Syntax syntax) {
  const bool literal = syntax == Syntax::kLiteral;
  const std::string source = literal ? std::string(pattern) : in_terms_of_pcre2(pattern);
  const uint32_t options =
      literal ? PCRE2_UTF | PCRE2_LITERAL : PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C;
  int error = 0;
  PCRE2_SIZE at = 0;
  Code code(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(source.data()), source.size(), options, &error, &at,
                          nullptr));
  if (!code)
    return Error{Errc::kUnsupported, strf("the pre-tokenizer pattern {} cannot be used: {} at byte {}",
                                          json_quoted(pattern), pcre2_message(error), at)};
  // Where the system forbids code made at run time, the interpreter gives the same cuts more slowly.
  pcre2_jit_compile(code.get(), PCRE2_JIT_COMPLETE);
  MatchContext context(pcre2_match_context_create(nullptr));
  SPARROW_CHECK(context != nullptr);
  pcre2_set_match_limit(context.get(), kMatchLimit);
  return RegexSplitter(
      std::make_unique<State>(State{std::move(code), std::move(context), std::string(pattern)}));
}

Result<std::vector<RegexSplitter::Piece>> RegexSplitter::split(std::string_view text) const {
  std::vector<Piece> pieces;
  const MatchData data(pcre2_match_data_create_from_pattern(state_->code.get(), nullptr));
  SPARROW_CHECK(data != nullptr);
  size_t from = 0;  // where to look
  size_t gap = 0;   // end of the last piece
  while (from < text.size()) {
    const int found = pcre2_match(state_->code.get(), reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(),
                                  from, PCRE2_NO_UTF_CHECK, data.get(), state_->context.get());
    if (found == PCRE2_ERROR_NOMATCH) break;
    if (found < 0)
      return Error{Errc::kUnsupported, strf("the pre-tokenizer pattern {} gave up on a text of {} bytes: {}",
                                            json_quoted(state_->pattern), text.size(), pcre2_message(found))};
    const PCRE2_SIZE* bounds = pcre2_get_ovector_pointer(data.get());
    // \K inside a lookahead can put the start behind the end.
    const size_t start = std::max<size_t>(bounds[0], gap), end = std::max<size_t>(bounds[1], start);
    if (end == start) {
      if (end >= text.size()) break;
      from = end + decode_utf8(text.substr(end)).length;
      continue;
    }
    if (start > gap) pieces.push_back({text.substr(gap, start - gap), false});
    pieces.push_back({text.substr(start, end - start), true});
    from = gap = end;
  }
  if (gap < text.size()) pieces.push_back({text.substr(gap), false});
  return pieces;
}

}  // namespace sparrow
