// SPDX-License-Identifier: Apache-2.0
// A library that passes for NCCL between the threads of one process, each of which is a rank with memory of
// the host: messages arrive when both sides have called GroupEnd. It has no collectives. A rank whose peer
// has gone is told so after fake_nccl_lose().
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
};
thread_local std::vector<Operation> group;
thread_local bool in_group = false;

int add(const Operation& operation) {
  if (!in_group || operation.peer < 0 || operation.peer >= operation.comm->size) return kInvalidArgument;
  group.push_back(operation);
  return nccl::kSuccess;
}

int run(std::unique_lock<std::mutex>& lock, const Operation& op) {
  if (op.sends) {
    const char* const first = static_cast<const char*>(op.data);
    messages[{op.comm->key, op.comm->rank, op.peer}].emplace_back(first, first + op.bytes);
    arrived.notify_all();
    return nccl::kSuccess;
  }
  auto& queue = messages[{op.comm->key, op.peer, op.comm->rank}];
  arrived.wait(lock, [&] { return lost || !queue.empty(); });
  if (lost) return kRemoteError;
  const std::vector<char> message = std::move(queue.front());
  queue.pop_front();
  if (message.size() != op.bytes) return kInternalError;
  std::memcpy(op.data, message.data(), op.bytes);
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
int ncclSend(const void* data, size_t bytes, int, int peer, nccl::Comm* comm, void*) {
  return add({comm, true, peer, const_cast<void*>(data), bytes});
}
int ncclRecv(void* data, size_t bytes, int, int peer, nccl::Comm* comm, void*) {
  return add({comm, false, peer, data, bytes});
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
