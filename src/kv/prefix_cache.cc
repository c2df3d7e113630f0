// SPDX-License-Identifier: Apache-2.0
#include "kv/prefix_cache.h"

#include <openssl/evp.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/check.h"
#include "kv/cache_event.h"

namespace sparrow {
namespace {

// Children of a block that are looked at for one that begins as a prompt ends. They are the latest ones.
constexpr int kMaxPartialCandidates = 16;
// A copy of a block is not worth fewer tokens than this, unless they leave nothing but one to compute.
constexpr int kMinPartialTokens = 16;

std::span<const int32_t> block_ids(const PrefixContent& content, int64_t block) {
  return content.ids.subspan(block * kBlockTokens, kBlockTokens);
}

// What of the media lies in a block, and where: empty for most.
std::string media_key(const PrefixContent& content, int64_t block) {
  const int64_t begin = block * kBlockTokens, end = begin + kBlockTokens;
  std::string key;
  for (const MediaSpan& span : content.media) {
    if (span.end <= begin || span.begin >= end) continue;
    const int64_t place[2] = {span.begin - begin, span.end - begin};
    key.append(reinterpret_cast<const char*>(place), sizeof place);
    key.append(reinterpret_cast<const char*>(span.digest.data()), span.digest.size());
  }
  return key;
}

std::vector<MediaSpan> media_of_key(std::string_view key) {
  std::vector<MediaSpan> media;
  int64_t place[2];
  for (; !key.empty(); key.remove_prefix(sizeof place + sizeof(Digest))) {
    std::memcpy(place, key.data(), sizeof place);
    MediaSpan& span = media.emplace_back(MediaSpan{.begin = place[0], .end = place[1]});
    std::memcpy(span.digest.data(), key.data() + sizeof place, sizeof(Digest));
  }
  return media;
}

}  // namespace

// Fetches the algorithm once: that costs more than hashing a block.
class PrefixCache::Sha256 {
 public:
  explicit Sha256(int digest_bytes)
      : digest_bytes_(digest_bytes),
        algorithm_(EVP_MD_fetch(nullptr, "SHA256", nullptr)),
        context_(EVP_MD_CTX_new()) {
    SPARROW_CHECK(algorithm_ != nullptr && context_ != nullptr);
  }
  ~Sha256() {
    EVP_MD_CTX_free(context_);
    EVP_MD_free(algorithm_);
  }

  Digest root(std::string_view salt) { return hash({}, 'r', salt, {}); }

  Digest block(const Digest& parent, std::span<const int32_t> ids, const std::string& media) {
    return hash({reinterpret_cast<const char*>(parent.data()), parent.size()}, 'b',
                {reinterpret_cast<const char*>(ids.data()), ids.size_bytes()}, media);
  }

 private:
  Digest hash(std::string_view parent, char kind, std::string_view body, std::string_view media) {
    Digest digest{};
    SPARROW_CHECK(EVP_DigestInit_ex2(context_, algorithm_, nullptr) == 1 &&
                  EVP_DigestUpdate(context_, &kind, 1) == 1 &&
                  EVP_DigestUpdate(context_, parent.data(), parent.size()) == 1 &&
                  EVP_DigestUpdate(context_, body.data(), body.size()) == 1 &&
                  EVP_DigestUpdate(context_, media.data(), media.size()) == 1 &&
                  EVP_DigestFinal_ex(context_, digest.data(), nullptr) == 1);
    std::fill(digest.begin() + digest_bytes_, digest.end(), 0);
    return digest;
  }

  const int digest_bytes_;
  EVP_MD* const algorithm_;
  EVP_MD_CTX* const context_;
};

PrefixCache::PrefixCache(BlockPool& pool, int digest_bytes)
    : pool_(pool),
      sha256_(std::make_unique<Sha256>(digest_bytes)),
      first_(pool.first_block()),
      nodes_(pool.num_blocks()),
      ids_(static_cast<size_t>(pool.num_blocks()) * kBlockTokens),
      media_(pool.num_blocks()),
      buckets_(std::bit_ceil(static_cast<size_t>(pool.num_blocks()) + 1), kNone) {
  pool_.on_evict([this](BlockId block) { forget(block); });
}

PrefixCache::~PrefixCache() {
  pool_.keep_nothing();
  pool_.on_evict({});
}

void PrefixCache::extend_digests(const PrefixContent& content, int64_t num_blocks,
                                 std::vector<Digest>& digests) const {
  SPARROW_CHECK_LE(num_blocks * kBlockTokens, static_cast<int64_t>(content.ids.size()));
  if (digests.empty()) digests.reserve(num_blocks);  // one by one from then on: growth as push_back does it
  for (int64_t block = static_cast<int64_t>(digests.size()); block < num_blocks; ++block) {
    const Digest parent = block == 0 ? sha256_->root(content.salt) : digests[block - 1];
    digests.push_back(sha256_->block(parent, block_ids(content, block), media_key(content, block)));
  }
}

void PrefixCache::find(const PrefixContent& content, std::span<const Digest> digests, int64_t max_tokens,
                       PrefixHit& hit) const {
  hit.clear();
  const auto root = root_of_salt_.find(content.salt);
  if (root == root_of_salt_.end()) return;
  Parent parent = root->second;
  const int64_t full = std::min<int64_t>(max_tokens / kBlockTokens, static_cast<int64_t>(digests.size()));
  for (int64_t block = 0; block < full; ++block) {
    const BlockId known =
        find_known(parent, digests[block], block_ids(content, block), media_key(content, block));
    if (known == kNone) break;
    hit.blocks.push_back(known);
    parent = known;
  }
  find_partial(parent, content, digests, max_tokens, hit);
}

void PrefixCache::find_partial(Parent parent, const PrefixContent& content, std::span<const Digest> digests,
                               int64_t max_tokens, PrefixHit& hit) const {
  const int64_t block = static_cast<int64_t>(hit.blocks.size());
  const int64_t wanted = std::min<int64_t>(max_tokens - block * kBlockTokens, kBlockTokens);
  if (wanted <= 0 || !media_key(content, block).empty()) return;
  const std::span<const int32_t> ids = content.ids.subspan(block * kBlockTokens, wanted);
  const auto consider = [&](BlockId candidate) {
    if (!media_of(candidate).empty()) return;
    const auto same = std::mismatch(ids.begin(), ids.end(), ids_of(candidate).begin()).first - ids.begin();
    if (same <= hit.partial_tokens || same < std::min<int64_t>(wanted, kMinPartialTokens)) return;
    hit.partial_block = candidate;
    hit.partial_tokens = static_cast<int>(same);
  };
  // A prompt that ends with a known block: one token of that has to be computed again.
  if (wanted < kBlockTokens && block < static_cast<int64_t>(digests.size())) {
    const BlockId whole = find_known(parent, digests[block], block_ids(content, block), {});
    if (whole != kNone) consider(whole);
  }
  BlockId child = parent < 0 ? roots_[-1 - parent].first_child : node_of(parent).first_child;
  for (int i = 0; i < kMaxPartialCandidates && child != kNone && hit.partial_tokens < wanted; ++i) {
    consider(child);
    child = node_of(child).next_sibling;
  }
}

BlockId PrefixCache::publish(const PrefixContent& content, const Digest& digest, int64_t logical_block,
                             std::span<const BlockId> blocks) {
  const Parent parent = logical_block == 0 ? make_root(content.salt) : blocks[logical_block - 1];
  const BlockId block = blocks[logical_block];
  SPARROW_CHECK(!pool_.is_kept(block) && (parent < 0 || pool_.is_kept(parent)));
  const std::span<const int32_t> ids = block_ids(content, logical_block);
  std::string media = media_key(content, logical_block);
  if (const BlockId known = find_known(parent, digest, ids, media); known != kNone) return known;

  BlockId& first = first_child(parent);
  BlockId& in_bucket = buckets_[bucket_of(digest)];
  node_of(block) = {.digest = digest, .parent = parent, .next_sibling = first, .next_in_bucket = in_bucket};
  if (first != kNone) node_of(first).previous_sibling = block;
  first = in_bucket = block;
  std::copy(ids.begin(), ids.end(), ids_.begin() + int64_t{block - first_} * kBlockTokens);
  media_[block - first_] = std::move(media);
  ++num_known_;
  pool_.keep(block);
  if (events_) append_stored(block, *events_);
  return block;
}

void PrefixCache::forget(BlockId block) {
  Node& node = node_of(block);
  // Whoever owns a block owns those before it and gives them back after it, so it is evicted before them.
  SPARROW_CHECK_EQ(node.first_child, kNone);
  if (events_) {
    if (events_->empty() || events_->back().kind != CacheEvent::Kind::kRemoved)
      events_->push_back({.kind = CacheEvent::Kind::kRemoved});
    events_->back().digests.push_back(node.digest);
  }
  BlockId* at = &buckets_[bucket_of(node.digest)];
  while (*at != block) at = &node_of(*at).next_in_bucket;
  *at = node.next_in_bucket;
  if (node.next_sibling != kNone) node_of(node.next_sibling).previous_sibling = node.previous_sibling;
  (node.previous_sibling != kNone ? node_of(node.previous_sibling).next_sibling : first_child(node.parent)) =
      node.next_sibling;
  --num_known_;
  if (node.parent >= 0 || first_child(node.parent) != kNone) return;
  const int root = -1 - node.parent;
  root_of_salt_.erase(roots_[root].salt);
  free_roots_.push_back(root);
}

// One event holds as much of a sequence as comes in one go.
void PrefixCache::append_stored(BlockId block, std::vector<CacheEvent>& events) const {
  const Node& node = node_of(block);
  const std::optional<Digest> parent =
      node.parent < 0 ? std::nullopt : std::optional(node_of(node.parent).digest);
  const bool goes_on = parent && !events.empty() && events.back().kind == CacheEvent::Kind::kStored &&
                       events.back().digests.back() == *parent;
  if (!goes_on) events.push_back({.kind = CacheEvent::Kind::kStored, .parent = parent});
  CacheEvent& event = events.back();
  event.digests.push_back(node.digest);
  event.ids.insert(event.ids.end(), ids_of(block).begin(), ids_of(block).end());
  event.extras.push_back({.salt = parent ? std::string() : roots_[-1 - node.parent].salt,
                          .media = media_of_key(media_of(block))});
}

void PrefixCache::list(std::vector<CacheEvent>& events) const {
  std::vector<BlockId> next;
  for (const auto& [salt, root] : root_of_salt_) {
    next.push_back(roots_[-1 - root].first_child);
    while (!next.empty()) {
      const BlockId block = next.back();
      next.pop_back();
      if (block == kNone) continue;
      append_stored(block, events);
      next.push_back(node_of(block).next_sibling);
      next.push_back(node_of(block).first_child);
    }
  }
}

BlockId PrefixCache::find_known(Parent parent, const Digest& digest, std::span<const int32_t> ids,
                                const std::string& media) const {
  BlockId block = buckets_[bucket_of(digest)];
  for (; block != kNone; block = node_of(block).next_in_bucket) {
    const Node& node = node_of(block);
    if (node.digest == digest && node.parent == parent && media_of(block) == media &&
        std::memcmp(ids_of(block).data(), ids.data(), ids.size_bytes()) == 0)
      break;
  }
  return block;
}

PrefixCache::Parent PrefixCache::make_root(std::string_view salt) {
  if (const auto known = root_of_salt_.find(salt); known != root_of_salt_.end()) return known->second;
  int root = static_cast<int>(roots_.size());
  if (free_roots_.empty()) {
    roots_.emplace_back();
  } else {
    root = free_roots_.back();
    free_roots_.pop_back();
  }
  roots_[root] = {.salt = std::string(salt)};
  root_of_salt_.emplace(salt, -1 - root);
  return -1 - root;
}

size_t PrefixCache::bucket_of(const Digest& digest) const {
  uint64_t hash;
  std::memcpy(&hash, digest.data(), sizeof hash);
  return hash & (buckets_.size() - 1);
}

}  // namespace sparrow
