// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <system_error>
#include <utility>

#include "base/json/json.h"
#include "checkpoint/safetensors.h"

namespace sparrow {
namespace {

// Mapped data is then as aligned as the widest load wants it.
constexpr size_t kDataAlignment = 64;

Error io_error(std::string_view action, const std::filesystem::path& path, int error) {
  return {Errc::kIo, strf("cannot {} {}: {}", action, quoted(path), std::generic_category().message(error))};
}

Status write_all(int fd, const std::filesystem::path& path, std::span<const std::byte> bytes, size_t offset) {
  while (!bytes.empty()) {
    const ssize_t n = ::pwrite(fd, bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return io_error("write", path, errno);
    bytes = bytes.subspan(static_cast<size_t>(n));
    offset += static_cast<size_t>(n);
  }
  return Ok{};
}

// The length, the JSON and as many spaces as the alignment of the data asks for.
std::string header_text(const std::vector<TensorSpec>& specs,
                        const std::map<std::string, std::string>& metadata) {
  std::string json = "{";
  if (!metadata.empty()) {
    json += "\"__metadata__\":{";
    for (const auto& [key, value] : metadata)
      json += strf("{}{}:{}", json.back() == '{' ? "" : ",", json_quoted(key), json_quoted(value));
    json += "}";
  }
  size_t offset = 0;
  for (const TensorSpec& spec : specs) {
    json += strf("{}{}:{{\"dtype\":\"{}\",\"shape\":{},\"data_offsets\":[{},{}]}}",
                 json.back() == '{' ? "" : ",", json_quoted(spec.name), name_of(spec.dtype),
                 shape_string(spec.shape), offset, offset + spec.bytes());
    offset += spec.bytes();
  }
  json += "}";
  const size_t unpadded = sizeof(uint64_t) + json.size();
  json.append((kDataAlignment - unpadded % kDataAlignment) % kDataAlignment, ' ');
  const uint64_t length = json.size();
  std::string header(sizeof(length), '\0');
  std::memcpy(header.data(), &length, sizeof(length));
  return header + json;
}

}  // namespace

int64_t TensorSpec::numel() const {
  int64_t n = 1;
  for (const int64_t extent : shape) n *= extent;
  return n;
}

Result<SafetensorsWriter> SafetensorsWriter::create(const std::filesystem::path& path,
                                                    std::vector<TensorSpec> specs,
                                                    const std::map<std::string, std::string>& metadata) {
  const std::string header = header_text(specs, metadata);
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (fd < 0) return io_error("create", path, errno);
  SafetensorsWriter writer(path, fd, std::move(specs));
  for (const TensorSpec& spec : writer.specs_) {
    writer.begins_.push_back(header.size() + writer.data_bytes_);
    writer.data_bytes_ += spec.bytes();
  }
  const auto file_bytes = static_cast<off_t>(header.size() + writer.data_bytes_);
  // Not every file system can reserve; those find out while writing.
  if (::fallocate(fd, 0, 0, file_bytes) != 0 && (errno == ENOSPC || errno == EFBIG))
    return io_error(strf("reserve {} bytes for", file_bytes), path, errno);
  SPARROW_TRY(write_all(fd, path, std::as_bytes(std::span(header)), 0));
  return writer;
}

SafetensorsWriter::SafetensorsWriter(std::filesystem::path path, int fd, std::vector<TensorSpec> specs)
    : path_(std::move(path)), fd_(fd), specs_(std::move(specs)) {}

SafetensorsWriter::SafetensorsWriter(SafetensorsWriter&& other) noexcept
    : path_(std::move(other.path_)),
      fd_(std::exchange(other.fd_, -1)),
      specs_(std::move(other.specs_)),
      begins_(std::move(other.begins_)),
      data_bytes_(other.data_bytes_),
      written_(other.written_.load()) {}

SafetensorsWriter::~SafetensorsWriter() {
  if (fd_ >= 0) ::close(fd_);
}

Status SafetensorsWriter::write(size_t index, std::span<const std::byte> bytes, size_t offset) {
  SPARROW_CHECK_LT(index, specs_.size());
  SPARROW_CHECK_LE(offset + bytes.size(), specs_[index].bytes());
  SPARROW_TRY(write_all(fd_, path_, bytes, begins_[index] + offset));
  written_ += bytes.size();
  return Ok{};
}

Status SafetensorsWriter::finish() {
  SPARROW_CHECK(fd_ >= 0);
  if (written_ != data_bytes_)
    return Error{Errc::kIo, strf("{} is incomplete: {} of {} bytes written", quoted(path_), written_.load(),
                                 data_bytes_)};
  // Some file systems report a full disk only here.
  if (::close(std::exchange(fd_, -1)) != 0) return io_error("write", path_, errno);
  return Ok{};
}

}  // namespace sparrow
