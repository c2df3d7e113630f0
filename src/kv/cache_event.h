// SPDX-License-Identifier: Apache-2.0
// CacheEvent: what became of the blocks that a prefix cache knows, for those who keep a picture of it
// elsewhere. Plain data.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "kv/prefix_cache.h"

namespace sparrow {

struct CacheEvent {
  enum class Kind : uint8_t {
    kStored,
    kRemoved,
    kCleared,  // all blocks; names none
  };
  // What a block's digest stands for beside its ids and the block before it.
  struct Extra {
    std::string salt;              // of a sequence's first block
    std::vector<MediaSpan> media;  // positions count from the block's first token, and may lie outside of it
    bool empty() const { return salt.empty() && media.empty(); }
  };

  Kind kind = Kind::kStored;
  std::vector<Digest> digests;  // stored: each block comes after the one before it here
  // Of stored blocks:
  std::optional<Digest> parent;  // the block before the first; none: it begins a sequence
  std::vector<int32_t> ids;      // [digests, kBlockTokens]
  std::vector<Extra> extras;     // [digests]
};

// Takes what happened in a data-parallel group's cache since the last call. False: it cannot take more now,
// and what it was given is lost; a later call begins with all that the cache then holds.
using CacheEventSink = std::function<bool(int group, std::vector<CacheEvent> events)>;

}  // namespace sparrow
