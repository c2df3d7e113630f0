// SPDX-License-Identifier: Apache-2.0
// TokenConstraint: what an output may go on with, asked before each draw: one thread at a time for an output,
// several for the outputs of a step, also where these share something.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

namespace sparrow {

struct NextIds {
  // What holds for the model's end ids. A stop id of the request is to a constraint an id like any other.
  enum class End : uint8_t {
    kFree,
    kBanned,  // unless `allowed` names them
    kOnly,    // nothing else, and the output ends, whatever the request says of min_tokens and ends
  };

  std::span<const int32_t> allowed = {};  // only these, each once; empty: all. Until advance()
  // The same as bits by id, 32 to a word; empty: all. At most one of the two is there. What holds for the
  // ends is written into it by who asks.
  std::span<uint32_t> mask = {};
  End end = End::kFree;
};

// Fewer forced ids than this are drawn one by one: a step with several tokens of an output does not run
// ahead, nor does the one after it.
inline constexpr size_t kLeastForcedIds = 4;

// The state of one output.
class TokenConstraint {
 public:
  virtual ~TokenConstraint() = default;
  // Another output in the same state.
  virtual std::unique_ptr<TokenConstraint> copy() const = 0;
  virtual NextIds next_ids() = 0;
  // `id` was drawn, one of next_ids().
  virtual void advance(int32_t id) = 0;
  // What comes next whatever the model says, as far as that is known and worth a step less: next_ids() allows
  // the first of them and nothing else. Until advance().
  virtual std::span<const int32_t> forced_ids() { return {}; }
};

}  // namespace sparrow
