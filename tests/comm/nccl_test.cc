// SPDX-License-Identifier: Apache-2.0
// NCCL is somebody else's library: what is asked of it, and what we say when it is missing, too old, or gives
// up. A library of our own stands in for it.
#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <string>
#include <thread>

#include "comm/nccl/nccl_comm.h"

namespace sparrow {
namespace {

using std::chrono::milliseconds;
using ::testing::HasSubstr;

std::string path_of(const std::string& name) {
  return std::string(SPARROW_FAKE_NCCL_DIR) + "/lib" + name + ".so";
}
std::string refusal(const NcclNeeds& needs, const std::string& name) {
  const auto library = NcclLibrary::open(needs, path_of(name).c_str());
  return library.ok() ? "none" : library.error().message;
}

TEST(NcclLibrary, SaysWhatToInstall) {
  EXPECT_THAT(refusal({}, "not_there"), HasSubstr("not_there.so was not found: install NCCL 2.28 or newer"));
  EXPECT_THAT(refusal({}, "fake_nccl_old"),
              HasSubstr("is NCCL 2.19.3: ranks of a node need 2.28.0 or newer"));
  EXPECT_THAT(refusal({}, "fake_nccl_without_split"), HasSubstr("has no ncclCommSplit"));
}

TEST(NcclLibrary, KnowsWhatAVersionCannotDo) {
  EXPECT_EQ(refusal({}, "fake_nccl"), "none");
  EXPECT_THAT(refusal({.several_nodes = true}, "fake_nccl"),
              HasSubstr("is NCCL 2.28.9: ranks on several nodes need 2.30.4 or newer"));
  EXPECT_THAT(refusal({.shared_gpu = true}, "fake_nccl"), HasSubstr("several ranks on one GPU need 2.30.4"));
  EXPECT_EQ(refusal({.several_nodes = true, .shared_gpu = true}, "fake_nccl_new"), "none");
}

class Nccl : public ::testing::Test {
 protected:
  template <typename T>
  T* symbol(const char* name) {
    return reinterpret_cast<T*>(dlsym(handle_, name));
  }
  std::string calls() { return symbol<const char*()>("fake_nccl_calls")(); }
  std::atomic<int>& in_progress() { return *symbol<std::atomic<int>>("fake_nccl_in_progress"); }
  std::atomic<int>& error() { return *symbol<std::atomic<int>>("fake_nccl_error"); }

  void SetUp() override {
    calls();
    in_progress() = error() = 0;
  }
  // A thread that aborts holds the library: the test does not end, and take the library away, before it.
  void TearDown() override {
    while (library_.use_count() > 1) std::this_thread::yield();
  }
  Result<std::unique_ptr<NcclComm>> make(int rank, int size, milliseconds patience = milliseconds(10'000)) {
    nccl::UniqueId id{};
    library_->GetUniqueId(&id);
    return NcclComm::create(library_, id, rank, size, nullptr, patience);
  }

  const std::string path_ = path_of("fake_nccl");
  void* const handle_ = dlopen(path_.c_str(), RTLD_NOW);
  const std::shared_ptr<const NcclLibrary> library_ =
      std::make_shared<NcclLibrary>(NcclLibrary::open({}, path_.c_str()).value());
};

TEST_F(Nccl, WaitsUntilAllRanksHaveCome) {
  in_progress() = 5;
  const auto comm = make(1, 4).value();
  EXPECT_EQ(in_progress(), 0);
  EXPECT_EQ(calls(), "init 1/4 id 7 blocking 0;");
  EXPECT_EQ(comm->rank(), 1);
  EXPECT_EQ(comm->split(1, 2, 0, 2).value()->size(), 2);
  EXPECT_THAT(calls(), HasSubstr("split 1 2;"));
}

TEST_F(Nccl, NamesARankThatDoesNotCome) {
  in_progress() = 1 << 30;
  EXPECT_THAT(make(1, 4, milliseconds(5)).error().message,
              HasSubstr("rank 1 of 4: NCCL 2.28.9 heard nothing of some rank for 5 ms"));
  std::string seen;
  while ((seen += calls()).find("abort;") == std::string::npos) std::this_thread::yield();
  EXPECT_EQ(seen.find("destroy"), std::string::npos);
  in_progress() = 0;
  error() = 6;
  EXPECT_THAT(make(1, 4).error().message, HasSubstr("remote process exited"));
}

TEST_F(Nccl, AGroupThatDoesNotComeTogetherIsNotWaitedForWhenItGoes) {
  auto comm = make(1, 4, milliseconds(5)).value();
  calls();
  in_progress() = 1 << 30;
  EXPECT_THAT(comm->split(0, 1, 1, 2).error().message, HasSubstr("heard nothing of some rank for 5 ms"));
  EXPECT_TRUE(comm->failed());
  comm.reset();
  std::string seen;
  while ((seen += calls()).find("abort;") == std::string::npos) std::this_thread::yield();
  EXPECT_EQ(seen.find("destroy"), std::string::npos);
  in_progress() = 0;
}

TEST_F(Nccl, AsksForWhatTheInterfacePromises) {
  const auto comm = make(1, 2).value();
  std::array<float, 64> memory{};
  const auto tensor = [&](int64_t rows, DType dtype) { return Tensor(memory.data(), dtype, {rows, 4}); };
  calls();
  comm->all_reduce(tensor(3, DType::kBF16));
  EXPECT_EQ(calls(), "all_reduce 12 of 9;");
  comm->reduce_scatter_rows(tensor(3, DType::kF32), std::array<int64_t, 2>{2, 1}, tensor(1, DType::kF32));
  EXPECT_EQ(calls(), "{;reduce 8 to 0;reduce 4 to 1;};");
  comm->all_gather_rows(tensor(0, DType::kF32), std::array<int64_t, 2>{3, 0}, tensor(3, DType::kF32));
  EXPECT_EQ(calls(), "{;broadcast 48 from 0 in place;};");
  comm->gather(tensor(2, DType::kF32), 0, {});
  EXPECT_EQ(calls(), "{;send 32 to 0;};");
  comm->gather(tensor(2, DType::kF32), 1, tensor(4, DType::kF32));
  EXPECT_EQ(calls(), "{;send 32 to 1;receive 32 from 0;receive 32 from 1;};");
  comm->broadcast(tensor(2, DType::kI32), 0);
  EXPECT_EQ(calls(), "broadcast 32 from 0 in place;");
}

TEST_F(Nccl, SeesThatAPeerIsGoneAndAsksForNothingMore) {
  const auto comm = make(0, 2).value();
  EXPECT_FALSE(comm->failed());
  error() = 6;
  EXPECT_TRUE(comm->failed());
  std::array<float, 4> memory{};
  comm->all_reduce(Tensor(memory.data(), DType::kF32, {1, 4}));
  error() = 0;
  EXPECT_TRUE(comm->failed());
  calls();
  comm->all_reduce(Tensor(memory.data(), DType::kF32, {1, 4}));
  EXPECT_EQ(calls(), "");
}

TEST_F(Nccl, NobodyWaitsForAnAbortThatDoesNotReturn) {
  auto& hangs = *symbol<std::atomic<bool>>("fake_nccl_abort_hangs");
  hangs = true;
  auto comm = make(0, 2).value();
  calls();
  comm->abort();
  EXPECT_TRUE(comm->failed());
  std::string seen;
  while ((seen += calls()).empty()) std::this_thread::yield();
  EXPECT_EQ(seen, "abort;");
  comm.reset();
  EXPECT_EQ(calls(), "");  // no destroy
  hangs = false;
}

}  // namespace
}  // namespace sparrow
