// SPDX-License-Identifier: Apache-2.0
// WaitReason, WaitingInfo: why a sequence does not run, and how it stands in the queue. Plain data.
#pragma once

#include <cstdint>

namespace sparrow {

enum class WaitReason : uint8_t {
  kTurn,          // has not been looked at yet
  kSequences,     // max_step_sequences are running
  kBlocks,        // of the cache
  kSharedPrefix,  // its prefix is being computed by another
  kPaused,        // its reader is slow
};
inline constexpr int kNumWaitReasons = 5;

// As metrics and logs have it.
constexpr const char* label_of(WaitReason reason) {
  switch (reason) {
    case WaitReason::kTurn:
      return "turn";
    case WaitReason::kSequences:
      return "sequences";
    case WaitReason::kBlocks:
      return "blocks";
    case WaitReason::kSharedPrefix:
      return "shared_prefix";
    case WaitReason::kPaused:
      return "paused";
  }
  return "?";
}

struct WaitingInfo {
  int64_t queue_position;  // 0: first
  WaitReason reason;
  int64_t blocks_missing;
};

}  // namespace sparrow
