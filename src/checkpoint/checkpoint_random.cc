// SPDX-License-Identifier: Apache-2.0
// Checkpoint::random(): weights out of a generator, for measurements and tests without any file of weights.
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <unordered_map>

#include "base/math.h"
#include "base/threads/thread_pool.h"
#include "checkpoint/bind_weights.h"
#include "checkpoint/census.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/random/random_tensor.h"

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

void fill(const std::vector<TensorSpec>& specs, const std::vector<size_t>& offsets, const ModelConfig& config,
          uint64_t seed, const ProgressFn& progress, std::byte* memory) {
  std::vector<RandomTensor> tensors;
  std::vector<Chunk> chunks;
  size_t total = 0;
  for (size_t i = 0; i < specs.size(); ++i) {
    tensors.emplace_back(specs[i], config, seed);
    total += specs[i].bytes();
    for (int64_t first = 0; first < specs[i].numel(); first += kChunkElements)
      chunks.push_back({i, first, std::min(kChunkElements, specs[i].numel() - first)});
  }
  std::atomic<size_t> done{0};
  ThreadPool pool(ThreadPool::default_size());
  pool.parallel_for(static_cast<int64_t>(chunks.size()), [&](int64_t i, int worker) {
    const Chunk& chunk = chunks[static_cast<size_t>(i)];
    const size_t element = size_of(specs[chunk.tensor].dtype);
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
  checkpoint.config_ = SPARROW_TRY(load_config(dir, options.overrides));
  return checkpoint;
}

Result<Checkpoint> Checkpoint::random(const std::filesystem::path& dir, uint64_t seed,
                                      const CheckpointOptions& options) {
  Checkpoint checkpoint;
  checkpoint.config_ = SPARROW_TRY(load_config(dir, options.overrides));
  const std::vector<TensorSpec> specs = expected_tensors(checkpoint.config_);
  std::vector<size_t> offsets;
  std::unordered_map<std::string, size_t> by_name;
  size_t total = 0;
  for (size_t i = 0; i < specs.size(); ++i) {
    by_name.emplace(specs[i].name, i);
    offsets.push_back(total);
    total += round_up(specs[i].bytes(), kAlign);
    checkpoint.weight_bytes_ += specs[i].bytes();
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
  fill(specs, offsets, checkpoint.config_, seed, options.progress, checkpoint.copies_.front().get());

  const auto stored = [&](const std::string& name) -> StoredTensor {
    const size_t i = by_name.at(name);
    return {{base + offsets[i], specs[i].bytes()}, specs[i].dtype, specs[i].shape};
  };
  checkpoint.weights_ = bind_weights(checkpoint.config_, {}, stored, checkpoint.copies_);
  checkpoint.num_tensors_ = specs.size();
  return checkpoint;
}

}  // namespace sparrow
