// SPDX-License-Identifier: Apache-2.0
// PromptText: a prompt, and which parts of it are markup: written by the chat template, or by a caller who
// writes the whole prompt. Only markup becomes control tokens; what a message says stays text, whatever it
// looks like.
#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace sparrow {

struct TextRange {
  size_t start, end;

  bool operator==(const TextRange&) const = default;
};

struct PromptText {
  std::string text;
  std::vector<TextRange> markup;  // ascending; none is empty, none touches the next

  // The caller's own: all of it is markup.
  static PromptText whole(std::string text);

  void truncate(size_t size);
  bool ends_with_markup(std::string_view tail) const;
};

// Where the markup of two texts begins to differ; SIZE_MAX if it does not.
size_t common_markup(std::span<const TextRange> a, std::span<const TextRange> b);

// The part of the markup that lies in `part`, counted from its start.
std::vector<TextRange> markup_within(std::span<const TextRange> markup, TextRange part);

// Each stretch of markup, and each between two of them, changed on its own.
PromptText mapped_stretches(std::string_view text, std::span<const TextRange> markup,
                            const std::function<std::string(std::string_view)>& map);
// With replacements for what is not UTF-8.
PromptText with_valid_utf8(const PromptText& prompt);

}  // namespace sparrow
