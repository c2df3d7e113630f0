// SPDX-License-Identifier: Apache-2.0
// Sequence: one output in the making: its tokens, where they are cached, and how it stands in the queue. The
// scheduler owns sequences and changes them; the model runner reads them. Engine thread only.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "engine/media/request_media.h"
#include "engine/schedule/wait_reason.h"
#include "kv/block_table.h"
#include "kv/prefix_cache.h"

namespace sparrow {

using SequenceId = uint64_t;
using SchedulerTime = std::chrono::steady_clock::time_point;

// What is asked of the scheduler.
struct SequenceSpec {
  std::vector<int32_t> prompt;
  int64_t max_total_tokens = 0;  // of prompt and output
  int num_choices = 1;           // outputs that continue this prompt, which is computed once
  int32_t priority = 0;          // smaller runs first
  std::string salt;              // prefixes are shared among sequences of the same salt only
  SequenceMedia media;           // ids inside its spans do not say what is there
  // The probabilities of the prompt's own tokens are wanted: all of them run, none come from the prefix
  // cache.
  bool score_prompt = false;
  SchedulerTime queue_deadline = SchedulerTime::max();  // dropped if it has not started by then
  uint64_t owner = 0;                                   // means something to the caller alone
};

enum class SequenceState : uint8_t {
  kWaiting,   // holds no blocks
  kRunning,   // holds blocks for all its tokens
  kFinished,  // in the step that is running; gone after it
};

struct Sequence {
  static constexpr int64_t kNoEnd = std::numeric_limits<int64_t>::max();

  std::vector<int32_t> ids;  // prompt, then output
  BlockTable blocks;
  int64_t num_computed = 0;  // tokens in the cache, from the first on

  SequenceId id = 0;  // ascending by arrival; the choices of a prompt follow each other
  uint64_t owner = 0;
  int choice = 0;       // of its prompt
  int num_choices = 1;  // to make of it at its first output token; 1 from then on
  int64_t num_prompt_tokens = 0;
  int64_t num_cached_tokens = 0;  // of the prompt, taken from the prefix cache when it first started
  int64_t max_total_tokens = 0;
  SequenceState state = SequenceState::kWaiting;
  bool paused = false;   // its reader is too slow: gets no step, and loses its blocks before anybody else
  bool started = false;  // was running once
  bool score_prompt = false;
  SchedulerTime queue_deadline = SchedulerTime::max();

  std::string salt;
  std::vector<MediaSpan> media;
  std::shared_ptr<const std::vector<MediaSegment>> segments;  // of these; null: none
  int64_t num_ready = kNoEnd;   // while it needs features: the tokens before the first whose are not there
  std::vector<Digest> digests;  // of its full blocks, as far as they are known
  int64_t num_published = 0;    // blocks that the prefix cache knows

  // The scheduler's notes.
  int64_t num_scored = 0;                      // rows of the prompt, from the first on
  int64_t order = 0;                           // arrival, moved by priority: who is smaller goes first
  uint64_t last_step = 0;                      // that it had a part in
  int num_planned = 0;                         // steps with a part of it that are not committed
  int group = 0;                               // data-parallel: whose blocks it has, or had
  SequenceId waits_for = 0;                    // computes the prefix it needs; 0: nobody
  int64_t blocks_awaited = 0;                  // of that prefix
  int64_t blocks_wanted = 0;                   // when it last asked, and
  int64_t blocks_missing = 0;                  // how many of them there were not
  uint64_t ask_again = 0;                      // the step in which it asks again whatever the pool says
  int num_overtaken = 0;                       // by sequences behind it that needed less
  bool has_followers = false;                  // some sequence waits_for it
  WaitReason wait_reason = WaitReason::kTurn;  // when it was last looked at and could not start

  int64_t num_tokens() const { return static_cast<int64_t>(ids.size()); }
  // Whether features are needed to get on, now or later.
  bool needs_features() const { return segments && num_computed < segments->back().end(); }
  // That can run now.
  int64_t num_runnable() const {
    const int64_t end = needs_features() ? std::min(num_tokens(), num_ready) : num_tokens();
    return std::max<int64_t>(0, end - num_computed);
  }
  // The last token that is drawn is never run.
  int64_t max_computed_tokens() const { return std::max(num_prompt_tokens, max_total_tokens - 1); }
};

}  // namespace sparrow
