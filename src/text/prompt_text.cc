// SPDX-License-Identifier: Apache-2.0
#include "text/prompt_text.h"

#include <algorithm>
#include <cstdint>

#include "base/utf8.h"

namespace sparrow {

PromptText PromptText::whole(std::string text) {
  PromptText prompt{.text = std::move(text), .markup = {}};
  if (!prompt.text.empty()) prompt.markup.push_back({0, prompt.text.size()});
  return prompt;
}

void PromptText::truncate(size_t size) {
  text.resize(size);
  while (!markup.empty() && markup.back().start >= size) markup.pop_back();
  if (!markup.empty()) markup.back().end = std::min(markup.back().end, size);
}

bool PromptText::ends_with_markup(std::string_view tail) const {
  return text.ends_with(tail) && !markup.empty() && markup.back().end == text.size() &&
         markup.back().end - markup.back().start >= tail.size();
}

size_t common_markup(std::span<const TextRange> a, std::span<const TextRange> b) {
  const auto [left, right] = std::mismatch(a.begin(), a.end(), b.begin(), b.end());
  if (left == a.end() && right == b.end()) return SIZE_MAX;
  if (left == a.end()) return right->start;
  if (right == b.end() || left->start != right->start)
    return right == b.end() ? left->start : std::min(left->start, right->start);
  return std::min(left->end, right->end);
}

std::vector<TextRange> markup_within(std::span<const TextRange> markup, TextRange part) {
  std::vector<TextRange> within;
  auto range = std::partition_point(markup.begin(), markup.end(),
                                    [part](const TextRange& r) { return r.end <= part.start; });
  for (; range != markup.end() && range->start < part.end; ++range)
    within.push_back(
        {std::max(range->start, part.start) - part.start, std::min(range->end, part.end) - part.start});
  return within;
}

PromptText mapped_stretches(std::string_view text, std::span<const TextRange> markup,
                            const std::function<std::string(std::string_view)>& map) {
  PromptText out;
  size_t done = 0;
  for (const TextRange& range : markup) {
    out.text += map(text.substr(done, range.start - done));
    const size_t start = out.text.size();
    out.text += map(text.substr(range.start, range.end - range.start));
    if (out.text.size() > start) out.markup.push_back({start, out.text.size()});
    done = range.end;
  }
  out.text += map(text.substr(done));
  return out;
}

PromptText with_valid_utf8(const PromptText& prompt) {
  return mapped_stretches(prompt.text, prompt.markup, replace_invalid_utf8);
}

}  // namespace sparrow
