// SPDX-License-Identifier: Apache-2.0
#include "comm/cuda/peer_memory.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <map>
#include <random>
#include <string>

#include "base/check.h"
#include "device/cuda/check.h"

namespace sparrow {
namespace {

// What travels to the other ranks. They run the same program on the same machine. Within a process, which
// the random number tells, addresses are as good as a handle, and CUDA opens none.
struct Handle {
  cudaIpcMemHandle_t memory;
  cudaUUID_t gpu;
  uint64_t bytes, process;
  std::byte* address;
  PeerMemory::Turn* turn;
};

uint64_t number_of_this_process() {
  static const uint64_t number = [] {
    std::random_device random;
    return uint64_t{random()} << 32 | random();
  }();
  return number;
}

Result<cudaUUID_t> gpu_of_this_thread() {
  int device = 0;
  cudaDeviceProp properties{};
  cudaError_t error = cudaGetDevice(&device);
  if (error == cudaSuccess) error = cudaGetDeviceProperties(&properties, device);
  if (error != cudaSuccess) return Error{Errc::kIo, strf("no GPU: {}", cudaGetErrorString(error))};
  return properties.uuid;
}

}  // namespace

Result<std::unique_ptr<PeerMemory>> PeerMemory::create(int rank, int size, size_t bytes) {
  SPARROW_CHECK(rank >= 0 && rank < size && bytes % kPage == 0);
  auto peers = std::unique_ptr<PeerMemory>(new PeerMemory(rank, size));
  peers->mine_ = SPARROW_TRY(DeviceBuffer::allocate(bytes));
  peers->memory_[static_cast<size_t>(rank)] = peers->mine_.data();
  SPARROW_CUDA(cudaMemset(peers->mine_.data(), 0, peers->mine_.bytes()));
  peers->host_report_ = SPARROW_TRY(PinnedBuffer::allocate(sizeof(uint32_t)));
  *peers->host_report_.as<uint32_t>() = 0;
  void* report = nullptr;
  SPARROW_CUDA(cudaHostGetDevicePointer(&report, peers->host_report_.data(), 0));
  peers->report_ = static_cast<uint32_t*>(report);
  SPARROW_CUDA(cudaDeviceSynchronize());
  return peers;
}

PeerMemory::~PeerMemory() {
  // A peer that is gone may have taken its memory along: what CUDA says here helps nobody.
  for (std::byte* const memory : opened_) cudaIpcCloseMemHandle(memory);
  cudaGetLastError();
}

Result<Bytes> PeerMemory::handle() const {
  Handle handle{.gpu = SPARROW_TRY(gpu_of_this_thread()),
                .bytes = mine_.bytes(),
                .process = number_of_this_process(),
                .address = mine_.data(),
                .turn = const_cast<Turn*>(&turn_of_all_)};
  SPARROW_CUDA(cudaDeviceSynchronize());
  if (const cudaError_t error = cudaIpcGetMemHandle(&handle.memory, mine_.data()); error != cudaSuccess) {
    cudaGetLastError();
    return Error{Errc::kUnsupported, strf("this GPU's memory cannot be shared with other processes ({})",
                                          cudaGetErrorString(error))};
  }
  const auto* const bytes = reinterpret_cast<const std::byte*>(&handle);
  return Bytes(bytes, bytes + sizeof(handle));
}

Status PeerMemory::open(std::span<const Bytes> handles) {
  SPARROW_CHECK(handles.size() == memory_.size());
  const cudaUUID_t gpu = SPARROW_TRY(gpu_of_this_thread());
  std::map<std::string, int> ranks_of_gpu;
  for (int r = 0; r < size(); ++r) {
    const Bytes& bytes = handles[static_cast<size_t>(r)];
    Handle handle{};
    if (bytes.size() != sizeof(handle))
      return Error{Errc::kInvalidArgument, strf("rank {} sent {} bytes as the handle of its memory, not {}",
                                                r, bytes.size(), sizeof(handle))};
    std::memcpy(&handle, bytes.data(), sizeof(handle));
    if (handle.bytes != mine_.bytes())
      return Error{Errc::kInvalidArgument, strf("rank {} shares {} bytes of GPU memory and rank {} {}", r,
                                                handle.bytes, rank_, mine_.bytes())};
    int& ranks = ranks_of_gpu[std::string(handle.gpu.bytes, sizeof(handle.gpu.bytes))];
    most_ranks_on_gpu_ = std::max(most_ranks_on_gpu_, ++ranks);
    if (r == rank_) continue;
    const bool is_here = handle.process == number_of_this_process();
    if (is_here) turn_ = rank_ == 0 ? &turn_of_all_ : r == 0 ? handle.turn : turn_;
    ranks_on_gpu_ += std::memcmp(&handle.gpu, &gpu, sizeof(gpu)) == 0;
    void* memory = handle.address;
    if (!is_here) {
      const cudaError_t error = cudaIpcOpenMemHandle(&memory, handle.memory, cudaIpcMemLazyEnablePeerAccess);
      if (error != cudaSuccess) {
        cudaGetLastError();
        return Error{Errc::kUnsupported,
                     strf("GPU memory of rank {} cannot be reached from rank {} ({}): the GPUs of a node "
                          "need peer access, as NVLink gives",
                          r, rank_, cudaGetErrorString(error))};
      }
      opened_.push_back(static_cast<std::byte*>(memory));
    }
    memory_[static_cast<size_t>(r)] = static_cast<std::byte*>(memory);
  }
  is_open_ = true;
  return Ok{};
}

void PeerMemory::begin_turn() const {
  std::unique_lock lock(turn_->mutex);
  turn_->passed.wait(lock, [&] { return turn_->rank == rank_; });
}

void PeerMemory::pass_turn(bool ends) const {
  {
    const std::lock_guard lock(turn_->mutex);
    uint32_t& ended = turn_->ended;
    if (ends) ended |= 1u << rank_;
    if (ended == (1u << size()) - 1) ended = 0, turn_->rank = size() - 1;  // the next round
    do turn_->rank = (turn_->rank + 1) % size();
    while ((ended >> turn_->rank & 1) != 0);
  }
  turn_->passed.notify_all();
}

void PeerMemory::end_turn() const {
  pass_turn(/*ends=*/true);
}

void PeerMemory::meet() const {
  pass_turn(/*ends=*/false);
  begin_turn();
}

std::optional<int> PeerMemory::missed_rank() const {
  const uint32_t word = std::atomic_ref(*host_report_.as<uint32_t>()).load(std::memory_order_relaxed);
  if (word == 0) return std::nullopt;
  return static_cast<int>(word) - 1;
}

}  // namespace sparrow
