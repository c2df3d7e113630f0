// SPDX-License-Identifier: Apache-2.0
#include "text/output/tool_markup.h"

#include <algorithm>
#include <string>

#include "text/output/tool_value.h"

namespace sparrow {
namespace {

// Nobody names a parameter with more; it bounds what is held back after a stray marker.
constexpr size_t kMaxTagBytes = 1024;

std::string_view skip_blanks(std::string_view text) {
  while (!text.empty() && is_blank(text.front())) text.remove_prefix(1);
  return text;
}

std::string_view trim(std::string_view text) {
  text = skip_blanks(text);
  while (!text.empty() && is_blank(text.back())) text.remove_suffix(1);
  return text;
}

// "name='a' id=3": double, single or no quotes, blanks anywhere.
std::string_view name_attribute(std::string_view text) {
  while (true) {
    text = skip_blanks(text);
    if (text.empty()) return {};
    const auto key_end =
        std::find_if(text.begin(), text.end(), [](char c) { return c == '=' || is_blank(c); });
    const std::string_view key(text.begin(), key_end);
    text = skip_blanks(std::string_view(key_end, text.end()));
    if (text.empty() || text.front() != '=') continue;  // an attribute without a value
    text = skip_blanks(text.substr(1));
    std::string_view value;
    if (!text.empty() && (text.front() == '"' || text.front() == '\'')) {
      const size_t end = std::min(text.find(text.front(), 1), text.size());
      value = text.substr(1, end - 1);
      text.remove_prefix(std::min(end + 1, text.size()));
    } else {
      value = text.substr(
          0, static_cast<size_t>(std::find_if(text.begin(), text.end(), [](char c) { return is_blank(c); }) -
                                 text.begin()));
      text.remove_prefix(value.size());
    }
    if (key == "name") return trim(value);
  }
}

bool begins_invoke_with_attributes(std::string_view inside) {
  return inside.size() > kInvokeTag.size() && inside.starts_with(kInvokeTag) &&
         is_blank(inside[kInvokeTag.size()]);
}

// Where the tag whose inside starts at `begin` ends with '>'; npos where it cannot be a tag, text.size()
// where the text ends first. Quotes count in an invoke only: a parameter may well be called it's.
size_t find_tag_end(std::string_view text, size_t begin) {
  const bool quotes_count = begins_invoke_with_attributes(skip_blanks(text.substr(begin)));
  char quote = '\0';
  char last = '\0';  // that is not blank
  for (size_t i = begin; i < text.size(); ++i) {
    const char c = text[i];
    if (i > kMaxTagBytes) return text.npos;
    if (c == kToolMarker.front()) {
      const std::string_view rest = text.substr(i);
      if (rest.starts_with(kToolMarker)) return text.npos;
      if (kToolMarker.starts_with(rest)) return text.size();
    }
    if (quote != '\0') {
      if (c == quote) quote = '\0';
    } else if (c == '>') {
      return i;
    } else if (quotes_count && last == '=' && (c == '"' || c == '\'')) {
      quote = c;
    }
    if (!is_blank(c)) last = c;
  }
  return text.size();
}

}  // namespace

TagScan scan_tag(std::string_view text) {
  const size_t open = std::min(text.size(), static_cast<size_t>(skip_blanks(text).data() - text.data()));
  if (open > kMaxTagBytes) return {TagMatch::kNoTag, {}, 0};
  if (open == text.size()) return {TagMatch::kNeedMore, {}, 0};
  if (text[open] != '<') return {TagMatch::kNoTag, {}, 0};
  const size_t end = find_tag_end(text, open + 1);
  if (end == text.npos) return {TagMatch::kNoTag, {}, 0};
  if (end == text.size()) return {TagMatch::kNeedMore, {}, 0};
  ToolTag tag;
  std::string_view inside = trim(text.substr(open + 1, end - open - 1));
  tag.closing = inside.starts_with('/');
  if (tag.closing) inside = trim(inside.substr(1));
  tag.has_attributes = !tag.closing && begins_invoke_with_attributes(inside);
  tag.name = tag.has_attributes ? kInvokeTag : inside;
  if (tag.has_attributes) tag.call_name = name_attribute(inside.substr(kInvokeTag.size()));
  if (tag.name.empty() || tag.name.find('\n') != tag.name.npos) return {TagMatch::kNoTag, {}, 0};
  return {TagMatch::kTag, tag, end + 1};
}

bool can_be_tag(std::string_view name) {
  const std::string text = "<" + std::string(name) + ">";
  const TagScan scan = scan_tag(text);
  return scan.match == TagMatch::kTag && scan.length == text.size() && !scan.tag.closing &&
         !scan.tag.has_attributes && scan.tag.name == name;
}

}  // namespace sparrow
