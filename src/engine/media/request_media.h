// SPDX-License-Identifier: Apache-2.0
// The images and clips of a request: where they stand in a prompt, and their patches. The engine knows them
// by a digest of what they were made of; it sees numbers of known shape, never a file. Plain data.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/patch_grid.h"
#include "base/result.h"
#include "config/config.h"
#include "kv/prefix_cache.h"

namespace sparrow {

// Positions [begin, end) of a prompt.
struct PositionRun {
  int64_t begin = 0, end = 0;

  int64_t size() const { return end - begin; }
};

using PatchRows = std::shared_ptr<const std::vector<float>>;

struct RequestMedium {
  int prompt = 0;                 // of the request's
  std::vector<PositionRun> runs;  // of its placeholders, ascending: as many positions as it has tokens
  PatchGrid grid;
  PatchRows patches;  // [patches of the grid, numbers of a patch]
  Digest digest{};    // of the bytes that it was made of, and of the options
};

// What is encoded at a time: an image, or a run of a clip's temporal patches.
struct MediaSegment {
  std::string owner;  // with whom others share the memory for features
  std::string salt;
  Digest digest{};
  int index = 0;  // in its medium
  PatchGrid grid;
  PatchRows patches;        // of the whole medium:
  int64_t row_numbers = 0;  // of one patch
  int64_t first_patch = 0;  // of this segment
  std::vector<PositionRun> runs;

  int64_t begin() const { return runs.front().begin; }
  int64_t end() const { return runs.back().end; }
  int64_t num_tokens() const;
};

// The media of one prompt.
struct SequenceMedia {
  std::vector<MediaSpan> spans;  // what the prefix cache is told, ascending
  // Ascending as well, and kept as long as anything may have to be encoded again. Null: there are none.
  std::shared_ptr<const std::vector<MediaSegment>> segments;
};

// What media are checked against.
struct RequestMediaLimits {
  std::optional<VisionConfig> vision;  // nothing: the model, or this device, takes text alone
  int64_t feature_tokens = 0;          // that are kept at a time
};

// Names the first medium that makes no sense in its prompt.
Status validate(std::span<const RequestMedium> media, std::span<const std::vector<int32_t>> prompts,
                const RequestMediaLimits& limits);

// Finds the runs of a prompt's media, which stand there in this order: an image is one run of placeholders, a
// clip one for each of its temporal patches. Error: there are others.
Status place(std::span<RequestMedium> media, std::span<const int32_t> ids, const VisionConfig& vision);

// The media of a prompt, which are valid: without vision there are none.
SequenceMedia media_of(std::span<const RequestMedium> media, size_t prompt,
                       const std::optional<VisionConfig>& vision, const std::string& salt,
                       const std::string& owner = "");

}  // namespace sparrow
