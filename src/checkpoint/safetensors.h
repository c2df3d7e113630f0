// SPDX-License-Identifier: Apache-2.0
// The safetensors format, read in place and written in parallel. Nothing in a file is trusted: a header that
// parses describes data that lies inside the file, without holes or overlaps.
#pragma once

#include <atomic>
#include <cstddef>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/files/mapped_file.h"
#include "base/result.h"
#include "base/tensor.h"

namespace sparrow {

struct SafetensorsEntry {
  std::string dtype_name;      // as the file spells it
  std::optional<DType> dtype;  // nullopt: a type this program does not compute with
  std::vector<int64_t> shape;
  size_t begin = 0, end = 0;  // bytes from the start of the file
};

struct SafetensorsHeader {
  std::map<std::string, SafetensorsEntry, std::less<>> entries;
  std::map<std::string, std::string, std::less<>> metadata;
};

// `file` is the whole file. Errors name the tensor.
Result<SafetensorsHeader> parse_safetensors_header(std::span<const std::byte> file);

// A contiguous view of at most Tensor::kMaxRank extents.
Tensor make_view(const std::byte* data, DType dtype, std::span<const int64_t> shape);

// "[128, 6144]"
std::string shape_string(std::span<const int64_t> shape);

class SafetensorsFile {
 public:
  static Result<SafetensorsFile> open(const std::filesystem::path& path);

  const std::filesystem::path& path() const { return path_; }
  const MappedFile& mapping() const { return file_; }
  const SafetensorsHeader& header() const { return header_; }

  const SafetensorsEntry* find(std::string_view name) const;
  std::span<const std::byte> bytes(const SafetensorsEntry& entry) const {
    return file_.bytes().subspan(entry.begin, entry.end - entry.begin);
  }
  // A view of the file. Error when the tensor is missing, has more than Tensor::kMaxRank extents, a type
  // without a DType, or does not lie at a multiple of its element's size.
  Result<Tensor> tensor(std::string_view name) const;

 private:
  std::filesystem::path path_;
  MappedFile file_;
  SafetensorsHeader header_;
};

struct TensorSpec {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;

  int64_t numel() const;
  size_t bytes() const { return static_cast<size_t>(numel()) * size_of(dtype); }
};

// Writes tensors in the order of their specs; the data starts at a multiple of 64 bytes. A file without
// finish() is left behind incomplete.
class SafetensorsWriter {
 public:
  // Reserves the disk space, so that a full disk shows before the work is done.
  static Result<SafetensorsWriter> create(const std::filesystem::path& path, std::vector<TensorSpec> specs,
                                          const std::map<std::string, std::string>& metadata = {});

  SafetensorsWriter(SafetensorsWriter&& other) noexcept;
  SafetensorsWriter& operator=(SafetensorsWriter&&) = delete;
  ~SafetensorsWriter();

  const std::vector<TensorSpec>& specs() const { return specs_; }

  // Stores bytes of the specs()[index] tensor from byte `offset` of it on. Threads may write different parts
  // at once.
  Status write(size_t index, std::span<const std::byte> bytes, size_t offset = 0);
  // Error unless every byte of every tensor was written.
  Status finish();

 private:
  SafetensorsWriter(std::filesystem::path path, int fd, std::vector<TensorSpec> specs);

  std::filesystem::path path_;
  int fd_;
  std::vector<TensorSpec> specs_;
  std::vector<size_t> begins_;  // byte of the file where each tensor starts
  size_t data_bytes_ = 0;
  std::atomic<size_t> written_{0};
};

}  // namespace sparrow
