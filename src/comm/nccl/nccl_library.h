// SPDX-License-Identifier: Apache-2.0
// NcclLibrary: NVIDIA's collectives, opened at run time: a program runs without them, and may be given a
// newer version than it was built beside. What is declared here is NCCL's C interface as of 2.28, which later
// versions keep.
#pragma once

#include <climits>
#include <cstddef>
#include <string>

#include "base/result.h"

namespace sparrow {

namespace nccl {

struct Comm;  // theirs
struct UniqueId {
  char bytes[128];
};
// ncclResult_t and ncclDataType_t, as far as they are looked at.
enum Code : int { kSuccess = 0, kInProgress = 7 };
enum Type : int { kInt8 = 0, kF32 = 7, kBf16 = 9 };
inline constexpr int kSum = 0;

// ncclConfig_t of 2.28: its size tells which fields there are.
struct Config {
  size_t size = sizeof(Config);
  unsigned magic = 0xcafebeef, version = 22800;
  int blocking = INT_MIN, cga_cluster_size = INT_MIN, min_ctas = INT_MIN, max_ctas = INT_MIN;
  const char* net_name = nullptr;
  int split_share = INT_MIN, traffic_class = INT_MIN;
  const char* comm_name = nullptr;
  int collnet = INT_MIN, cta_policy = INT_MIN, shrink_share = INT_MIN, nvls_ctas = INT_MIN,
      channels_per_net_peer = INT_MIN, nvlink_centric = INT_MIN;
};

}  // namespace nccl

// Name without ncclXxx's prefix, and its arguments.
#define SPARROW_NCCL_FUNCTIONS(X)                                                \
  X(GetVersion, (int*))                                                          \
  X(GetUniqueId, (nccl::UniqueId*))                                              \
  X(CommInitRankConfig, (nccl::Comm**, int, nccl::UniqueId, int, nccl::Config*)) \
  X(CommSplit, (nccl::Comm*, int, int, nccl::Comm**, nccl::Config*))             \
  X(CommDestroy, (nccl::Comm*))                                                  \
  X(CommAbort, (nccl::Comm*))                                                    \
  X(CommGetAsyncError, (nccl::Comm*, int*))                                      \
  X(AllReduce, (const void*, void*, size_t, int, int, nccl::Comm*, void*))       \
  X(Reduce, (const void*, void*, size_t, int, int, int, nccl::Comm*, void*))     \
  X(Broadcast, (const void*, void*, size_t, int, int, nccl::Comm*, void*))       \
  X(Send, (const void*, size_t, int, int, nccl::Comm*, void*))                   \
  X(Recv, (void*, size_t, int, int, nccl::Comm*, void*))                         \
  X(GroupStart, ())                                                              \
  X(GroupEnd, ())

// What ranks are to do with it: some versions cannot.
struct NcclNeeds {
  bool several_nodes = false;
  bool shared_gpu = false;  // several ranks on one
};

class NcclLibrary {
 public:
  // Error, in a line: it is missing, too old for that, or not what its name says.
  static Result<NcclLibrary> open(const NcclNeeds& needs, const char* path = "libnccl.so.2");

  std::string version() const { return name_of(version_); }
  static std::string name_of(int version);  // 22809: "2.28.9"
  // What a code that is no success means, in the library's words.
  std::string describe(int code) const { return GetErrorString(code); }

// NOLINTBEGIN(bugprone-macro-parentheses, readability-identifier-naming): theirs
#define SPARROW_NCCL_DECLARE(name, arguments) int(*name) arguments = nullptr;
  SPARROW_NCCL_FUNCTIONS(SPARROW_NCCL_DECLARE)
#undef SPARROW_NCCL_DECLARE
  const char* (*GetErrorString)(int) = nullptr;
  // NOLINTEND(bugprone-macro-parentheses, readability-identifier-naming)

 private:
  int version_ = 0;  // 22809
};

}  // namespace sparrow
