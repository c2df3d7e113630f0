// SPDX-License-Identifier: Apache-2.0
// What rank 0 tells the others: calls of ModelRunner as messages. All that decides a launch is in them, so
// ranks have nothing to agree on by themselves. Each carries a serial number and a hash of all that was sent
// before, so that a rank that missed or misread something stops there. Nothing in a message is trusted.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <span>
#include <vector>

#include "base/result.h"
#include "comm/control_link.h"
#include "engine/cpu/sampler.h"
#include "engine/engine_types.h"
#include "engine/media/feature_store.h"
#include "engine/ranks/table_edits.h"
#include "kv/block_table.h"
#include "model/batch.h"

namespace sparrow {

enum class Call : uint8_t {
  kRun = 1,
  kCopyBlocks,
  kStartDraws,
  kFinishDraws,
  kScore,
  kLogits,
  kStop,
  kEncode
};

// What a message may ask for.
struct CallLimits {
  int vocab_size = 0;
  int num_blocks = 0;  // of all groups together, each has as many
  int num_groups = 1;
  int max_step_tokens = 0, max_step_sequences = 0;
  int64_t feature_tokens = 0;  // that every rank keeps
  int64_t patch_numbers = 0;   // of each patch; a token is a square of so many:
  int merge_side = 1;
};

// Hash of the calls up to one.
class CallChain {
 public:
  uint64_t add(Call call, std::span<const std::byte> body);
  uint64_t serial() const { return serial_; }
  uint64_t hash() const { return hash_; }

 private:
  uint64_t serial_ = 0, hash_ = 0xcbf29ce484222325u;
};

// Rank 0's side. Calls are written in the order in which they are made.
class CallWriter {
 public:
  // How draws are made matters to the first rank of a group. `draws_elsewhere`: there are some beside rank 0.
  explicit CallWriter(bool draws_elsewhere) : draws_elsewhere_(draws_elsewhere) {}

  // `compare`: the reply to this step's finish_draws() tells the hash of what ranks hold alike.
  Bytes run(const Batch& batch, bool compare);
  Bytes copy_blocks(std::span<const BlockCopy> copies);
  Bytes encode(std::span<const EncodeJob> jobs);
  Bytes start_draws(std::span<const DrawRequest> draws);
  Bytes score(std::span<const PromptRow> rows);
  Bytes plain(Call call);  // one without arguments

  const CallChain& chain() const { return chain_; }

 private:
  Bytes seal(Call call, const WireWriter& body);

  const bool draws_elsewhere_;
  CallChain chain_;
  TableEdits tables_;
};

// A call as it was received. What it does not have is left empty.
struct ReceivedCall {
  Call call = Call::kStop;
  Batch batch;
  bool compare = false;
  std::vector<BlockCopy> copies;
  std::vector<EncodeJob> jobs;
  std::deque<std::vector<float>> patches;  // what the jobs point to
  std::vector<DrawRequest> draws;
  std::vector<PromptRow> rows;

  // What the draws point to.
  struct DrawData {
    SamplingParams params;
    TokenCounts counts;
    std::vector<int32_t> more_banned, only;
    std::vector<uint32_t> mask;
  };
  std::deque<DrawData> draw_data;
};

class CallReader {
 public:
  explicit CallReader(const CallLimits& limits) : limits_(limits) {}

  // The next call, until the one after it. Error: it is not what rank 0 sent next, or makes no sense.
  Result<const ReceivedCall*> read(std::span<const std::byte> message);
  // The same without serial number and hash.
  Result<const ReceivedCall*> read_body(Call call, std::span<const std::byte> body);

  const CallChain& chain() const { return chain_; }

 private:
  void read_run(WireReader& in);
  void read_job(WireReader& in);
  void check_tables(const Batch& batch, WireReader& in) const;
  int group_of_block(BlockId block) const { return block / (limits_.num_blocks / limits_.num_groups); }
  void read_draw(WireReader& in, bool with_sampling);

  const CallLimits limits_;
  CallChain chain_;
  TableEdits tables_;
  int num_logits_ = 0, num_drawn_ = 0;  // of the last step
  ReceivedCall call_;
};

// What comes back: for every step from every rank, once its ids were asked for; for score() and logits() from
// the first ranks of other groups.
struct CallReply {
  uint64_t serial = 0, chain = 0;  // of the call it answers
  uint64_t replica = 0;            // hash of what ranks of a group hold alike; 0: not asked for
  RankTimes times;
  std::vector<Draw> draws;
  std::vector<std::optional<TokenLogprobs>> scores;
  std::vector<float> logits;
};

Bytes write_reply(const CallReply& reply);
Result<CallReply> read_reply(std::span<const std::byte> message, int vocab_size);

}  // namespace sparrow
