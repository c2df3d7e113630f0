// SPDX-License-Identifier: Apache-2.0
// What quantising a checkpoint does to each tensor, planned file by file, and the threads that do it.
#pragma once

#include <atomic>
#include <cstddef>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/progress.h"
#include "base/result.h"
#include "base/threads/thread_pool.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/mx/mx_groups.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/tensor_row.h"

namespace sparrow {

// A tensor on its way from one checkpoint to another: copied, or its numbers in another format.
struct TensorMove {
  std::string name;
  std::optional<LedgerPart> part;  // none: it is not of the model
  MatrixFormat from = MatrixFormat::kBF16, to = MatrixFormat::kBF16;
  bool copied = false;
  std::span<const std::byte> source, scales;  // scales: of a source whose numbers are codes
  size_t target = 0;                          // which of the specs; scales that are made are the next one
  int64_t columns = 0;
  uint64_t bytes_after = 0;
  RoundingError error;  // once it has been moved

  bool rounds() const { return !copied && is_mx(to); }
  uint64_t bytes_before() const { return source.size() + scales.size(); }
};

// One file of the source, and what its counterpart will hold.
struct ShardMoves {
  const SafetensorsFile* file = nullptr;
  std::vector<TensorSpec> specs;
  std::vector<TensorMove> moves;
  std::vector<std::string> left_out;  // tensors of types that nothing here knows, none of them the model's

  uint64_t bytes_after() const;
};

struct MovePlan {
  ModelConfig config;  // of the target
  std::vector<ShardMoves> shards;
};

// `source` must outlive the plan. A checkpoint that has the format already is copied as it is.
MovePlan plan_moves(const Checkpoint& source, QuantFormat format);

class TensorMover {
 public:
  // Progress counts bytes of the source.
  TensorMover(const std::vector<ShardMoves>& shards, const ProgressFn& progress);

  // Writes the file, if anything is in it. Error: a weight that is no number or too large, or the disk.
  Status run(ShardMoves& shard, const std::filesystem::path& path);
  void finish() const;

 private:
  struct Buffers {
    std::unique_ptr<float[]> numbers;
    std::unique_ptr<std::byte[]> values;
    std::unique_ptr<uint8_t[]> scales;
  };
  struct Chunk {
    size_t move;
    int64_t first, count;  // numbers, or bytes of what is copied
  };

  static std::vector<Chunk> chunks_of(const ShardMoves& shard);
  static std::span<const std::byte> source_of(const ShardMoves& shard, const Chunk& chunk);
  Status move_chunk(const TensorMove& move, const Chunk& chunk, SafetensorsWriter& writer,
                    const Buffers& buffers, RoundingError& error) const;

  const ProgressFn& progress_;
  uint64_t total_bytes_ = 0;
  std::atomic<uint64_t> done_bytes_{0};
  ThreadPool pool_;
  std::vector<Buffers> buffers_;  // one for each worker
};

}  // namespace sparrow
