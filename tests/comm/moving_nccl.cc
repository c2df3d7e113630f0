// SPDX-License-Identifier: Apache-2.0
// A library that passes for NCCL between the threads of one process, each of which is a rank with memory of
// the host or, FAKE_ON_GPU, of a GPU and with a stream of its own: messages arrive when both sides have
// called GroupEnd. It has no collectives. A rank whose peer has gone is told so after fake_nccl_lose().
#include <condition_variable>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "comm/nccl/nccl_library.h"
#ifdef FAKE_ON_GPU
#include <cuda_runtime_api.h>
#endif

namespace nccl = sparrow::nccl;

struct sparrow::nccl::Comm {
  std::string key;  // of those ranks that are in it
  int rank = 0, size = 1;
  int splits = 0;
};

namespace {

constexpr int kInternalError = 3, kInvalidArgument = 4, kRemoteError = 6;

std::mutex mutex;
std::condition_variable arrived;
std::map<std::tuple<std::string, int, int>, std::deque<std::vector<char>>> messages;  // by comm, from, to
bool lost = false;
int aborts = 0;
std::deque<nccl::Comm> comms;  // who gave one up may still be waited for in a call

nccl::Comm* keep(nccl::Comm comm) {
  const std::lock_guard lock(mutex);
  return &comms.emplace_back(std::move(comm));
}

struct Operation {
  nccl::Comm* comm;
  bool sends;
  int peer;
  void* data;
  size_t bytes;
  void* stream;
};
thread_local std::vector<Operation> group;
thread_local bool in_group = false;

int add(const Operation& operation) {
  if (!in_group || operation.peer < 0 || operation.peer >= operation.comm->size) return kInvalidArgument;
  group.push_back(operation);
  return nccl::kSuccess;
}

// What the stream does before comes first, and it goes on when the bytes are there.
void copy(void* to, const void* from, [[maybe_unused]] const Operation& op) {
#ifdef FAKE_ON_GPU
  const auto stream = static_cast<cudaStream_t>(op.stream);
  cudaMemcpyAsync(to, from, op.bytes, cudaMemcpyDefault, stream);
  cudaStreamSynchronize(stream);
#else
  std::memcpy(to, from, op.bytes);
#endif
}

int run(std::unique_lock<std::mutex>& lock, const Operation& op) {
  if (op.sends) {
    std::vector<char> message(op.bytes);
    copy(message.data(), op.data, op);
    messages[{op.comm->key, op.comm->rank, op.peer}].push_back(std::move(message));
    arrived.notify_all();
    return nccl::kSuccess;
  }
  auto& queue = messages[{op.comm->key, op.peer, op.comm->rank}];
  arrived.wait(lock, [&] { return lost || !queue.empty(); });
  if (lost) return kRemoteError;
  const std::vector<char> message = std::move(queue.front());
  queue.pop_front();
  if (message.size() != op.bytes) return kInternalError;
  copy(op.data, message.data(), op);
  return nccl::kSuccess;
}

}  // namespace

extern "C" {

void fake_nccl_lose(bool is_lost) {
  const std::lock_guard lock(mutex);
  lost = is_lost;
  if (!lost) messages.clear();
  arrived.notify_all();
}
// Messages that nobody has taken.
int fake_nccl_left() {
  const std::lock_guard lock(mutex);
  int left = 0;
  for (const auto& [key, queue] : messages) left += static_cast<int>(queue.size());
  return left;
}

// Communicators that were aborted.
int fake_nccl_aborts() {
  const std::lock_guard lock(mutex);
  return aborts;
}

int ncclGetVersion(int* version) {
  *version = FAKE_VERSION;
  return 0;
}
const char* ncclGetErrorString(int code) {
  return code == kRemoteError ? "remote process exited" : code == kInternalError ? "internal error" : "?";
}
int ncclGetUniqueId(nccl::UniqueId* id) {
  static int next = 0;
  std::memset(id, 0, sizeof(*id));
  const std::lock_guard lock(mutex);
  std::memcpy(id, &++next, sizeof(next));
  return 0;
}
int ncclCommInitRankConfig(nccl::Comm** comm, int size, nccl::UniqueId id, int rank, nccl::Config*) {
  *comm = keep({std::string(id.bytes, sizeof(id.bytes)), rank, size});
  return nccl::kInProgress;
}
// As we call it: keys are ranks, and the size is not looked at.
int ncclCommSplit(nccl::Comm* from, int color, int key, nccl::Comm** comm, nccl::Config*) {
  const int split = from->splits++;
  *comm = keep({from->key + "/" + std::to_string(split) + "." + std::to_string(color), key, from->size});
  return nccl::kInProgress;
}
int ncclCommDestroy(nccl::Comm*) {
  return 0;
}
int ncclCommAbort(nccl::Comm*) {
  const std::lock_guard lock(mutex);
  ++aborts;
  return 0;
}
int ncclCommGetAsyncError(nccl::Comm*, int* code) {
  const std::lock_guard lock(mutex);
  *code = lost ? kRemoteError : static_cast<int>(nccl::kSuccess);
  return 0;
}
int ncclAllReduce(const void*, void*, size_t, int, int, nccl::Comm*, void*) {
  return kInvalidArgument;
}
int ncclReduce(const void*, void*, size_t, int, int, int, nccl::Comm*, void*) {
  return kInvalidArgument;
}
int ncclBroadcast(const void*, void*, size_t, int, int, nccl::Comm*, void*) {
  return kInvalidArgument;
}
int ncclSend(const void* data, size_t bytes, int, int peer, nccl::Comm* comm, void* stream) {
  return add({comm, true, peer, const_cast<void*>(data), bytes, stream});
}
int ncclRecv(void* data, size_t bytes, int, int peer, nccl::Comm* comm, void* stream) {
  return add({comm, false, peer, data, bytes, stream});
}
int ncclGroupStart() {
  in_group = true;
  return 0;
}
int ncclGroupEnd() {
  in_group = false;
  const std::vector<Operation> operations = std::exchange(group, {});
  std::unique_lock lock(mutex);
  for (const bool sends : {true, false})
    for (const Operation& operation : operations)
      if (operation.sends == sends)
        if (const int code = run(lock, operation); code != nccl::kSuccess) return code;
  return nccl::kInProgress;
}

}  // extern "C"
