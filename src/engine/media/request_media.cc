// SPDX-License-Identifier: Apache-2.0
#include "engine/media/request_media.h"

#include <algorithm>

#include "model/vision/segments.h"

namespace sparrow {
namespace {

constexpr int kMaxSide = 1 << 15;  // patches of an axis: products of all three fit

Error invalid(size_t medium, const std::string& message) {
  return {Errc::kInvalidArgument, strf("medium {}: {}", medium, message), "media"};
}

int64_t count_of(std::span<const PositionRun> runs) {
  int64_t count = 0;
  for (const PositionRun& run : runs) count += run.size();
  return count;
}

Status check_shape(const RequestMedium& medium, size_t index, const VisionConfig& vision,
                   int64_t feature_tokens) {
  const PatchGrid& grid = medium.grid;
  const int side = vision.spatial_merge_size;
  for (const int extent : {grid.t, grid.h, grid.w})
    if (extent < 1 || extent > kMaxSide)
      return invalid(index, strf("a grid of {} x {} x {} patches", grid.t, grid.h, grid.w));
  if (grid.h % side != 0 || grid.w % side != 0)
    return invalid(index, strf("{} x {} patches do not come in squares of {}", grid.h, grid.w, side));
  const auto numbers = medium.patches ? static_cast<int64_t>(medium.patches->size()) : 0;
  if (numbers != grid.patches() * patch_numbers(vision))
    return invalid(index,
                   strf("{} numbers for {} patches of {}", numbers, grid.patches(), patch_numbers(vision)));
  const int64_t tokens = tokens_of(vision, grid), places = count_of(medium.runs);
  if (places != tokens) return invalid(index, strf("{} placeholders for {} tokens", places, tokens));
  const int64_t largest = tokens_of(vision, segments_of(vision, grid).front());
  if (largest > feature_tokens)
    return invalid(
        index, strf("{} tokens must be kept at a time, and there is room for {}", largest, feature_tokens));
  return Ok{};
}

}  // namespace

int64_t MediaSegment::num_tokens() const {
  return count_of(runs);
}

Status validate(std::span<const RequestMedium> media, std::span<const std::vector<int32_t>> prompts,
                const RequestMediaLimits& limits) {
  if (!media.empty() && !limits.vision) return invalid(0, "this model takes no images here");
  std::vector<int64_t> ends(prompts.size());  // of the media so far, by prompt
  for (size_t i = 0; i < media.size(); ++i) {
    const RequestMedium& medium = media[i];
    if (medium.prompt < 0 || static_cast<size_t>(medium.prompt) >= prompts.size())
      return invalid(i, strf("it belongs to prompt {}, and there are {}", medium.prompt, prompts.size()));
    const std::vector<int32_t>& ids = prompts[static_cast<size_t>(medium.prompt)];
    int64_t& end = ends[static_cast<size_t>(medium.prompt)];
    for (const PositionRun& run : medium.runs) {
      if (run.begin < end || run.size() < 1 || run.end > static_cast<int64_t>(ids.size()))
        return invalid(i, strf("its placeholders [{}, {}) are out of place in a prompt of {} tokens",
                               run.begin, run.end, ids.size()));
      end = run.end;
      const auto is_placeholder = [&](int32_t id) {
        return id == limits.vision->image_token_id || id == limits.vision->video_token_id;
      };
      if (!std::all_of(ids.begin() + run.begin, ids.begin() + run.end, is_placeholder))
        return invalid(i, strf("not all ids at [{}, {}) are placeholders", run.begin, run.end));
    }
    SPARROW_TRY(check_shape(medium, i, *limits.vision, limits.feature_tokens));
  }
  return Ok{};
}

Status place(std::span<RequestMedium> media, std::span<const int32_t> ids, const VisionConfig& vision) {
  int64_t at = 0;
  const auto total = static_cast<int64_t>(ids.size());
  const auto is_placeholder = [&](int64_t position) {
    const int32_t id = ids[static_cast<size_t>(position)];
    return id == vision.image_token_id || id == vision.video_token_id;
  };
  for (size_t i = 0; i < media.size(); ++i) {
    media[i].runs.clear();
    for (int t = 0; t < media[i].grid.t; ++t) {
      while (at < total && !is_placeholder(at)) ++at;
      const int64_t begin = at, wanted = tokens_of(vision, media[i].grid) / media[i].grid.t;
      while (at < total && at < begin + wanted && is_placeholder(at)) ++at;
      if (at < begin + wanted)
        return invalid(i, strf("{} placeholders at {} for {} tokens", at - begin, begin, wanted));
      media[i].runs.push_back({begin, at});
    }
  }
  for (; at < total; ++at)
    if (is_placeholder(at)) return invalid(media.size(), strf("a placeholder at {} stands for none", at));
  return Ok{};
}

SequenceMedia media_of(std::span<const RequestMedium> media, size_t prompt,
                       const std::optional<VisionConfig>& vision, const std::string& salt,
                       const std::string& owner) {
  SequenceMedia result;
  std::vector<MediaSegment> segments;
  for (const RequestMedium& medium : media) {
    if (static_cast<size_t>(medium.prompt) != prompt) continue;
    // Whatever stands between its runs is between them wherever this medium is: the ids say what it is.
    result.spans.push_back({medium.runs.front().begin, medium.runs.back().end, medium.digest});
    auto run = medium.runs.begin();
    int64_t used = 0, first_patch = 0;  // positions of that run; patches of the segments before
    int index = 0;
    for (const PatchGrid& grid : segments_of(*vision, medium.grid)) {
      MediaSegment segment{.owner = owner,
                           .salt = salt,
                           .digest = medium.digest,
                           .index = index++,
                           .grid = grid,
                           .patches = medium.patches,
                           .row_numbers = patch_numbers(*vision),
                           .first_patch = first_patch};
      for (int64_t left = tokens_of(*vision, grid); left > 0;) {
        const int64_t taken = std::min(left, run->size() - used);
        segment.runs.push_back({run->begin + used, run->begin + used + taken});
        left -= taken, used += taken;
        if (used == run->size()) ++run, used = 0;
      }
      first_patch += grid.patches();
      segments.push_back(std::move(segment));
    }
  }
  if (!segments.empty())
    result.segments = std::make_shared<const std::vector<MediaSegment>>(std::move(segments));
  return result;
}

}  // namespace sparrow
