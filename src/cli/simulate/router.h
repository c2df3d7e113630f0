// SPDX-License-Identifier: Apache-2.0
// FleetRouter: which instance gets a request, by what a router outside can know.
#pragma once

#include <cstdint>
#include <deque>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/result.h"

namespace sparrow::cli {

enum class Routing : uint8_t {
  kRoundRobin,
  kLeastLoaded,  // fewest requests under way
  kPrefixHash,   // by a hash of how the prompt begins, passing over instances far busier than the rest
  kPrefix,  // where the least is to be computed: of the prompt what was not seen there lately, of others' too
};
Result<Routing> routing_named(const std::string& name);
const char* name_of(Routing routing);

class FleetRouter {
 public:
  // `blocks`: that an instance's cache holds.
  FleetRouter(Routing routing, int instances, int64_t blocks);

  struct Choice {
    int instance = 0;
    int64_t tokens = 0;  // of the prompt, that the instance will have to compute as far as the router knows
  };
  // `under_way`: requests of each instance.
  Choice pick(std::span<const int32_t> prompt, std::span<const int> under_way);
  // The answer to a request has begun: its prompt is computed.
  void began(const Choice& choice) { waiting_tokens_[static_cast<size_t>(choice.instance)] -= choice.tokens; }

 private:
  int least_loaded(std::span<const int> under_way);
  int by_hash(std::span<const int32_t> prompt, std::span<const int> under_way) const;
  Choice by_prefix(std::span<const int32_t> prompt, std::span<const int> under_way);
  void remember(int instance, std::span<const uint64_t> blocks);

  const Routing routing_;
  const int instances_;
  const int64_t blocks_;
  int next_ = 0;
  // Which instances were sent a block, by a hash of it and all before it; an instance's oldest are forgotten.
  std::unordered_map<uint64_t, std::vector<int>> seen_;
  std::vector<std::deque<uint64_t>> seen_by_;
  std::vector<uint64_t> hashes_;
  std::vector<int64_t> matched_;         // [instance] blocks of the prompt at hand
  std::vector<int64_t> waiting_tokens_;  // [instance] of prompts whose answers have not begun
};

}  // namespace sparrow::cli
