// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/checkpoint.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>

#include "base/json/json.h"
#include "base/math.h"
#include "base/threads/thread_pool.h"
#include "base/utf8.h"
#include "checkpoint/bind_weights.h"
#include "checkpoint/kv_scales.h"
#include "checkpoint/mx/mx_faults.h"
#include "checkpoint/tensor_table.h"

namespace sparrow {
namespace {

constexpr const char *kIndex = "model.safetensors.index.json", *kSingle = "model.safetensors";
constexpr size_t kMaxIndexBytes = size_t{64} << 20;
constexpr size_t kPrefaultChunk = size_t{8} << 20;
constexpr size_t kMaxListed = 10;

Error corrupt(std::string message) {
  return {Errc::kCorrupt, std::move(message)};
}

// Where a tensor lies.
struct Found {
  const SafetensorsFile* file;
  const SafetensorsEntry* entry;

  std::span<const std::byte> bytes() const { return file->bytes(*entry); }
};
using FoundTensors = std::unordered_map<std::string, Found>;

// weight_map of the index: tensor name to shard.
using WeightMap = std::vector<std::pair<std::string, std::string>>;

Result<WeightMap> read_index(const std::filesystem::path& path) {
  const std::string text = SPARROW_TRY(read_text_file(path, kMaxIndexBytes));
  const JsonDocument document =
      SPARROW_TRY(JsonDocument::parse(text, quoted(path), {.max_bytes = kMaxIndexBytes, .max_depth = 8}));
  const auto in_index = [&](const Error& error) {
    return Error{error.code, strf("{}: {}", quoted(path), error.message)};
  };
  const auto map = document.root().at("weight_map");
  if (!map.ok()) return in_index(map.error());
  if (const Status is_object = map->expect_object(); !is_object.ok()) return in_index(is_object.error());
  WeightMap weights;
  for (size_t i = 0; i < map->size(); ++i) {
    const auto file = map->member(i).as_string();
    if (!file.ok()) return in_index(file.error());
    // A plain name: nothing outside the folder may be read because a file in it says so.
    const std::filesystem::path name = file.value();
    if (name.empty() || name != name.filename() || name == "." || name == "..")
      return corrupt(strf("{}: tensor {} is in {}, which is not the plain name of a file in this folder",
                          quoted(path), map->key(i), json_quoted(file.value())));
    weights.emplace_back(map->key(i), file.value());
  }
  return weights;
}

struct Shards {
  std::vector<SafetensorsFile> files;
  FoundTensors tensors;
};

Result<Shards> open_shards(const std::filesystem::path& dir) {
  const std::filesystem::path index_path = dir / kIndex, single = dir / kSingle;
  std::error_code ec;
  WeightMap weight_map;
  std::set<std::string> names;
  if (std::filesystem::exists(index_path, ec)) {
    weight_map = SPARROW_TRY(read_index(index_path));
    for (const auto& [tensor, file] : weight_map) names.insert(file);
  } else if (std::filesystem::exists(single, ec)) {
    names.insert(kSingle);
  } else {
    return Error{Errc::kNotFound, strf("{} holds neither {} nor {}", quoted(dir), kIndex, kSingle)};
  }
  Shards shards;
  for (const std::string& name : names)
    shards.files.push_back(SPARROW_TRY(SafetensorsFile::open(dir / name)));
  for (const SafetensorsFile& file : shards.files) {
    for (const auto& [name, entry] : file.header().entries) {
      const auto [other, is_new] = shards.tensors.try_emplace(name, Found{&file, &entry});
      if (!is_new)
        return corrupt(strf("tensor {} is in {} and in {}", name, quoted(other->second.file->path()),
                            quoted(file.path())));
    }
  }
  for (const auto& [name, file] : weight_map) {
    const auto found = shards.tensors.find(name);
    if (found == shards.tensors.end() || found->second.file->path().filename() != file)
      return corrupt(strf("{} says that tensor {} is in {}, but it is not", quoted(index_path), name, file));
  }
  return shards;
}

bool is_float(DType dtype) {
  return dtype == DType::kF32 || dtype == DType::kBF16;
}

// Collects complaints of one kind and shows the first few.
class Complaints {
 public:
  explicit Complaints(std::string kind) : kind_(std::move(kind)) {}

  void add(std::string what) { all_.push_back(std::move(what)); }
  bool empty() const { return all_.empty(); }
  std::string text() {
    if (all_.empty()) return "";
    std::string out = strf("; {} {}: ", all_.size(), kind_);
    // Files are read into a hash table: sorting keeps the message the same from run to run.
    std::sort(all_.begin(), all_.end());
    for (size_t i = 0; i < std::min(all_.size(), kMaxListed); ++i)
      out += (i == 0 ? "" : ", ") + excerpt(all_[i]);
    if (all_.size() > kMaxListed) out += strf(", ... and {} more", all_.size() - kMaxListed);
    return out;
  }

 private:
  std::string kind_;
  std::vector<std::string> all_;
};

// Where tensors and configuration disagree on what is quantised: one complaint for a matrix says more than
// that its scales are missing, or left over, and its type is another.
class QuantisationCensus {
 public:
  explicit QuantisationCensus(const FoundTensors& tensors) : tensors_(tensors) {}

  // Whether it has anything to say of the matrix, or of its scales.
  bool complains(const TensorRow& row) {
    if (row.piece == TensorPiece::kScales) return accounted_.contains(row.spec.name);
    if (row.piece != TensorPiece::kValues || row.spec.shape.size() != 2) return false;
    const auto found = tensors_.find(row.spec.name);
    if (found == tensors_.end()) return false;
    const std::vector<std::string> scales = scale_names(row);
    const bool has_scales =
        std::ranges::any_of(scales, [&](const std::string& name) { return tensors_.contains(name); });
    const auto dtype = found->second.entry->dtype;
    const bool is_plain = !has_scales && dtype && is_float(*dtype);
    if (is_mx(row.format) ? !is_plain : !has_scales) return false;
    (has_scales ? scaled_ : plain_).add(row.spec.name);
    accounted_.insert(scales.begin(), scales.end());
    return true;
  }
  bool accounts_for(const std::string& name) const { return accounted_.contains(name); }
  bool empty() const { return plain_.empty() && scaled_.empty(); }
  std::string text() { return plain_.text() + scaled_.text(); }

 private:
  const FoundTensors& tensors_;
  Complaints plain_{"without scales, which it says are quantised"};
  Complaints scaled_{"with scales, which it says are not quantised"};
  std::set<std::string> accounted_;  // scales of those matrices
};

Status take_census(const std::filesystem::path& dir, const std::vector<TensorRow>& rows,
                   const FoundTensors& tensors) {
  Complaints missing("missing"), mismatched("of another shape or type"), unexpected("unexpected");
  QuantisationCensus quantisation(tensors);
  std::set<std::string_view> expected;
  for (const TensorRow& row : rows) {
    const TensorSpec& spec = row.spec;
    expected.insert(spec.name);
    if (quantisation.complains(row)) continue;
    const auto found = tensors.find(spec.name);
    if (found == tensors.end()) {
      missing.add(spec.name);
      continue;
    }
    const SafetensorsEntry& entry = *found->second.entry;
    const bool same_type =
        entry.dtype && (*entry.dtype == spec.dtype || (is_float(*entry.dtype) && is_float(spec.dtype)));
    if (!same_type || entry.shape != spec.shape)
      mismatched.add(strf("{} is {} {} and not {} {}", spec.name, entry.dtype_name, shape_string(entry.shape),
                          name_of(spec.dtype), shape_string(spec.shape)));
  }
  for (const auto& [name, found] : tensors)
    if (!expected.contains(name) && !is_optional_tensor(name) && !quantisation.accounts_for(name))
      unexpected.add(name);
  if (quantisation.empty() && missing.empty() && mismatched.empty() && unexpected.empty()) return Ok{};
  return corrupt(strf("the tensors of {} do not match its config.json{}{}{}{}", quoted(dir),
                      quantisation.text(), missing.text(), mismatched.text(), unexpected.text()));
}

// Counts bytes as workers get through them, and reports on the calling thread, which is worker 0.
class ReadProgress {
 public:
  ReadProgress(const ProgressFn& report, size_t total) : report_(report), total_(total) {}

  void advance(size_t bytes, int worker) {
    const size_t done = done_.fetch_add(bytes, std::memory_order_relaxed) + bytes;
    if (worker == 0 && report_) report_(done, total_);
  }
  void finish() const {
    if (report_) report_(total_, total_);
  }

 private:
  const ProgressFn& report_;
  size_t total_;
  std::atomic<size_t> done_{0};
};

bool is_left_out(const TensorRow& row, const CheckpointOptions& options) {
  return !options.vision && row.part == LedgerPart::kVision;
}

// What there is to read of a file: all of it but the tensors that are left out.
using Bytes = std::span<const std::byte>;
std::vector<Bytes> runs_of(const SafetensorsFile& file, std::vector<Bytes> left_out) {
  const Bytes all = file.mapping().bytes();
  std::erase_if(left_out, [&](Bytes tensor) {
    return tensor.data() < all.data() || tensor.data() >= all.data() + all.size();
  });
  std::ranges::sort(left_out, {}, [](Bytes tensor) { return tensor.data(); });
  std::vector<Bytes> runs;
  const std::byte* at = all.data();
  for (const Bytes tensor : left_out) {
    runs.emplace_back(at, tensor.data());
    at = tensor.data() + tensor.size();
  }
  runs.emplace_back(at, all.data() + all.size());
  return runs;
}

// `num_chunks`: of the files before, and then of this one, too. Readers take turns.
void prefault(ThreadPool& pool, const SafetensorsFile& file, const std::vector<Bytes>& runs,
              const CheckpointOptions& options, size_t& num_chunks, ReadProgress& progress) {
  const auto page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  for (const Bytes bytes : runs) {
    const size_t count = ceil_div(bytes.size(), kPrefaultChunk);
    pool.parallel_for(static_cast<int64_t>(count), [&](int64_t i, int worker) {
      const size_t begin = static_cast<size_t>(i) * kPrefaultChunk;
      const auto chunk = bytes.subspan(begin, std::min(kPrefaultChunk, bytes.size() - begin));
      const size_t reader = (num_chunks + static_cast<size_t>(i)) % static_cast<size_t>(options.num_readers);
      if (reader == static_cast<size_t>(options.reader)) {
        file.mapping().will_need(chunk);
        for (size_t at = 0; at < chunk.size(); at += page)
          static_cast<void>(*const_cast<const volatile std::byte*>(&chunk[at]));
      }
      progress.advance(chunk.size(), worker);
    });
    num_chunks += count;
  }
}

// A NaN among the weights would spread through the whole model without a word. `progress`: nullptr where the
// bytes have been counted already.
Status check_quantised(ThreadPool& pool, const std::vector<const TensorRow*>& rows,
                       const FoundTensors& tensors, ReadProgress* progress) {
  std::atomic<size_t> first_bad{SIZE_MAX};
  const auto check = [&](const TensorRow& row) -> Status {
    const auto bytes = tensors.at(row.spec.name).bytes();
    const int64_t columns = row.spec.shape[1];
    if (row.piece == TensorPiece::kValues) return check_codes(row.spec.name, bytes, columns);
    return check_scales(row.spec.name, bytes, columns, max_finite_scale(row.format));
  };
  pool.parallel_for(static_cast<int64_t>(rows.size()), [&](int64_t i, int worker) {
    const auto at = static_cast<size_t>(i);
    if (!check(*rows[at]).ok()) {
      size_t seen = first_bad.load();
      while (at < seen && !first_bad.compare_exchange_weak(seen, at)) {
      }
    }
    if (progress != nullptr) progress->advance(rows[at]->spec.bytes(), worker);
  });
  if (first_bad == SIZE_MAX) return Ok{};
  const TensorRow& bad = *rows[first_bad];
  return corrupt(strf("{}: {}", quoted(tensors.at(bad.spec.name).file->path()), check(bad).error().message));
}

Status read_through(const Shards& shards, const std::vector<TensorRow>& rows,
                    const CheckpointOptions& options) {
  size_t file_bytes = 0, checked_bytes = 0;
  for (const SafetensorsFile& file : shards.files) file_bytes += file.mapping().bytes().size();
  std::vector<Bytes> left_out;
  for (const TensorRow& row : rows)
    if (is_left_out(row, options)) left_out.push_back(shards.tensors.at(row.spec.name).bytes());
  for (const Bytes tensor : left_out) file_bytes -= tensor.size();
  // Beyond the size of the memory, each page read would push out another one.
  const size_t memory_bytes =
      static_cast<size_t>(::sysconf(_SC_PHYS_PAGES)) * static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  const bool reads_all = options.prefault && file_bytes <= memory_bytes;
  // Codes only where they are in memory by now. (A GPU looks at them as it takes them in; e2m1 has no NaN.)
  std::vector<const TensorRow*> checked;
  for (const TensorRow& row : rows) {
    const bool has_nans =
        (options.check_scales && row.piece == TensorPiece::kScales) ||
        (reads_all && row.piece == TensorPiece::kValues && row.format == MatrixFormat::kMxfp8);
    if (!has_nans) continue;
    checked.push_back(&row);
    checked_bytes += row.spec.bytes();
  }
  ReadProgress progress(options.progress, reads_all ? file_bytes : checked_bytes);
  ThreadPool pool(ThreadPool::default_size());
  size_t num_chunks = 0;
  for (const SafetensorsFile& file : shards.files)
    if (reads_all) prefault(pool, file, runs_of(file, left_out), options, num_chunks, progress);
  SPARROW_TRY(check_quantised(pool, checked, shards.tensors, reads_all ? nullptr : &progress));
  progress.finish();
  return Ok{};
}

Status read_kv_scales(const NameScheme& names, const FoundTensors& tensors, Weights& weights) {
  const auto scalar = [&](const std::string& name) -> std::optional<float> {
    const auto found = tensors.find(name);
    if (found == tensors.end()) return std::nullopt;
    const auto bytes = found->second.bytes();
    float value = NAN;  // any other type or size is no scale
    if (found->second.entry->dtype == DType::kF32 && bytes.size() == sizeof value)
      std::memcpy(&value, bytes.data(), sizeof value);
    return value;
  };
  for (size_t i = 0; i < weights.layers.size(); ++i)
    weights.layers[i].kv_scales = SPARROW_TRY(find_kv_scales(static_cast<int>(i), names, scalar));
  return Ok{};
}

}  // namespace

Result<ModelConfig> model_config(const std::filesystem::path& path, std::string_view overrides) {
  ModelConfig config = SPARROW_TRY(load_config(path, overrides));
  // What is wrong with these files is for those to say who need them.
  std::set<std::string> held;
  if (const auto index = read_index(path / kIndex); index.ok())
    for (const auto& [tensor, file] : index.value()) held.insert(tensor);
  else if (const auto single = SafetensorsFile::open(path / kSingle); single.ok())
    for (const auto& [tensor, entry] : single->header().entries) held.insert(tensor);
  config.names = detect_names(config, [&](const std::string& name) { return held.contains(name); });
  return config;
}

Result<Checkpoint> Checkpoint::open(const std::filesystem::path& dir, const CheckpointOptions& options) {
  Checkpoint checkpoint;
  checkpoint.config_ = SPARROW_TRY(load_config(dir, options.overrides));
  Shards shards = SPARROW_TRY(open_shards(dir));
  checkpoint.config_.names = detect_names(
      checkpoint.config_, [&](const std::string& name) { return shards.tensors.contains(name); });
  const std::vector<TensorRow> rows = tensor_table(checkpoint.config_);
  SPARROW_TRY(take_census(dir, rows, shards.tensors));
  SPARROW_TRY(read_through(shards, rows, options));

  const auto stored = [&](size_t row) -> StoredTensor {
    const Found& found = shards.tensors.at(rows[row].spec.name);
    return {found.bytes(), *found.entry->dtype, found.entry->shape};
  };
  checkpoint.weights_ = bind_weights(checkpoint.config_, rows, stored, checkpoint.copies_, options.vision);
  SPARROW_TRY(read_kv_scales(checkpoint.config_.names, shards.tensors, checkpoint.weights_));
  for (const TensorRow& row : rows) {
    if (is_left_out(row, options)) continue;
    ++checkpoint.num_tensors_;
    checkpoint.weight_bytes_ += shards.tensors.at(row.spec.name).bytes().size();
  }
  checkpoint.files_ = std::move(shards.files);
  return checkpoint;
}

}  // namespace sparrow
