// SPDX-License-Identifier: Apache-2.0
// The tags of tool calls: a namespace marker, then <name>, </name> or <invoke name="...">.
#pragma once

#include <string_view>

namespace sparrow {

inline constexpr std::string_view kToolMarker = "]<]minimax[>[";
inline constexpr std::string_view kToolCallTag = "tool_call";
inline constexpr std::string_view kInvokeTag = "invoke";

struct ToolTag {
  bool closing = false;
  std::string_view name;        // without blanks around it; "invoke" also where attributes follow
  bool has_attributes = false;  // of an invoke
  std::string_view call_name;   // the attribute called name, without blanks around it; may be empty
};

enum class TagMatch {
  kTag,
  kNoTag,     // the marker before it is plain text
  kNeedMore,  // the text ends before that is decided
};

struct TagScan {
  TagMatch match;
  ToolTag tag;
  size_t length = 0;  // bytes of the tag, blanks before it included
};

// Whether a name is read back from its tags.
bool can_be_tag(std::string_view name);

// Reads the tag at the start of `text`, which follows a marker. Blanks are tolerated before and inside it.
TagScan scan_tag(std::string_view text);

}  // namespace sparrow
