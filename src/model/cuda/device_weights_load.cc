// SPDX-License-Identifier: Apache-2.0
#include "model/cuda/device_weights_load.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "base/math.h"
#include "base/threads/thread_pool.h"
#include "checkpoint/mx/mx_faults.h"
#include "checkpoint/tensor_table.h"
#include "device/cuda/check.h"
#include "device/cuda/memory.h"
#include "device/cuda/stream.h"
#include "model/cuda/fold_rows.h"

namespace sparrow {
namespace {

// One rank gets 90% of what a PCIe link carries with 12. Of eight, one gets 65% with 12 and 75% with 16,
// where the pages of the cache are small.
constexpr int kMaxThreads = 12, kMaxThreadsForColumns = 16;
constexpr size_t kScaleAlignment = 16, kBufferAlignment = 256;

// A part and where it comes from.
struct Source {
  const DevicePart* part;
  const std::byte* values;
  const std::byte* scales;  // nullptr unless the values are MXFP8 or MXFP4
  MatrixFormat format;
  int file = FileWalk::kNoFile;  // that has the values

  Source(const DevicePart& part, const ops::Weight& weight)
      : part(&part),
        values(static_cast<const std::byte*>(weight.values.data)),
        scales(static_cast<const std::byte*>(weight.scales.data)),
        format(weight.format()) {
    SPARROW_CHECK_EQ(weight.values.numel() * values_per_element(format), part.whole_rows * part.whole_cols);
    SPARROW_CHECK_EQ(scales != nullptr, is_mx(format));
  }

  size_t value_bytes(int64_t count) const {
    return static_cast<size_t>(count / values_per_element(format)) * size_of(dtype_of(format));
  }
  size_t value_row_bytes() const { return value_bytes(part->num_cols); }
  size_t scale_row_bytes() const {
    return scales == nullptr ? 0 : static_cast<size_t>(part->num_cols / kScaleGroup);
  }
  size_t row_bytes() const { return value_row_bytes() + scale_row_bytes(); }
};

// Rows of a source that travel together.
struct Chunk {
  const Source* source;
  int64_t first_row, num_rows;

  size_t values_bytes() const { return static_cast<size_t>(num_rows) * source->value_row_bytes(); }
  size_t scales_offset() const { return round_up(values_bytes(), kScaleAlignment); }
  size_t scales_bytes() const { return static_cast<size_t>(num_rows) * source->scale_row_bytes(); }
  size_t bytes() const { return scales_bytes() == 0 ? values_bytes() : scales_offset() + scales_bytes(); }
};

// `rows` rows of `row_bytes` each, `stride` apart, one after the other.
void gather_rows(const std::byte* from, size_t stride, int64_t rows, size_t row_bytes, std::byte* to) {
  if (stride == row_bytes) {
    std::memcpy(to, from, row_bytes * static_cast<size_t>(rows));
    return;
  }
  for (int64_t r = 0; r < rows; ++r, from += stride, to += row_bytes) std::memcpy(to, from, row_bytes);
}

void gather(const Chunk& chunk, std::byte* to) {
  const Source& source = *chunk.source;
  const DevicePart& part = *source.part;
  const int64_t first = (part.first_row + chunk.first_row) * part.whole_cols + part.first_col;
  gather_rows(source.values + source.value_bytes(first), source.value_bytes(part.whole_cols), chunk.num_rows,
              source.value_row_bytes(), to);
  if (source.scales == nullptr) return;
  gather_rows(source.scales + first / kScaleGroup, static_cast<size_t>(part.whole_cols / kScaleGroup),
              chunk.num_rows, source.scale_row_bytes(), to + chunk.scales_offset());
}

// The first group of 32 numbers that the kernels found to hold what may not be, in the order of the sources.
class Faults {
 public:
  static Result<Faults> create() {
    Faults faults;
    faults.first_ = SPARROW_TRY(DeviceBuffer::allocate(sizeof(unsigned long long)));
    SPARROW_CUDA(cudaMemset(faults.first_.data(), 0xff, sizeof(unsigned long long)));
    SPARROW_CUDA(cudaDeviceSynchronize());  // other streams do not wait for this one
    return faults;
  }

  PackFaults of(size_t source) { return {first_.as<unsigned long long>(), uint64_t{source} << kGroupBits}; }

  // Once all chunks are through.
  Status status(std::span<const Source> sources) const {
    unsigned long long first = PackFaults::kNone;
    SPARROW_CUDA(cudaMemcpy(&first, first_.data(), sizeof(first), cudaMemcpyDeviceToHost));
    if (first == PackFaults::kNone) return Ok{};
    return error_of(sources[first >> kGroupBits], static_cast<int64_t>(first & ((1ull << kGroupBits) - 1)));
  }

 private:
  static constexpr int kGroupBits = 40;

  static Error error_of(const Source& source, int64_t group) {
    const DevicePart& part = *source.part;
    const int64_t groups = part.num_cols / kScaleGroup;
    const int64_t row = part.first_row + group / groups;
    const int64_t column = part.first_col + group % groups * kScaleGroup;
    const int64_t first = row * part.whole_cols + column;
    const TensorRow& tensor = part.tensor;
    const auto scale = static_cast<uint8_t>(source.scales[first / kScaleGroup]);
    const int max = is_mx(tensor.device.format) ? ops::cuda::max_cell_scale(source.format)
                                                : max_finite_scale(source.format);
    if (scale > max) return bad_scale(scale_name(tensor), row, column / kScaleGroup, scale, max);
    for (int64_t i = 0; source.format == MatrixFormat::kMxfp8 && i < kScaleGroup; ++i)
      if (const std::byte* const code = &source.values[first + i]; has_nan_code({code, 1}))
        return bad_code(tensor.spec.name, row, column + i, static_cast<uint8_t>(*code));
    return {Errc::kCorrupt, strf("tensor {} changed while it was loaded", tensor.spec.name)};
  }

  DeviceBuffer first_;
};

// Counts the codes that folding changes.
class Folds {
 public:
  static Result<Folds> create() {
    Folds folds;
    folds.changed_ = SPARROW_TRY(DeviceBuffer::allocate(sizeof(unsigned long long)));
    SPARROW_CUDA(cudaMemset(folds.changed_.data(), 0, sizeof(unsigned long long)));
    SPARROW_CUDA(cudaDeviceSynchronize());  // other streams do not wait for this one
    return folds;
  }

  unsigned long long* changed() const { return changed_.as<unsigned long long>(); }

  // Once all chunks are through.
  FoldedCodes count(std::span<const Source> sources) const {
    unsigned long long changed = 0;
    SPARROW_CUDA(cudaMemcpy(&changed, changed_.data(), sizeof(changed), cudaMemcpyDeviceToHost));
    FoldedCodes folded{.changed = static_cast<int64_t>(changed)};
    for (const Source& source : sources)
      if (is_folded(*source.part)) folded.codes += source.part->num_rows * source.part->num_cols;
    return folded;
  }

 private:
  DeviceBuffer changed_;
};

// What one thread sends with. Its stream keeps order, so that one staging buffer is enough: a copy into it
// waits for the kernel that reads the one before. The copies of other threads run meanwhile.
struct Lane {
  struct Slot {
    std::byte* buffer;
    Event sent;
  };
  PinnedBuffer pinned;  // of all slots: threads wait for each other while they lock pages
  Stream stream;
  std::vector<Slot> slots;
  DeviceBuffer staging;
  size_t next = 0;

  static Result<Lane> create(size_t buffer_bytes, int num_slots) {
    Lane lane;
    lane.pinned = SPARROW_TRY(PinnedBuffer::allocate(buffer_bytes * static_cast<size_t>(num_slots)));
    for (size_t i = 0; i < static_cast<size_t>(num_slots); ++i)
      lane.slots.push_back({lane.pinned.data() + i * buffer_bytes, Event()});
    lane.staging = SPARROW_TRY(DeviceBuffer::allocate(buffer_bytes));
    return lane;
  }

  // `changed`: where rows that are folded count; nullptr: none are.
  void send(const Chunk& chunk, const PackFaults& faults, unsigned long long* changed, std::byte* memory) {
    Slot& slot = slots[next++ % slots.size()];
    slot.sent.wait();
    gather(chunk, slot.buffer);
    SPARROW_CUDA(
        cudaMemcpyAsync(staging.data(), slot.buffer, chunk.bytes(), cudaMemcpyHostToDevice, stream.get()));
    slot.sent.record(stream.get());
    if (changed != nullptr && is_folded(*chunk.source->part))
      SPARROW_CUDA(launch_fold_rows({.codes = staging.as<uint8_t>(),
                                     .scales = staging.as<uint8_t>() + chunk.scales_offset(),
                                     .rows = chunk.num_rows,
                                     .columns = chunk.source->part->num_cols,
                                     .changed = changed},
                                    stream.get()));
    const PackSource source = {chunk.source->format, staging.data(),
                               staging.as<const uint8_t>() + chunk.scales_offset(), faults};
    SPARROW_CUDA(launch_pack(pack_target(*chunk.source->part, memory, chunk.first_row, chunk.num_rows),
                             source, stream.get()));
  }
};

std::vector<Source> find_sources(std::span<const DevicePart> parts, const Weights& weights,
                                 const FileWalk& walk) {
  std::vector<Source> sources;
  for (const DevicePart& part : parts) {
    const TensorRow& tensor = part.tensor;
    sources.emplace_back(part, find_weight(weights, tensor.role, tensor.layer, tensor.expert));
    sources.back().file = walk.file_of(sources.back().values);
  }
  // As they lie in the files: a disk reads ahead.
  std::sort(sources.begin(), sources.end(), [](const Source& a, const Source& b) {
    return std::pair(a.file, a.values) < std::pair(b.file, b.values);
  });
  return sources;
}

std::vector<Chunk> cut_into_chunks(const std::vector<Source>& sources, size_t buffer_bytes) {
  std::vector<Chunk> chunks;
  for (const Source& source : sources) {
    const auto rows = static_cast<int64_t>((buffer_bytes - kScaleAlignment) / source.row_bytes());
    for (int64_t first = 0; first < source.part->num_rows; first += rows)
      chunks.push_back({&source, first, std::min(rows, source.part->num_rows - first)});
  }
  return chunks;
}

}  // namespace

PackTarget pack_target(const DevicePart& part, std::byte* memory, int64_t first_row, int64_t num_rows) {
  return {.out = memory + part.offset,
          .format = part.tensor.device.format,
          .columns = part.matrix_columns,
          .matrix_row = part.matrix_row,
          .row_run = part.rows.size,
          .row_run_stride = part.rows.stride,
          .col_run = part.columns.size,
          .col_run_stride = part.columns.stride,
          .first_row = first_row,
          .num_rows = num_rows,
          .num_cols = part.num_cols};
}

bool is_folded(const DevicePart& part) {
  // The second products of feed-forwards read bf16.
  return part.tensor.device.format == MatrixFormat::kMxfp8 && part.tensor.role != TensorRole::kDown;
}

int max_load_threads(std::span<const DevicePart> parts) {
  const bool cuts_columns =
      std::ranges::any_of(parts, [](const DevicePart& part) { return part.num_cols < part.whole_cols; });
  return cuts_columns ? kMaxThreadsForColumns : kMaxThreads;
}

Result<FoldedCodes> copy_parts(std::span<const DevicePart> parts, const Weights& weights, std::byte* memory,
                               const ProgressFn& progress, const DeviceLoadOptions& options) {
  FileWalk walk(options.order);
  const std::vector<Source> sources = find_sources(parts, weights, walk);
  size_t total = 0, buffer_bytes = options.buffer_bytes;
  for (const Source& source : sources) {
    total += static_cast<size_t>(source.part->num_rows) * source.row_bytes();
    buffer_bytes = std::max(buffer_bytes, source.row_bytes() + kScaleAlignment);
  }
  buffer_bytes = round_up(buffer_bytes, kBufferAlignment);
  const std::vector<Chunk> chunks = cut_into_chunks(sources, buffer_bytes);
  for (const Chunk& chunk : chunks) walk.expect(chunk.source->file);
  walk.start();
  Faults faults = SPARROW_TRY(Faults::create());
  std::optional<Folds> folds;
  if (options.fold_rows) folds = SPARROW_TRY(Folds::create());
  int device = 0;
  SPARROW_CUDA(cudaGetDevice(&device));
  std::atomic<size_t> next{0}, done{0};
  std::mutex mutex;
  std::optional<Error> failure;
  ThreadPool pool(options.threads > 0 ? options.threads
                                      : std::min(ThreadPool::default_size(), max_load_threads(parts)));
  pool.run([&](int worker) {
    SPARROW_CUDA(cudaSetDevice(device));
    const auto fail = [&](const Error& error) {
      const std::lock_guard lock(mutex);
      failure = error;
      next = chunks.size();
    };
    // Locking pages takes its time: the first thread to be ready starts.
    auto lane = Lane::create(buffer_bytes, options.buffers_per_thread);
    if (!lane.ok()) return fail(lane.error());
    for (size_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < chunks.size();) {
      const int file = chunks[i].source->file;
      if (const Status begun = walk.begin(file); !begun.ok()) return fail(begun.error());
      lane->send(chunks[i], faults.of(static_cast<size_t>(chunks[i].source - sources.data())),
                 folds ? folds->changed() : nullptr, memory);
      walk.end(file);
      const size_t bytes = chunks[i].values_bytes() + chunks[i].scales_bytes();
      const size_t now = done.fetch_add(bytes, std::memory_order_relaxed) + bytes;
      if (worker == 0 && progress) progress(now, total);
    }
    lane->stream.synchronize();
  });
  if (failure) return *failure;
  SPARROW_TRY(faults.status(sources));
  if (progress) progress(total, total);
  return folds ? folds->count(sources) : FoldedCodes{};
}

}  // namespace sparrow
