// SPDX-License-Identifier: Apache-2.0
// MappedFile: a whole file in memory, read-only and shared with the page cache. Views of it die with it.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

#include "base/result.h"

namespace sparrow {

class MappedFile {
 public:
  // An empty file maps to an empty span.
  static Result<MappedFile> open(const std::filesystem::path& path);

  MappedFile() = default;
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  ~MappedFile();

  std::span<const std::byte> bytes() const { return {data_, size_}; }

  // Asks the system to start reading the pages of `part`, a piece of bytes(), ahead of use.
  void will_need(std::span<const std::byte> part) const;
  // Gives the memory of its pages back; they are read again if they are used again.
  void release() const;

 private:
  MappedFile(const std::byte* data, size_t size) : data_(data), size_(size) {}

  const std::byte* data_ = nullptr;
  size_t size_ = 0;
};

// The text of a small file; a file larger than `limit_bytes` is an error.
Result<std::string> read_text_file(const std::filesystem::path& path, size_t limit_bytes);

// Creates or replaces the file.
Status write_text_file(const std::filesystem::path& path, std::string_view text);

// What a person calls the file in messages.
std::string quoted(const std::filesystem::path& path);
// The last name in a folder's path, whether or not a slash follows it.
std::string folder_name(const std::filesystem::path& dir);

}  // namespace sparrow
