// SPDX-License-Identifier: Apache-2.0
// A library that passes for NCCL, of the version FAKE_VERSION, and does nothing but note what it is asked
// for. FAKE_WITHOUT_SPLIT leaves a function out. What it answers is set in the variables
// below.
#include <atomic>
#include <chrono>
#include <cstring>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

#include "comm/nccl/nccl_library.h"

namespace {

std::mutex mutex;
std::string calls;

void note(const std::string& call) {
  const std::lock_guard lock(mutex);
  calls += call + ";";
}

}  // namespace

namespace nccl = sparrow::nccl;

extern "C" {

std::atomic<int> fake_nccl_in_progress = 0;  // answers of CommGetAsyncError that say so
std::atomic<int> fake_nccl_error = 0;        // what it says after those
std::atomic<bool> fake_nccl_abort_hangs = false;

const char* fake_nccl_calls() {
  const std::lock_guard lock(mutex);
  static std::string copy;
  copy = std::exchange(calls, "");
  return copy.c_str();
}

int ncclGetVersion(int* version) {
  *version = FAKE_VERSION;
  return 0;
}
const char* ncclGetErrorString(int code) {
  return code == 6 ? "remote process exited" : "some error";
}
int ncclGetUniqueId(nccl::UniqueId* id) {
  std::memset(id, 7, sizeof(*id));
  return 0;
}
int ncclCommInitRankConfig(nccl::Comm** comm, int size, nccl::UniqueId id, int rank, nccl::Config* config) {
  *comm = reinterpret_cast<nccl::Comm*>(0x1000);
  note("init " + std::to_string(rank) + "/" + std::to_string(size) + " id " + std::to_string(id.bytes[5]) +
       " blocking " + std::to_string(config->blocking));
  return nccl::kInProgress;
}
#ifndef FAKE_WITHOUT_SPLIT
int ncclCommSplit(nccl::Comm*, int color, int key, nccl::Comm** comm, nccl::Config*) {
  *comm = reinterpret_cast<nccl::Comm*>(0x2000);
  note("split " + std::to_string(color) + " " + std::to_string(key));
  return nccl::kInProgress;
}
#endif
int ncclCommDestroy(nccl::Comm*) {
  note("destroy");
  return 0;
}
int ncclCommAbort(nccl::Comm*) {
  note("abort");
  while (fake_nccl_abort_hangs) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  return 0;
}
int ncclCommGetAsyncError(nccl::Comm*, int* code) {
  *code = fake_nccl_in_progress > 0 ? static_cast<int>(nccl::kInProgress) : fake_nccl_error.load();
  if (fake_nccl_in_progress > 0) --fake_nccl_in_progress;
  return 0;
}
int ncclAllReduce(const void*, void*, size_t count, int type, int, nccl::Comm*, void*) {
  note("all_reduce " + std::to_string(count) + " of " + std::to_string(type));
  return nccl::kInProgress;
}
int ncclReduce(const void*, void*, size_t count, int, int, int root, nccl::Comm*, void*) {
  note("reduce " + std::to_string(count) + " to " + std::to_string(root));
  return 0;
}
int ncclBroadcast(const void* from, void* to, size_t bytes, int, int root, nccl::Comm*, void*) {
  note("broadcast " + std::to_string(bytes) + " from " + std::to_string(root) +
       (from == to ? " in place" : ""));
  return 0;
}
int ncclSend(const void*, size_t bytes, int, int peer, nccl::Comm*, void*) {
  note("send " + std::to_string(bytes) + " to " + std::to_string(peer));
  return 0;
}
int ncclRecv(void*, size_t bytes, int, int peer, nccl::Comm*, void*) {
  note("receive " + std::to_string(bytes) + " from " + std::to_string(peer));
  return 0;
}
int ncclGroupStart() {
  note("{");
  return 0;
}
int ncclGroupEnd() {
  note("}");
  return 0;
}

}  // extern "C"
