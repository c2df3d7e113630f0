// SPDX-License-Identifier: Apache-2.0
#include "base/files/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <system_error>
#include <utility>

#include "base/files/mapped_fault.h"

namespace sparrow {
namespace {

// errno's text without strerror's shared buffer.
std::string system_message(int error) {
  return std::generic_category().message(error);
}

// An open descriptor that closes itself.
struct Descriptor {
  explicit Descriptor(int fd) : fd(fd) {}
  ~Descriptor() {
    if (fd >= 0) ::close(fd);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int fd;
};

// Opens without waiting: a pipe would wait for somebody to write into it. Regular files do not care.
int open_to_read(const std::filesystem::path& path) {
  return ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
}

// The size of a regular file; a folder, a pipe or a device is an error.
Result<size_t> size_of_file(int fd, const std::filesystem::path& path) {
  struct stat info;
  if (::fstat(fd, &info) != 0)
    return Error{Errc::kIo, strf("cannot read {}: {}", quoted(path), system_message(errno))};
  if (!S_ISREG(info.st_mode)) return Error{Errc::kIo, strf("{} is not a regular file", quoted(path))};
  return static_cast<size_t>(info.st_size);
}

Error cannot_open(const std::filesystem::path& path, int error) {
  return {error == ENOENT || error == ENOTDIR ? Errc::kNotFound : Errc::kIo,
          strf("cannot open {}: {}", quoted(path), system_message(error))};
}

}  // namespace

std::string quoted(const std::filesystem::path& path) {
  return strf("'{}'", path.string());
}

std::string folder_name(const std::filesystem::path& dir) {
  return (dir.has_filename() ? dir : dir.parent_path()).filename().string();
}

Result<MappedFile> MappedFile::open(const std::filesystem::path& path) {
  const Descriptor file(open_to_read(path));
  if (file.fd < 0) return cannot_open(path, errno);
  const size_t size = SPARROW_TRY(size_of_file(file.fd, path));
  if (size == 0) return MappedFile();
  void* const data = ::mmap(nullptr, size, PROT_READ, MAP_SHARED, file.fd, 0);
  if (data == MAP_FAILED)
    return Error{Errc::kIo, strf("cannot map {} ({} bytes): {}", quoted(path), size, system_message(errno))};
  add_mapping(data, size, quoted(path));
  return MappedFile(static_cast<const std::byte*>(data), size);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

MappedFile::~MappedFile() {
  if (data_ == nullptr) return;
  remove_mapping(data_);
  ::munmap(const_cast<std::byte*>(data_), size_);
}

void MappedFile::will_need(std::span<const std::byte> part) const {
  if (part.empty()) return;
  // Advice takes whole pages; the mapping starts on one.
  const auto page = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
  const uintptr_t into_page = reinterpret_cast<uintptr_t>(part.data()) % page;
  ::madvise(const_cast<std::byte*>(part.data()) - into_page, part.size() + into_page, MADV_WILLNEED);
}

void MappedFile::release() const {
  if (data_ != nullptr) ::madvise(const_cast<std::byte*>(data_), size_, MADV_DONTNEED);
}

Result<std::string> read_text_file(const std::filesystem::path& path, size_t limit_bytes) {
  const Descriptor file(open_to_read(path));
  if (file.fd < 0) return cannot_open(path, errno);
  const size_t size = SPARROW_TRY(size_of_file(file.fd, path));
  if (size > limit_bytes)
    return Error{Errc::kCorrupt,
                 strf("{} is {} bytes long; at most {} are allowed", quoted(path), size, limit_bytes)};
  std::string text(size, '\0');
  size_t done = 0;
  while (done < size) {
    const ssize_t n = ::read(file.fd, text.data() + done, size - done);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return Error{Errc::kIo, strf("cannot read {}: {}", quoted(path), system_message(errno))};
    if (n == 0) break;
    done += static_cast<size_t>(n);
  }
  text.resize(done);
  return text;
}

Status write_text_file(const std::filesystem::path& path, std::string_view text) {
  Descriptor file(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
  const auto failed = [&] {
    return Error{Errc::kIo, strf("cannot write {}: {}", quoted(path), system_message(errno))};
  };
  if (file.fd < 0) return failed();
  while (!text.empty()) {
    const ssize_t n = ::write(file.fd, text.data(), text.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return failed();
    text.remove_prefix(static_cast<size_t>(n));
  }
  if (::close(std::exchange(file.fd, -1)) != 0) return failed();
  return Ok{};
}

}  // namespace sparrow
