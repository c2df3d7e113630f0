// SPDX-License-Identifier: Apache-2.0
#include "server/media/media_parts.h"

#include <algorithm>
#include <array>
#include <utility>

#include "base/strf.h"
#include "text/call_results.h"

namespace sparrow {
namespace {

// A part's type under the names of several APIs, and the member that says where the medium is.
struct PartKind {
  std::string_view type, member;
  bool is_video = false;
};
constexpr std::array kKinds = {
    PartKind{"image_url", "image_url"},
    PartKind{"input_image", "image_url"},
    PartKind{"image", "image"},
    PartKind{"video_url", "video_url", /*is_video=*/true},
    PartKind{"video", "video", /*is_video=*/true},
};
constexpr std::array<std::string_view, 4> kOptions = {"min_pixels", "max_pixels", "max_long_side_pixel",
                                                      "fps"};
// A cache hint changes nothing: every prefix is kept that fits. So do names that clients give their media.
constexpr std::array<std::string_view, 4> kHints = {"cache_control", "uuid", "id", "detail"};
constexpr std::array<std::string_view, 2> kFrameFields = {"frames_indices", "total_num_frames"};

constexpr int64_t kMaxFrames = int64_t{1} << 30;
// Of frames that are listed, of which none is left out. Their seconds stand in the prompt.
constexpr double kMinFrameRate = 1e-6, kMaxFrameRate = 1e6;
// What OpenAI's API promises of a picture in low detail.
constexpr int64_t kLowDetailPixels = 512 * 512;

const PartKind* find_kind(std::string_view type) {
  const auto* const found =
      std::find_if(kKinds.begin(), kKinds.end(), [type](const PartKind& kind) { return kind.type == type; });
  return found == kKinds.end() ? nullptr : found;
}

template <size_t N>
bool contains(const std::array<std::string_view, N>& names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

// An option that was said, and where: the last one counts, so that a part may differ from the rest.
struct SaidOptions {
  MediaOptions values;
  std::vector<std::pair<std::string_view, std::string>> paths;

  Status add(std::string_view name, const Json& value) {
    if (value.is_null()) return Ok{};
    if (name == "fps") {
      values.fps = SPARROW_TRY(value.as_number());
    } else {
      const int64_t number = SPARROW_TRY(value.as_int(1, int64_t{1} << 40));
      (name == "min_pixels"   ? values.min_pixels
       : name == "max_pixels" ? values.max_pixels
                              : values.max_long_side_pixel) = number;
    }
    paths.emplace_back(name, value.path());
    return Ok{};
  }
  // Options do not know where they came from.
  Error named(Error error) const {
    for (auto it = paths.rbegin(); it != paths.rend(); ++it)
      if (it->first == error.field) {
        const size_t at = error.message.find(it->first);
        if (at != std::string::npos) error.message.replace(at, it->first.size(), it->second);
        error.field = it->second;
        return error;
      }
    return error;
  }
};

Status read_detail(const Json& value, SaidOptions& said, const MediaSettings& settings) {
  static constexpr std::array<std::string_view, 4> kDetails = {"auto", "low", "high", "original"};
  if (value.is_null()) return Ok{};
  if (!contains(kDetails, value.string_view())) return value.error("must be auto, low, high or original");
  if (value.string_view() == "low" && !said.values.max_pixels)
    said.values.max_pixels = std::min(kLowDetailPixels, settings.limits.max_image_pixels);
  return Ok{};
}

Status add_url(const Json& url, MediaSource& source) {
  source.urls.push_back(SPARROW_TRY(url.as_string()));
  source.fields.push_back(url.path());
  return Ok{};
}

// {"url": ...}, and options beside it.
Status read_place(const Json& place, MediaSource& source, SaidOptions& said, const MediaSettings& settings) {
  SPARROW_TRY(add_url(SPARROW_TRY(place.at("url")), source));
  for (size_t i = 0; i < place.size(); ++i) {
    const std::string_view key = place.key(i);
    if (contains(kOptions, key)) SPARROW_TRY(said.add(key, place.member(i)));
    if (key == "detail") SPARROW_TRY(read_detail(place.member(i), said, settings));
    if (key != "url" && !contains(kOptions, key) && !contains(kHints, key) && !place.member(i).is_null())
      return place.member(i).error("is not a field of an image or a video");
  }
  return Ok{};
}

// A string, {"url": ...}, or a list of frames.
Status read_member(const Json& member, MediaSource& source, SaidOptions& said,
                   const MediaSettings& settings) {
  if (member.is_object()) return read_place(member, source, said, settings);
  if (!source.is_video || !member.is_array()) return add_url(member, source);
  source.is_frame_list = true;
  const auto most = static_cast<size_t>(settings.limits.max_frames);
  if (member.size() == 0 || member.size() > most)
    return Error{Errc::kInvalidArgument,
                 strf("{} must hold 1 to {} frames, got {}", member.path(), most, member.size()),
                 member.path()};
  for (size_t i = 0; i < member.size(); ++i) SPARROW_TRY(add_url(member.element(i), source));
  return Ok{};
}

// When the frames of a list were: their places in the video, or one after another.
Status read_frame_times(const Json& part, MediaSource& source, SaidOptions& said) {
  const auto rate = part.find("fps"), indices = part.find("frames_indices");
  if (rate) {
    source.frame_rate = SPARROW_TRY(rate->as_number());
    if (!(source.frame_rate >= kMinFrameRate && source.frame_rate <= kMaxFrameRate))
      return rate->error("must be from 0.000001 to 1000000");
  }
  said.values.fps.reset();  // of the frames that are there; none is left out
  const int64_t total = SPARROW_TRY(part.int_or("total_num_frames", kMaxFrames, 1, kMaxFrames));
  if (indices) SPARROW_TRY(indices->expect_array());
  if (!rate) return indices ? Status(indices->error("needs fps beside it")) : Ok{};
  if (indices && indices->size() != source.urls.size())
    return indices->error(strf("must have an index for each of the {} frames", source.urls.size()));
  for (size_t i = 0; i < source.urls.size(); ++i)
    source.frame_indices.push_back(indices ? SPARROW_TRY(indices->element(i).as_int(0, total - 1))
                                           : static_cast<int64_t>(i));
  if (!std::ranges::is_sorted(source.frame_indices)) return indices->error("must ascend");
  return Ok{};
}

Status check_fields(const Json& part, const PartKind& kind, std::string_view member, bool is_frame_list) {
  for (size_t i = 0; i < part.size(); ++i) {
    const std::string_view key = part.key(i);
    const bool is_known = key == "type" || key == member || contains(kOptions, key) ||
                          contains(kHints, key) || (is_frame_list && contains(kFrameFields, key));
    if (!is_known && !part.member(i).is_null())
      return part.member(i).error(strf("is not a field of a part of type {}", kind.type));
  }
  return Ok{};
}

Result<MediaSource> read_part(const Json& part, const PartKind& kind, SaidOptions said,
                              const MediaSettings& settings) {
  // What comes as {"type": "image"} may name it as the other types do.
  const std::string other = strf("{}_url", kind.member);
  const std::string_view name = !part.find(kind.member) && part.find(other) ? other : kind.member;
  MediaSource source{.is_video = kind.is_video};
  SPARROW_TRY(read_member(SPARROW_TRY(part.at(name)), source, said, settings));
  SPARROW_TRY(check_fields(part, kind, name, source.is_frame_list));
  for (const std::string_view option : kOptions)
    if (const auto value = part.find(option)) SPARROW_TRY(said.add(option, *value));
  if (const auto detail = part.find("detail")) SPARROW_TRY(read_detail(*detail, said, settings));
  if (source.is_frame_list) SPARROW_TRY(read_frame_times(part, source, said));
  if (source.is_video) {
    const Result<VideoRule> rule = video_rule(said.values, settings.limits);
    if (!rule.ok()) return said.named(rule.error());
    source.video = rule.value();
  } else {
    const Result<SizeRule> rule = image_rule(said.values, settings.limits);
    if (!rule.ok()) return said.named(rule.error());
    source.image = rule.value();
  }
  return source;
}

Status check_count(const Json& part, int count, int most, const char* what) {
  if (count <= most) return Ok{};
  return Error{Errc::kInvalidArgument,
               strf("{}: at most {} {}{} allowed in a request (--limit-mm-per-prompt)", part.path(), most,
                    what, most == 1 ? " is" : "s are"),
               part.path()};
}

}  // namespace

bool is_media_part(std::string_view type) {
  return find_kind(type) != nullptr;
}

Result<std::vector<MediaSource>> read_media_parts(const Json& messages, const std::optional<Json>& kwargs,
                                                  const MediaSettings* settings, std::string_view refusal) {
  SaidOptions common;
  for (size_t i = 0; kwargs && i < kwargs->size(); ++i) {
    if (!contains(kOptions, kwargs->key(i)) && !kwargs->member(i).is_null())
      return kwargs->member(i).error("must be min_pixels, max_pixels, max_long_side_pixel or fps");
    SPARROW_TRY(common.add(kwargs->key(i), kwargs->member(i)));
  }
  // A list of frames has no use for a rate; one that no video could have is refused all the same.
  if (settings)
    if (const auto rule = video_rule({.fps = common.values.fps}, settings->limits); !rule.ok())
      return common.named(rule.error());
  std::vector<MediaSource> sources;
  int images = 0, videos = 0;
  for (const Json& message : SPARROW_TRY(in_order_of_calls(messages))) {
    const auto content = message.find("content");
    for (size_t p = 0; content && content->is_array() && p < content->size(); ++p) {
      const Json part = content->element(p);
      const auto type = part.find("type");
      const PartKind* const kind = type ? find_kind(type->string_view()) : nullptr;
      if (!kind) continue;
      if (!settings)
        return Error{Errc::kUnsupported,
                     strf("{}: images and videos are not supported: {}", type->path(), refusal),
                     type->path()};
      SPARROW_TRY(kind->is_video ? check_count(part, ++videos, settings->max_videos, "video")
                                 : check_count(part, ++images, settings->max_images, "image"));
      SaidOptions said = common;
      if (!kind->is_video) said.values.fps.reset();  // said of the videos
      sources.push_back(SPARROW_TRY(read_part(part, *kind, std::move(said), *settings)));
    }
  }
  return sources;
}

}  // namespace sparrow
