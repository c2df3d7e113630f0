// SPDX-License-Identifier: Apache-2.0
#include "comm/shared/shared_memory.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <climits>
#include <cstring>

#include "base/strf.h"

namespace sparrow {
namespace {

static_assert(std::atomic<uint32_t>::is_always_lock_free && sizeof(std::atomic<uint32_t>) == 4);

constexpr int64_t kShortestNs = 500;

Error system_error(const char* what) {
  return {Errc::kIo, strf("shared memory, {}: {}", what, std::strerror(errno))};
}

// Shared between processes: not the private kind.
long futex(std::atomic<uint32_t>& word, int operation, uint32_t value, const timespec* time) {
  return syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), operation, value, time, nullptr, 0);
}

}  // namespace

Result<SharedMemory> SharedMemory::create(size_t bytes) {
  Fd fd(memfd_create("sparrow", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd) return system_error("memfd_create");
  if (ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0) return system_error("ftruncate");
  // Nobody can cut it while others read.
  if (fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0)
    return system_error("seals");
  return open(std::move(fd), bytes);
}

Result<SharedMemory> SharedMemory::open(Fd memory, size_t bytes) {
  struct stat info {};
  if (fstat(memory.get(), &info) != 0) return system_error("fstat");
  if (static_cast<size_t>(info.st_size) != bytes)
    return Error{Errc::kInvalidArgument,
                 strf("shared memory of {} bytes, and {} are expected", info.st_size, bytes)};
  void* const data =
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, memory.get(), 0);
  if (data == MAP_FAILED) return system_error("mmap");
  SharedMemory result;
  result.fd_ = std::move(memory);
  result.data_ = static_cast<std::byte*>(data);
  result.bytes_ = bytes;
  return result;
}

SharedMemory::SharedMemory(SharedMemory&& other) noexcept
    : fd_(std::move(other.fd_)), data_(std::exchange(other.data_, nullptr)), bytes_(other.bytes_) {}

SharedMemory& SharedMemory::operator=(SharedMemory&& other) noexcept {
  std::swap(fd_, other.fd_);
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

SharedMemory::~SharedMemory() {
  if (data_ != nullptr) munmap(data_, bytes_);
}

void SharedWord::set(uint32_t next) {
  value.store(next, std::memory_order_seq_cst);
  wake();
}

void SharedWord::add(uint32_t more) {
  value.fetch_add(more, std::memory_order_seq_cst);
  wake();
}

void SharedWord::wake() {
  if (sleepers.load(std::memory_order_seq_cst) != 0) futex(value, FUTEX_WAKE, INT_MAX, nullptr);
}

bool Patience::learn(bool in_time) {
  ns_ = std::clamp(in_time ? ns_ * 2 : ns_ / 2, kShortestNs, std::max(kShortestNs, longest_ns_));
  return true;
}

int64_t Patience::now_ns() {
  return std::chrono::steady_clock::now().time_since_epoch().count();
}

void Patience::pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

void Patience::sleep(SharedWord& word, uint32_t seen) {
  const timespec time{.tv_sec = 0, .tv_nsec = 100'000'000};
  word.sleepers.fetch_add(1, std::memory_order_seq_cst);
  futex(word.value, FUTEX_WAIT, seen, &time);  // returns at once where the value has changed
  word.sleepers.fetch_sub(1, std::memory_order_seq_cst);
}

}  // namespace sparrow
