// SPDX-License-Identifier: Apache-2.0
// KvMirror: what a prefix cache holds, as its events tell. One thread.
#pragma once

#include <cstdint>
#include <cstring>
#include <span>
#include <unordered_map>
#include <vector>

#include "engine/engine.h"

namespace sparrow {

class KvMirror {
 public:
  void apply(std::span<const CacheEvent> events);
  // That all was cleared, and what is there now, each block after the one before it.
  std::vector<CacheEvent> list() const;
  size_t num_blocks() const { return blocks_.size(); }

 private:
  struct Block {
    uint64_t serial;  // a block is stored after the one before it
    std::optional<Digest> parent;
    std::vector<int32_t> ids;
    CacheEvent::Extra extra;
  };
  struct Hash {
    size_t operator()(const Digest& digest) const {
      size_t hash;
      std::memcpy(&hash, digest.data(), sizeof hash);
      return hash;
    }
  };

  void store(const CacheEvent& event);

  std::unordered_map<Digest, Block, Hash> blocks_;
  uint64_t last_serial_ = 0;
};

}  // namespace sparrow
