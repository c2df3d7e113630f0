// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/random/synthetic.h"

#include <algorithm>
#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>

#include "base/files/mapped_file.h"
#include "base/json/json.h"
#include "base/math.h"
#include "base/threads/thread_pool.h"
#include "checkpoint/random/random_tensor.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/tensor_table.h"
#include "config/config.h"

namespace sparrow {
namespace {

constexpr size_t kTargetShardBytes = 5'000'000'000;
constexpr int64_t kChunkElements = 1 << 20;

// Splits the tensors, in order, into at least two shards of about the same size.
std::vector<std::vector<TensorRow>> plan_shards(std::vector<TensorRow> rows, size_t total_bytes) {
  const size_t num_shards = std::max<size_t>(2, ceil_div(total_bytes, kTargetShardBytes));
  std::vector<std::vector<TensorRow>> shards(num_shards);
  size_t before = 0;
  for (TensorRow& row : rows) {
    // A tensor goes where its middle lies.
    const double middle = static_cast<double>(before) + static_cast<double>(row.spec.bytes()) / 2;
    before += row.spec.bytes();
    const auto shard =
        static_cast<size_t>(middle * static_cast<double>(num_shards) / static_cast<double>(total_bytes));
    shards[std::min(shard, num_shards - 1)].push_back(std::move(row));
  }
  return shards;
}

// Writes shards one after the other, each with all threads.
class ShardWriter {
 public:
  ShardWriter(const ModelConfig& config, uint64_t seed, const ProgressFn& progress, size_t total_bytes)
      : config_(config),
        seed_(seed),
        progress_(progress),
        total_bytes_(total_bytes),
        pool_(ThreadPool::default_size()) {
    for (int i = 0; i < pool_.size(); ++i)
      buffers_.push_back(std::make_unique<std::byte[]>(kChunkElements * sizeof(float)));
  }

  Status write(const std::filesystem::path& path, const std::vector<TensorRow>& rows) {
    std::vector<TensorSpec> specs;
    for (const TensorRow& row : rows) specs.push_back(row.spec);
    SafetensorsWriter writer = SPARROW_TRY(SafetensorsWriter::create(path, specs, {{"format", "pt"}}));
    std::vector<RandomTensor> tensors;
    std::vector<Chunk> chunks;
    for (size_t i = 0; i < rows.size(); ++i) {
      tensors.emplace_back(rows[i], config_, seed_);
      for (int64_t first = 0; first < specs[i].numel(); first += kChunkElements)
        chunks.push_back({i, first, std::min(kChunkElements, specs[i].numel() - first)});
    }
    std::mutex mutex;
    std::optional<Error> failure;
    std::atomic<bool> failed{false};
    pool_.parallel_for(static_cast<int64_t>(chunks.size()), [&](int64_t i, int worker) {
      if (failed) return;
      const Chunk& chunk = chunks[static_cast<size_t>(i)];
      const size_t element = size_of(specs[chunk.tensor].dtype);
      std::byte* const buffer = buffers_[static_cast<size_t>(worker)].get();
      tensors[chunk.tensor].fill(chunk.first, chunk.count, buffer);
      const size_t bytes = static_cast<size_t>(chunk.count) * element;
      const Status status =
          writer.write(chunk.tensor, std::span(buffer, bytes), static_cast<size_t>(chunk.first) * element);
      if (!status.ok() && !failed.exchange(true)) {
        const std::lock_guard lock(mutex);
        failure = status.error();
      }
      const size_t done = done_bytes_.fetch_add(bytes) + bytes;
      if (worker == 0 && progress_) progress_(done, total_bytes_);
    });
    if (failure) return *failure;
    return writer.finish();
  }

 private:
  struct Chunk {
    size_t tensor;
    int64_t first, count;
  };

  const ModelConfig& config_;
  uint64_t seed_;
  const ProgressFn& progress_;
  size_t total_bytes_;
  std::atomic<size_t> done_bytes_{0};
  ThreadPool pool_;
  std::vector<std::unique_ptr<std::byte[]>> buffers_;  // one for each worker
};

}  // namespace

Status write_synthetic_checkpoint(const SyntheticOptions& options, const ProgressFn& progress) {
  const SyntheticConfig texts = SPARROW_TRY(synthetic_config(options.preset, options.format));
  const std::filesystem::path config_path = options.dir / "config.json";
  std::error_code ec;
  if (std::filesystem::exists(config_path, ec))
    return Error{Errc::kInvalidArgument, strf("{} exists already; name a new folder", quoted(config_path))};
  const ModelConfig config = SPARROW_TRY(parse_config(texts.config_json, texts.generation_config_json));
  std::vector<TensorRow> rows = tensor_table(config);
  size_t total_bytes = 0;
  for (const TensorRow& row : rows) total_bytes += row.spec.bytes();
  const auto shards = plan_shards(std::move(rows), total_bytes);
  CreatedFiles files = SPARROW_TRY(CreatedFiles::create(options.dir, total_bytes));

  ShardWriter writer(config, options.seed, progress, total_bytes);
  std::string weight_map;
  for (size_t i = 0; i < shards.size(); ++i) {
    const std::string file = strf("model-{:05}-of-{:05}.safetensors", i + 1, shards.size());
    SPARROW_TRY(writer.write(SPARROW_TRY(files.add(file)), shards[i]));
    for (const TensorRow& row : shards[i])
      weight_map +=
          strf("{}\n    {}: \"{}\"", weight_map.empty() ? "" : ",", json_quoted(row.spec.name), file);
  }
  if (progress) progress(total_bytes, total_bytes);
  SPARROW_TRY(
      write_text_file(SPARROW_TRY(files.add("model.safetensors.index.json")),
                      strf("{{\n  \"metadata\": {{\"total_size\": {}}},\n  \"weight_map\": {{{}\n  }}\n}}\n",
                           total_bytes, weight_map)));
  SPARROW_TRY(
      write_text_file(SPARROW_TRY(files.add("generation_config.json")), texts.generation_config_json));
  if (options.write_beside) SPARROW_TRY(options.write_beside(config, files));
  // Last: a folder without it is not a checkpoint, so an interrupted run leaves nothing that looks like one.
  SPARROW_TRY(write_text_file(SPARROW_TRY(files.add("config.json")), texts.config_json));
  files.keep();
  return Ok{};
}

}  // namespace sparrow
