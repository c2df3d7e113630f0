// SPDX-License-Identifier: Apache-2.0
#include "cli/simulate/router.h"

#include <algorithm>

#include "base/strf.h"
#include "kv/block_table.h"

namespace sparrow::cli {
namespace {

// Of a prompt, that kPrefixHash looks at: what conversations have in common does not tell them apart, and
// what comes later is not there yet in their first turn.
constexpr size_t kHashedTokens = 1024;
// An instance may have so many times the requests of the average before it is passed over.
constexpr double kMostLoad = 1.25;
// What a request more is worth: as the scheduler counts among the groups of an instance.
constexpr int64_t kTokensPerRequest = 512;

uint64_t mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

uint64_t hash_of(uint64_t seed, std::span<const int32_t> ids) {
  uint64_t hash = seed;
  for (const int32_t id : ids) hash = (hash ^ static_cast<uint32_t>(id)) * 0x9e3779b97f4a7c15u + 1;
  return mix(hash);
}

}  // namespace

Result<Routing> routing_named(const std::string& name) {
  for (const Routing routing :
       {Routing::kRoundRobin, Routing::kLeastLoaded, Routing::kPrefixHash, Routing::kPrefix})
    if (name == name_of(routing)) return routing;
  return Error{Errc::kInvalidArgument,
               strf("--router must be round-robin, least-loaded, prefix-hash or prefix, got {}", name)};
}

const char* name_of(Routing routing) {
  switch (routing) {
    case Routing::kRoundRobin:
      return "round-robin";
    case Routing::kLeastLoaded:
      return "least-loaded";
    case Routing::kPrefixHash:
      return "prefix-hash";
    case Routing::kPrefix:
      return "prefix";
  }
  return "?";
}

FleetRouter::FleetRouter(Routing routing, int instances, int64_t blocks)
    : routing_(routing),
      instances_(instances),
      blocks_(blocks),
      seen_by_(instances),
      matched_(instances),
      waiting_tokens_(instances) {}

FleetRouter::Choice FleetRouter::pick(std::span<const int32_t> prompt, std::span<const int> under_way) {
  if (instances_ == 1) return {};
  switch (routing_) {
    case Routing::kRoundRobin:
      return {next_++ % instances_};
    case Routing::kLeastLoaded:
      return {least_loaded(under_way)};
    case Routing::kPrefixHash:
      return {by_hash(prompt, under_way)};
    case Routing::kPrefix:
      return by_prefix(prompt, under_way);
  }
  return {};
}

// Among equals in turn.
int FleetRouter::least_loaded(std::span<const int> under_way) {
  int best = next_ % instances_;
  for (int i = 1; i < instances_; ++i)
    if (const int other = (next_ + i) % instances_; under_way[other] < under_way[best]) best = other;
  next_ = best + 1;
  return best;
}

// Every instance has a number for the prompt; the highest wins. When one is too busy only its own prompts
// move.
int FleetRouter::by_hash(std::span<const int32_t> prompt, std::span<const int> under_way) const {
  const uint64_t hash = hash_of(1, prompt.first(std::min(prompt.size(), kHashedTokens)));
  int64_t total = 1;
  for (const int load : under_way) total += load;
  const double most = std::max(1.0, kMostLoad * static_cast<double>(total) / instances_);
  int best = -1;
  uint64_t highest = 0;
  for (int i = 0; i < instances_; ++i) {
    const uint64_t number = mix(hash + static_cast<uint64_t>(i) * 0x9e3779b97f4a7c15u);
    if (under_way[i] >= most || (best >= 0 && number <= highest)) continue;
    best = i;
    highest = number;
  }
  return best;  // somebody is not above the average
}

FleetRouter::Choice FleetRouter::by_prefix(std::span<const int32_t> prompt, std::span<const int> under_way) {
  hashes_.clear();
  for (size_t at = 0; at + kBlockTokens <= prompt.size(); at += kBlockTokens)
    hashes_.push_back(hash_of(hashes_.empty() ? 1 : hashes_.back(), prompt.subspan(at, kBlockTokens)));
  std::fill(matched_.begin(), matched_.end(), 0);
  for (size_t block = 0; block < hashes_.size(); ++block) {
    const auto found = seen_.find(hashes_[block]);
    if (found == seen_.end()) break;
    for (const int instance : found->second)
      if (matched_[instance] == static_cast<int64_t>(block)) ++matched_[instance];
  }
  const auto own = [&](int instance) {
    return static_cast<int64_t>(prompt.size()) - matched_[instance] * kBlockTokens;
  };
  const auto work = [&](int instance) {
    return own(instance) + waiting_tokens_[instance] + kTokensPerRequest * under_way[instance];
  };
  int best = next_++ % instances_;
  for (int i = 0; i < instances_; ++i)
    if (work(i) < work(best)) best = i;
  const Choice choice{best, own(best)};
  waiting_tokens_[best] += choice.tokens;
  remember(best, hashes_);
  return choice;
}

void FleetRouter::remember(int instance, std::span<const uint64_t> blocks) {
  std::deque<uint64_t>& own = seen_by_[instance];
  for (const uint64_t hash : blocks) {
    std::vector<int>& instances = seen_[hash];
    if (std::find(instances.begin(), instances.end(), instance) != instances.end()) continue;
    instances.push_back(instance);
    own.push_back(hash);
  }
  for (; static_cast<int64_t>(own.size()) > blocks_; own.pop_front()) {
    const auto found = seen_.find(own.front());
    std::erase(found->second, instance);
    if (found->second.empty()) seen_.erase(found);
  }
}

}  // namespace sparrow::cli
