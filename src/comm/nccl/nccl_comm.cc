// SPDX-License-Identifier: Apache-2.0
#include "comm/nccl/nccl_comm.h"

#include <thread>
#include <utility>

#include "base/check.h"

namespace sparrow {
namespace {

// Of what is summed; everything else moves as bytes.
nccl::Type type_of(const Tensor& x) {
  return x.dtype == DType::kF32 ? nccl::kF32 : nccl::kBf16;
}

void check_dense(const Tensor& x) {
  SPARROW_CHECK(x.numel() == 0 || x.row_stride == x.numel() / x.shape[0]);
}

void check_summed(const Tensor& x) {
  check_dense(x);
  SPARROW_CHECK(x.dtype == DType::kF32 || x.dtype == DType::kBF16);
}

Error told_to_give_up() {
  return {Errc::kStopped, "NCCL was told to give up"};
}

std::byte* row_at(const Tensor& x, int64_t row) {
  return static_cast<std::byte*>(x.data) + row * x.row_stride * static_cast<int64_t>(size_of(x.dtype));
}

}  // namespace

Result<std::unique_ptr<NcclComm>> NcclComm::create(std::shared_ptr<const NcclLibrary> library,
                                                   const nccl::UniqueId& id, int rank, int size, void* stream,
                                                   std::chrono::milliseconds patience) {
  auto comm = std::unique_ptr<NcclComm>(new NcclComm(std::move(library), rank, size, stream, patience));
  nccl::Config config;
  config.blocking = 0;
  const Status made = comm->finish(comm->library_->CommInitRankConfig(&comm->comm_, size, id, rank, &config));
  if (made.ok()) return comm;
  comm->abort();
  return made.error();
}

Result<std::unique_ptr<NcclComm>> NcclComm::split(int color, int key, int rank, int size) {
  auto comm = std::unique_ptr<NcclComm>(new NcclComm(library_, rank, size, stream_, patience_));
  nccl::Config config;
  config.blocking = 0;
  Status made = finish(library_->CommSplit(comm_, color, key, &comm->comm_, &config));
  if (!made.ok())
    abort();  // it is still under way here
  else if (made = comm->finish(nccl::kSuccess); made.ok())
    return comm;
  // Destroying what is under way would wait for ranks that never come.
  comm->abort();
  return made.error();
}

NcclComm::~NcclComm() {
  // After a failure it would wait for ranks that are gone.
  if (comm_ != nullptr && !failed()) library_->CommDestroy(comm_);
}

Status NcclComm::finish(int code) const {
  const auto deadline = std::chrono::steady_clock::now() + patience_;
  // An exchange is enqueued within microseconds; ranks that come together take longer.
  constexpr int kBusyPolls = 200;
  for (int polls = 0; comm_ != nullptr && (code == nccl::kSuccess || code == nccl::kInProgress); ++polls) {
    if (aborted_) return told_to_give_up();
    if (const int asked = library_->CommGetAsyncError(comm_, &code); asked != nccl::kSuccess) code = asked;
    if (code == nccl::kSuccess) return Ok{};
    if (code == nccl::kInProgress && std::chrono::steady_clock::now() > deadline)
      return Error{Errc::kIo, strf("rank {} of {}: NCCL {} heard nothing of some rank for {} ms", rank_,
                                   size_, library_->version(), patience_.count())};
    if (polls < kBusyPolls)
      std::this_thread::yield();
    else
      std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
  return error(code);
}

Error NcclComm::error(int code) const {
  return {Errc::kIo,
          strf("rank {} of {}: NCCL {}: {}", rank_, size_, library_->version(), library_->describe(code))};
}

void NcclComm::fail(Error failure) const {
  const std::lock_guard lock(mutex_);
  if (!failure_) failure_ = std::move(failure);
  failed_ = true;
}

void NcclComm::check(int code) {
  if (code == nccl::kSuccess) return;
  if (Status done = finish(code); !done.ok()) fail(done.error());
}

template <typename Body>
void NcclComm::call(const Body& body) {
  const std::lock_guard lock(calls_);
  if (!failed_) check(body());
}

template <typename Body>
void NcclComm::grouped(const Body& body) {
  call([&] {
    check(library_->GroupStart());
    body();
    return library_->GroupEnd();
  });
}

void NcclComm::all_reduce(const Tensor& x) {
  check_summed(x);
  call([&] {
    return library_->AllReduce(x.data, x.data, static_cast<size_t>(x.numel()), type_of(x), nccl::kSum, comm_,
                               stream_);
  });
}

void NcclComm::reduce_scatter_rows(const Tensor& x, std::span<const int64_t> rows, const Tensor& mine) {
  check_summed(x);
  check_summed(mine);
  grouped([&] {
    int64_t first = 0;
    for (int r = 0; r < size_; first += rows[static_cast<size_t>(r++)])
      if (const int64_t count = rows[static_cast<size_t>(r)] * x.row_stride; count > 0)
        library_->Reduce(row_at(x, first), mine.data, static_cast<size_t>(count), type_of(x), nccl::kSum, r,
                         comm_, stream_);
  });
}

void NcclComm::all_gather_rows(const Tensor& mine, std::span<const int64_t> rows, const Tensor& all) {
  check_dense(mine);
  check_dense(all);
  const auto row_bytes = static_cast<size_t>(all.row_stride) * size_of(all.dtype);
  grouped([&] {
    int64_t first = 0;
    for (int r = 0; r < size_; first += rows[static_cast<size_t>(r++)])
      if (const auto bytes = static_cast<size_t>(rows[static_cast<size_t>(r)]) * row_bytes; bytes > 0)
        library_->Broadcast(r == rank_ ? mine.data : row_at(all, first), row_at(all, first), bytes,
                            nccl::kInt8, r, comm_, stream_);
  });
}

void NcclComm::gather(const Tensor& x, int root, const Tensor& all) {
  check_dense(x);
  const auto bytes = static_cast<size_t>(x.numel()) * size_of(x.dtype);
  grouped([&] {
    library_->Send(x.data, bytes, nccl::kInt8, root, comm_, stream_);
    for (int r = 0; r < size_ && rank_ == root; ++r)
      library_->Recv(static_cast<std::byte*>(all.data) + static_cast<size_t>(r) * bytes, bytes, nccl::kInt8,
                     r, comm_, stream_);
  });
}

void NcclComm::broadcast(const Tensor& x, int root) {
  check_dense(x);
  call([&] {
    return library_->Broadcast(x.data, x.data, static_cast<size_t>(x.numel()) * size_of(x.dtype), nccl::kInt8,
                               root, comm_, stream_);
  });
}

void NcclComm::exchange(std::span<const Message> sends, std::span<const Message> receives) {
  grouped([&] {
    for (const Message& m : sends)
      if (m.bytes > 0) library_->Send(m.data, m.bytes, nccl::kInt8, m.rank, comm_, stream_);
    for (const Message& m : receives)
      if (m.bytes > 0) library_->Recv(m.data, m.bytes, nccl::kInt8, m.rank, comm_, stream_);
  });
}

void NcclComm::give_up() {
  aborted_ = true;
  fail(told_to_give_up());
}

void NcclComm::abort() {
  if (aborted_.exchange(true) || comm_ == nullptr) return;
  fail(told_to_give_up());
  // Whoever is in a call leaves it now, if NCCL lets him: what is aborted is gone.
  constexpr int kTries = 100;
  std::unique_lock lock(calls_, std::defer_lock);
  for (int i = 0; i < kTries && !lock.try_lock(); ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  std::thread([library = library_, comm = comm_] { library->CommAbort(comm); }).detach();
}

std::optional<Error> NcclComm::failure() const {
  if (!failed_) {
    // Whoever is in a call asks itself.
    const std::unique_lock lock(calls_, std::try_to_lock);
    if (!lock || aborted_) return std::nullopt;
    int code = nccl::kSuccess;
    const int asked = library_->CommGetAsyncError(comm_, &code);
    if (asked == nccl::kSuccess && (code == nccl::kSuccess || code == nccl::kInProgress)) return std::nullopt;
    fail(error(asked != nccl::kSuccess ? asked : code));
  }
  const std::lock_guard lock(mutex_);
  return failure_;
}

}  // namespace sparrow
