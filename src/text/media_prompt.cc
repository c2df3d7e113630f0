// SPDX-License-Identifier: Apache-2.0
#include "text/media_prompt.h"

#include <algorithm>

namespace sparrow {
namespace {

// Both kinds stand between the tokens of an image.
static_assert(std::string_view("]<]image[>[").size() == std::string_view("]<]video[>[").size());
constexpr std::string_view kImage = "]<]image[>[", kVideo = "]<]video[>[";
constexpr std::string_view kStart = "]<]start of image[>[", kEnd = "]<]end of image[>[";

class Builder {
 public:
  void text(std::string_view text) { prompt_.text += text; }
  void markup(std::string_view text) {
    if (text.empty()) return;
    const size_t start = prompt_.text.size();
    prompt_.text += text;
    std::vector<TextRange>& ranges = prompt_.markup;
    if (!ranges.empty() && ranges.back().end == start)
      ranges.back().end = prompt_.text.size();
    else
      ranges.push_back({start, prompt_.text.size()});
  }
  void medium(const MediumText& medium) {
    for (int64_t patch = 0; patch < medium.patches; ++patch) {
      if (!medium.seconds.empty()) text("]<]" + medium.seconds[static_cast<size_t>(patch)] + " seconds[>[");
      std::string run(kStart);
      for (int64_t i = 0; i < medium.tokens; ++i) run += medium.is_video ? kVideo : kImage;
      markup(run += kEnd);
    }
  }
  PromptText take() { return std::move(prompt_); }

 private:
  PromptText prompt_;
};

}  // namespace

Result<PromptText> expand_media(const PromptText& prompt, std::span<const MediumText> media) {
  Builder out;
  const std::string_view all = prompt.text;
  size_t done = 0, next = 0;
  for (const TextRange& range : prompt.markup) {
    out.text(all.substr(done, range.start - done));
    for (size_t at = range.start; at < range.end; at = done) {
      const std::string_view rest = all.substr(at, range.end - at);
      const size_t marker = std::min(rest.find(kImage), rest.find(kVideo));
      done = marker == std::string_view::npos ? range.end : at + marker + kImage.size();
      out.markup(rest.substr(0, marker));
      if (marker == std::string_view::npos) continue;
      const bool is_video = rest.substr(marker).starts_with(kVideo);
      if (next == media.size() || media[next].is_video != is_video)
        return Error{Errc::kInvalidArgument,
                     strf("the chat template has {} where {} should be", is_video ? "a video" : "an image",
                          next == media.size() ? "nothing"
                          : is_video           ? "an image"
                                               : "a video")};
      out.medium(media[next++]);
    }
    done = range.end;
  }
  out.text(all.substr(done));
  if (next < media.size())
    return Error{Errc::kInvalidArgument,
                 strf("the chat template has a place for {} of {} images and videos", next, media.size())};
  return out.take();
}

}  // namespace sparrow
