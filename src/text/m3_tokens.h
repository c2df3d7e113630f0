// SPDX-License-Identifier: Apache-2.0
// The added tokens of MiniMax-M3 in the order of their ids. They end the vocabulary: of V embedding rows the
// last kM3ReservedRows belong to them, and the rows past the last token are never produced.
#pragma once

#include <algorithm>
#include <array>
#include <string_view>

namespace sparrow {

inline constexpr std::array<std::string_view, 61> kM3AddedTokens = {"]!p~[",
                                                                    "<fim_prefix>",
                                                                    "<fim_middle>",
                                                                    "<fim_suffix>",
                                                                    "<fim_pad>",
                                                                    "<reponame>",
                                                                    "<filename>",
                                                                    "<gh_stars>",
                                                                    "<issue_start>",
                                                                    "<issue_comment>",
                                                                    "<issue_closed>",
                                                                    "<jupyter_start>",
                                                                    "<jupyter_text>",
                                                                    "<jupyter_code>",
                                                                    "<jupyter_output>",
                                                                    "<empty_output>",
                                                                    "<commit_before>",
                                                                    "<commit_msg>",
                                                                    "<commit_after>",
                                                                    "]~b]",
                                                                    "[e~[",
                                                                    "]!d~[",
                                                                    "<function_call>",
                                                                    "<code_interpreter>",
                                                                    "]<]speech[>[",
                                                                    "]<]image[>[",
                                                                    "]<]video[>[",
                                                                    "]<]start of speech[>[",
                                                                    "]<]end of speech[>[",
                                                                    "]<]start of image[>[",
                                                                    "]<]end of image[>[",
                                                                    "]<]start of video[>[",
                                                                    "]<]end of video[>[",
                                                                    "]<]vision pad[>[",
                                                                    "]~!b[",
                                                                    "<jupyter_error>",
                                                                    "<add_file>",
                                                                    "<delete_file>",
                                                                    "<rename_file>",
                                                                    "<edit_file>",
                                                                    "<commit_message>",
                                                                    "<empty_source_file>",
                                                                    "<repo_struct>",
                                                                    "<code_context>",
                                                                    "<file_content>",
                                                                    "<source_files>",
                                                                    "<pr_start>",
                                                                    "<review_comment>",
                                                                    "<filepath>",
                                                                    "<file_sep>",
                                                                    "<think>",
                                                                    "</think>",
                                                                    "<tool_call>",
                                                                    "</tool_call>",
                                                                    "]<]frame[>[",
                                                                    "]<]start of frame[>[",
                                                                    "]<]end of frame[>[",
                                                                    "<|content_altered_placeholder|>",
                                                                    "]<]minimax[>[",
                                                                    "<mm:think>",
                                                                    "</mm:think>"};
inline constexpr int kM3ReservedRows = 64;

inline constexpr std::string_view kM3Bos = "]~!b[", kM3Eos = "[e~[", kM3Unk = "]!d~[";

// From here on files may leave the tokens unflagged: they steer the model all the same.
inline constexpr size_t kM3FirstUnflagged = 50;

inline bool is_unflagged_control(std::string_view token) {
  return std::find(kM3AddedTokens.begin() + kM3FirstUnflagged, kM3AddedTokens.end(), token) !=
         kM3AddedTokens.end();
}

// Part of what the model says (reasoning, tool calls), whatever flag a file gives it.
inline bool is_markup_token(std::string_view token) {
  constexpr std::array<std::string_view, 7> kMarkup = {
      "<think>", "</think>", "<tool_call>", "</tool_call>", "]<]minimax[>[", "<mm:think>", "</mm:think>"};
  return std::find(kMarkup.begin(), kMarkup.end(), token) != kMarkup.end();
}

}  // namespace sparrow
