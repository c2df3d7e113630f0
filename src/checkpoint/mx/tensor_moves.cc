// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/mx/tensor_moves.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <mutex>
#include <unordered_map>
#include <utility>

#include "checkpoint/mx/mx_faults.h"
#include "checkpoint/mx/quantised_config.h"
#include "checkpoint/tensor_table.h"

namespace sparrow {
namespace {

constexpr int64_t kChunkNumbers = 1 << 18;
constexpr int64_t kCopiedBytes = 1 << 20;
constexpr size_t kReadAhead = 64;  // chunks that the disk is asked for before they are needed
static_assert(kChunkNumbers % kScaleGroup == 0);

MatrixFormat format_of_stored(const TensorRow& row, DType stored) {
  if (is_mx(row.format)) return row.format;
  return stored == DType::kF32 ? MatrixFormat::kF32 : MatrixFormat::kBF16;
}

// The rows of a table by name.
class Rows {
 public:
  explicit Rows(std::vector<TensorRow> rows) : rows_(std::move(rows)) {
    for (size_t i = 0; i < rows_.size(); ++i) by_name_.emplace(rows_[i].spec.name, i);
  }

  const TensorRow* find(std::string_view name) const {
    const auto found = by_name_.find(name);
    return found == by_name_.end() ? nullptr : &rows_[found->second];
  }
  // Of a matrix that has them: the table has them behind it.
  static const TensorRow& scales_of(const TensorRow& values) { return *(&values + 1); }

 private:
  std::vector<TensorRow> rows_;
  std::unordered_map<std::string_view, size_t> by_name_;
};

using FileOfTensor = std::unordered_map<std::string_view, const SafetensorsFile*>;

// Plans the files of a checkpoint one after the other.
class Planner {
 public:
  Planner(const FileOfTensor& files, std::vector<TensorRow> from, std::vector<TensorRow> to)
      : files_(files), from_(std::move(from)), to_(std::move(to)) {}

  ShardMoves plan(const SafetensorsFile& file) const {
    std::vector<std::pair<std::string_view, const SafetensorsEntry*>> entries;
    for (const auto& [name, entry] : file.header().entries) entries.emplace_back(name, &entry);
    std::ranges::sort(entries, {}, [](const auto& named) { return named.second->begin; });
    ShardMoves shard{.file = &file};
    for (const auto& [name, entry] : entries) {
      const TensorRow* const from = from_.find(name);
      const TensorRow* const to = to_.find(name);
      if (from == nullptr || (to != nullptr && from->format == to->format))
        add_copy(shard, std::string(name), *entry, from);
      else if (from->piece == TensorPiece::kValues)
        add_conversion(shard, *entry, *from, *to);
      // Other scales go with their values.
    }
    return shard;
  }

 private:
  static void add_copy(ShardMoves& shard, std::string name, const SafetensorsEntry& entry,
                       const TensorRow* row) {
    if (!entry.dtype) {
      shard.left_out.push_back(strf("tensor {} ({})", name, entry.dtype_name));
      return;
    }
    TensorMove move{.name = name, .copied = true, .source = shard.file->bytes(entry)};
    if (row != nullptr) {
      move.part = row->part;
      move.from = format_of(*entry.dtype);
      move.columns = row->spec.numel() / (entry.shape.size() > 1 ? entry.shape[0] : 1);
    }
    move.target = shard.specs.size();
    move.bytes_after = move.source.size();
    shard.specs.push_back({std::move(name), *entry.dtype, entry.shape});
    shard.moves.push_back(std::move(move));
  }

  void add_conversion(ShardMoves& shard, const SafetensorsEntry& entry, const TensorRow& from,
                      const TensorRow& to) const {
    TensorMove move{.name = from.spec.name,
                    .part = from.part,
                    .from = format_of_stored(from, *entry.dtype),
                    .to = format_of_stored(to, to.spec.dtype),
                    .source = shard.file->bytes(entry),
                    .target = shard.specs.size(),
                    .columns = from.columns()};
    if (is_mx(from.format)) {
      const std::string& name = Rows::scales_of(from).spec.name;
      const SafetensorsFile& file = *files_.at(name);
      move.scales = file.bytes(*file.find(name));
    }
    shard.specs.push_back(to.spec);
    if (is_mx(to.format)) shard.specs.push_back(Rows::scales_of(to).spec);
    for (size_t i = move.target; i < shard.specs.size(); ++i) move.bytes_after += shard.specs[i].bytes();
    shard.moves.push_back(std::move(move));
  }

  const FileOfTensor& files_;
  Rows from_, to_;
};

// `count` numbers of a move's source from the first on.
void read_numbers(const TensorMove& move, int64_t first, std::span<float> numbers) {
  if (is_mx(move.from)) {
    const auto* const codes = reinterpret_cast<const uint8_t*>(move.source.data());
    const auto* const scales = reinterpret_cast<const uint8_t*>(move.scales.data());
    return expand_groups(move.from, codes + first / values_per_element(move.from),
                         scales + first / kScaleGroup, numbers);
  }
  const std::byte* const source = move.source.data() + value_bytes(move.from, first);
  if (move.from == MatrixFormat::kF32) {
    std::memcpy(numbers.data(), source, numbers.size_bytes());
    return;
  }
  for (size_t i = 0; i < numbers.size(); ++i) {
    BFloat16 x;  // tensors may lie at odd bytes
    std::memcpy(&x, source + i * sizeof x, sizeof x);
    numbers[i] = to_float(x);
  }
}

// What is wrong with a number among these: it is not finite, or else it is the largest.
Error cannot_hold(const TensorMove& move, int64_t first, std::span<const float> numbers) {
  const auto is_better = [](float a, float b) {
    return std::isfinite(a) != std::isfinite(b) ? std::isfinite(a) : std::fabs(a) < std::fabs(b);
  };
  const auto worst = std::ranges::max_element(numbers, is_better);
  if (is_mx(move.from) && !std::isfinite(*worst))
    if (const Status codes = check_codes(move.name, move.source, move.columns); !codes.ok())
      return codes.error();
  const int64_t at = first + (worst - numbers.begin());
  const std::string limit =
      is_mx(move.to) ? strf("; {} holds numbers up to {}", name_of(move.to), largest_of(move.to)) : "";
  return {Errc::kCorrupt, strf("tensor {}: row {}, column {} is {}{}", move.name, at / move.columns,
                               at % move.columns, std::isnan(*worst) ? "nan" : strf("{}", *worst), limit)};
}

// Weights that are copied must be numbers, too. (Scales were checked when the source was opened.)
Status check_copied(const TensorMove& move, size_t first_byte, std::span<const std::byte> bytes) {
  if (!move.part || all_finite(move.from, bytes)) return Ok{};
  if (is_mx(move.from)) return check_codes(move.name, move.source, move.columns);
  const size_t size = size_of(dtype_of(move.from));
  for (size_t i = 0; i < bytes.size() / size; ++i) {
    const auto at = static_cast<int64_t>(first_byte / size + i);
    float number;
    read_numbers(move, at, {&number, 1});
    if (!std::isfinite(number)) return cannot_hold(move, at, {&number, 1});
  }
  return Ok{};
}

void write_numbers(MatrixFormat format, std::span<const float> numbers, std::byte* out) {
  if (format == MatrixFormat::kF32) {
    std::memcpy(out, numbers.data(), numbers.size_bytes());
    return;
  }
  auto* const values = reinterpret_cast<BFloat16*>(out);
  for (size_t i = 0; i < numbers.size(); ++i) values[i] = to_bf16(numbers[i]);
}

// The failure of the first chunk that had one, so that a run that fails says the same again.
class Failure {
 public:
  bool happened_before(int64_t chunk) const { return first_.load(std::memory_order_relaxed) < chunk; }
  void report(int64_t chunk, const Status& status) {
    if (status.ok()) return;
    const std::lock_guard lock(mutex_);
    if (happened_before(chunk)) return;
    first_ = chunk;
    status_ = status;
  }
  Status status() const { return status_; }

 private:
  std::mutex mutex_;
  std::atomic<int64_t> first_{INT64_MAX};
  Status status_ = Ok{};
};

}  // namespace

uint64_t ShardMoves::bytes_after() const {
  uint64_t bytes = 0;
  for (const TensorSpec& spec : specs) bytes += spec.bytes();
  return bytes;
}

MovePlan plan_moves(const Checkpoint& source, QuantFormat format) {
  FileOfTensor files;
  for (const SafetensorsFile& file : source.files())
    for (const auto& [name, entry] : file.header().entries) files.emplace(name, &file);
  const ModelConfig& config = source.config();
  MovePlan plan{.config = config.quant == format ? config : quantised(config, format)};
  const Planner planner(files, tensor_table(config), tensor_table(plan.config));
  for (const SafetensorsFile& file : source.files()) plan.shards.push_back(planner.plan(file));
  return plan;
}

TensorMover::TensorMover(const std::vector<ShardMoves>& shards, const ProgressFn& progress)
    : progress_(progress), pool_(ThreadPool::default_size()) {
  for (const ShardMoves& shard : shards)
    for (const TensorMove& move : shard.moves) total_bytes_ += move.source.size();
  for (int i = 0; i < pool_.size(); ++i)
    buffers_.push_back({.numbers = std::make_unique<float[]>(kChunkNumbers),
                        .values = std::make_unique<std::byte[]>(kChunkNumbers * sizeof(float)),
                        .scales = std::make_unique<uint8_t[]>(kChunkNumbers / kScaleGroup)});
}

std::vector<TensorMover::Chunk> TensorMover::chunks_of(const ShardMoves& shard) {
  std::vector<Chunk> chunks;
  for (size_t i = 0; i < shard.moves.size(); ++i) {
    const TensorMove& move = shard.moves[i];
    const auto bytes = static_cast<int64_t>(move.source.size());
    const int64_t whole = move.copied ? bytes : bytes / value_bytes(move.from, 2) * 2;
    const int64_t part = move.copied ? kCopiedBytes : kChunkNumbers;
    for (int64_t first = 0; first < whole; first += part)
      chunks.push_back({i, first, std::min(part, whole - first)});
  }
  return chunks;
}

std::span<const std::byte> TensorMover::source_of(const ShardMoves& shard, const Chunk& chunk) {
  const TensorMove& move = shard.moves[chunk.move];
  const auto bytes = [&](int64_t count) {
    return static_cast<size_t>(move.copied ? count : value_bytes(move.from, count));
  };
  return move.source.subspan(bytes(chunk.first), bytes(chunk.count));
}

Status TensorMover::move_chunk(const TensorMove& move, const Chunk& chunk, SafetensorsWriter& writer,
                               const Buffers& buffers, RoundingError& error) const {
  const auto first = static_cast<size_t>(chunk.first), count = static_cast<size_t>(chunk.count);
  if (move.copied) {
    const auto bytes = move.source.subspan(first, count);
    SPARROW_TRY(check_copied(move, first, bytes));
    return writer.write(move.target, bytes, first);
  }

  const std::span numbers(buffers.numbers.get(), count);
  read_numbers(move, chunk.first, numbers);
  std::byte* const values = buffers.values.get();
  const auto bytes_of = [&](int64_t n) { return static_cast<size_t>(value_bytes(move.to, n)); };
  if (!is_mx(move.to)) {
    if (!std::ranges::all_of(numbers, [](float x) { return std::isfinite(x); }))
      return cannot_hold(move, chunk.first, numbers);
    write_numbers(move.to, numbers, values);
    return writer.write(move.target, {values, bytes_of(chunk.count)}, bytes_of(chunk.first));
  }
  uint8_t* const scales = buffers.scales.get();
  const RoundedGroups rounded = round_groups(move.to, numbers, reinterpret_cast<uint8_t*>(values), scales);
  if (rounded.refused >= 0) {
    const int64_t at = rounded.refused * kScaleGroup;
    return cannot_hold(move, chunk.first + at,
                       numbers.subspan(static_cast<size_t>(at), static_cast<size_t>(kScaleGroup)));
  }
  error = rounded.error;
  const auto group = static_cast<size_t>(kScaleGroup);
  SPARROW_TRY(writer.write(move.target, {values, bytes_of(chunk.count)}, bytes_of(chunk.first)));
  return writer.write(move.target + 1, std::as_bytes(std::span(scales, count / group)), first / group);
}

Status TensorMover::run(ShardMoves& shard, const std::filesystem::path& path) {
  if (shard.specs.empty()) return Ok{};
  const auto& metadata = shard.file->header().metadata;
  SafetensorsWriter writer =
      SPARROW_TRY(SafetensorsWriter::create(path, shard.specs, {metadata.begin(), metadata.end()}));
  const std::vector<Chunk> chunks = chunks_of(shard);
  std::vector<RoundingError> errors(chunks.size());
  Failure failure;
  pool_.parallel_for(static_cast<int64_t>(chunks.size()), [&](int64_t i, int worker) {
    if (failure.happened_before(i)) return;
    if (const auto ahead = static_cast<size_t>(i) + kReadAhead; ahead < chunks.size())
      shard.file->mapping().will_need(source_of(shard, chunks[ahead]));
    const Chunk& chunk = chunks[static_cast<size_t>(i)];
    const TensorMove& move = shard.moves[chunk.move];
    failure.report(i, move_chunk(move, chunk, writer, buffers_[static_cast<size_t>(worker)],
                                 errors[static_cast<size_t>(i)]));
    const uint64_t bytes = source_of(shard, chunk).size();
    const uint64_t done = done_bytes_.fetch_add(bytes) + bytes;
    if (worker == 0 && progress_) progress_(done, total_bytes_);
  });
  SPARROW_TRY(failure.status());
  for (size_t i = 0; i < chunks.size(); ++i) shard.moves[chunks[i].move].error.add(errors[i]);
  shard.file->mapping().release();
  return writer.finish();
}

void TensorMover::finish() const {
  if (progress_) progress_(total_bytes_, total_bytes_);
}

}  // namespace sparrow
