// SPDX-License-Identifier: Apache-2.0
// Checkpoint::random(): weights out of a generator, for measurements and tests without any file of weights.
#include <unistd.h>

#include <algorithm>
#include <atomic>

#include "base/math.h"
#include "base/threads/thread_pool.h"
#include "checkpoint/bind_weights.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/random/random_tensor.h"
#include "checkpoint/tensor_table.h"

namespace sparrow {
namespace {

constexpr size_t kAlign = 64;
constexpr int64_t kChunkElements = 1 << 20;
static_assert(kChunkElements % RandomTensor::kStep == 0);
constexpr double kGiB = 1024.0 * 1024 * 1024;

struct Chunk {
  size_t tensor;
  int64_t first, count;
};

void fill(const std::vector<TensorRow>& rows, const std::vector<size_t>& offsets, const ModelConfig& config,
          uint64_t seed, const ProgressFn& progress, std::byte* memory) {
  std::vector<RandomTensor> tensors;
  std::vector<Chunk> chunks;
  size_t total = 0;
  for (size_t i = 0; i < rows.size(); ++i) {
    tensors.emplace_back(rows[i], config, seed);
    total += rows[i].spec.bytes();
    const int64_t numel = rows[i].spec.numel();
    for (int64_t first = 0; first < numel; first += kChunkElements)
      chunks.push_back({i, first, std::min(kChunkElements, numel - first)});
  }
  std::atomic<size_t> done{0};
  ThreadPool pool(ThreadPool::default_size());
  pool.parallel_for(static_cast<int64_t>(chunks.size()), [&](int64_t i, int worker) {
    const Chunk& chunk = chunks[static_cast<size_t>(i)];
    const size_t element = size_of(rows[chunk.tensor].spec.dtype);
    tensors[chunk.tensor].fill(chunk.first, chunk.count,
                               memory + offsets[chunk.tensor] + static_cast<size_t>(chunk.first) * element);
    const size_t bytes = static_cast<size_t>(chunk.count) * element;
    const size_t so_far = done.fetch_add(bytes, std::memory_order_relaxed) + bytes;
    if (worker == 0 && progress) progress(so_far, total);
  });
  if (progress) progress(total, total);
}

}  // namespace

Result<Checkpoint> Checkpoint::without_weights(const std::filesystem::path& dir,
                                               const CheckpointOptions& options) {
  Checkpoint checkpoint;
  checkpoint.config_ = SPARROW_TRY(model_config(dir, options.overrides));
  return checkpoint;
}

Result<Checkpoint> Checkpoint::random(const std::filesystem::path& dir, uint64_t seed,
                                      const CheckpointOptions& options) {
  Checkpoint checkpoint;
  checkpoint.config_ = SPARROW_TRY(model_config(dir, options.overrides));
  std::vector<TensorRow> rows = tensor_table(checkpoint.config_);
  if (!options.vision)
    std::erase_if(rows, [](const TensorRow& row) { return row.part == LedgerPart::kVision; });
  std::vector<size_t> offsets;
  size_t total = 0;
  for (const TensorRow& row : rows) {
    offsets.push_back(total);
    total += round_up(row.spec.bytes(), kAlign);
    checkpoint.weight_bytes_ += row.spec.bytes();
  }
  const auto memory =
      static_cast<double>(::sysconf(_SC_PHYS_PAGES)) * static_cast<double>(::sysconf(_SC_PAGESIZE));
  if (static_cast<double>(total) > memory)
    return Error{
        Errc::kInvalidArgument,
        strf("random weights for {} need {:.1f} GiB and this machine has {:.1f} GiB: use fewer layers "
             "(num_hidden_layers of --hf-overrides)",
             quoted(dir), static_cast<double>(total) / kGiB, memory / kGiB)};
  checkpoint.copies_.push_back(std::make_unique_for_overwrite<std::byte[]>(total));
  const std::byte* const base = checkpoint.copies_.front().get();
  fill(rows, offsets, checkpoint.config_, seed, options.progress, checkpoint.copies_.front().get());

  const auto stored = [&](size_t row) -> StoredTensor {
    const TensorSpec& spec = rows[row].spec;
    return {{base + offsets[row], spec.bytes()}, spec.dtype, spec.shape};
  };
  checkpoint.weights_ = bind_weights(checkpoint.config_, rows, stored, checkpoint.copies_, options.vision);
  checkpoint.num_tensors_ = rows.size();
  return checkpoint;
}

}  // namespace sparrow
