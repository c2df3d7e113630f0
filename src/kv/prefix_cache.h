// SPDX-License-Identifier: Apache-2.0
// PrefixCache: finds blocks by what they hold. A full block is known by the SHA-256 of its salt, the block
// before it, its token ids and its media; equal digests are confirmed by comparing all of that. The cache
// owns no blocks: it knows some of those in use and all that the pool keeps, and forgets one when the pool
// hands it out anew. Host only, engine thread only.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kv/block_table.h"

namespace sparrow {

struct CacheEvent;

using Digest = std::array<uint8_t, 32>;

// Tokens [begin, end) of a sequence stand for an image or a video with this digest.
struct MediaSpan {
  int64_t begin = 0, end = 0;
  Digest digest{};
};

// What a sequence's blocks hold.
struct PrefixContent {
  std::string_view salt;
  std::span<const int32_t> ids;
  std::span<const MediaSpan> media;
};

struct PrefixHit {
  std::vector<BlockId> blocks;  // full ones, from the first on
  // A block whose first tokens are the next ones: to be copied, since the rest of it is another's.
  BlockId partial_block = -1;
  int partial_tokens = 0;

  void clear() {
    blocks.clear();
    partial_block = -1;
    partial_tokens = 0;
  }
  int64_t num_tokens() const { return static_cast<int64_t>(blocks.size()) * kBlockTokens + partial_tokens; }
};

class PrefixCache {
 public:
  // Digests are cut to `digest_bytes`: tests make them collide.
  explicit PrefixCache(BlockPool& pool, int digest_bytes = 32);
  ~PrefixCache();
  PrefixCache(const PrefixCache&) = delete;
  PrefixCache& operator=(const PrefixCache&) = delete;

  // Appends to `digests` until the first `num_blocks` blocks of the content have one.
  void extend_digests(const PrefixContent& content, int64_t num_blocks, std::vector<Digest>& digests) const;

  // The longest known prefix of at most `max_tokens` tokens. `digests` are those of the content's full
  // blocks.
  void find(const PrefixContent& content, std::span<const Digest> digests, int64_t max_tokens,
            PrefixHit& hit) const;

  // Makes the full block `logical_block` of a sequence known; `blocks` is its table, whose blocks before this
  // one are known. Returns the block to use from now on: an equal one that was known before, or its own.
  BlockId publish(const PrefixContent& content, const Digest& digest, int64_t logical_block,
                  std::span<const BlockId> blocks);

  int num_known() const { return num_known_; }

  // What becomes of blocks is appended to `events` from now on.
  void record(std::vector<CacheEvent>& events) { events_ = &events; }
  // Appends all known blocks as stored, each after the one before it.
  void list(std::vector<CacheEvent>& events) const;

 private:
  // The parent of a sequence's first block is a root, one for each salt that has blocks: -1 - its index.
  using Parent = int32_t;
  struct Node {
    Digest digest{};
    Parent parent = 0;
    BlockId first_child = kNone, previous_sibling = kNone, next_sibling = kNone;
    BlockId next_in_bucket = kNone;
  };
  struct Root {
    std::string salt;
    BlockId first_child = kNone;
  };
  class Sha256;
  static constexpr BlockId kNone = -1;

  void forget(BlockId block);
  void append_stored(BlockId block, std::vector<CacheEvent>& events) const;
  BlockId find_known(Parent parent, const Digest& digest, std::span<const int32_t> ids,
                     const std::string& media) const;
  void find_partial(Parent parent, const PrefixContent& content, std::span<const Digest> digests,
                    int64_t max_tokens, PrefixHit& hit) const;
  Parent make_root(std::string_view salt);
  BlockId& first_child(Parent parent) {
    return parent < 0 ? roots_[-1 - parent].first_child : node_of(parent).first_child;
  }
  size_t bucket_of(const Digest& digest) const;
  std::span<const int32_t> ids_of(BlockId block) const {
    return {ids_.data() + int64_t{block - first_} * kBlockTokens, kBlockTokens};
  }
  Node& node_of(BlockId block) { return nodes_[block - first_]; }
  const Node& node_of(BlockId block) const { return nodes_[block - first_]; }
  const std::string& media_of(BlockId block) const { return media_[block - first_]; }

  BlockPool& pool_;
  const std::unique_ptr<Sha256> sha256_;
  const BlockId first_;             // of the pool
  std::vector<Node> nodes_;         // [block - first_]
  std::vector<int32_t> ids_;        // [block - first_, kBlockTokens]
  std::vector<std::string> media_;  // [block - first_] media_key() of it
  std::vector<BlockId> buckets_;    // first block of each; a power of two of them
  std::vector<Root> roots_;
  std::vector<int> free_roots_;
  std::map<std::string, Parent, std::less<>> root_of_salt_;
  int num_known_ = 0;
  std::vector<CacheEvent>* events_ = nullptr;  // nobody wants to know
};

}  // namespace sparrow
