// SPDX-License-Identifier: Apache-2.0
// NcclComm: a Communicator over NCCL, for tensors on GPUs: dense ones, f32 or bf16 where they are summed.
// Sums have NCCL's order, which is the same on all ranks and from run to run, but depends on the size; where
// the order matters, rows are exchanged and our own kernels sum (model/exchange/).
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <optional>
#include <span>

#include "comm/communicator.h"
#include "comm/nccl/nccl_library.h"

namespace sparrow {

class NcclComm final : public Communicator {
 public:
  // All ranks of it, with the id that one of them asked the library for. `stream`: a cudaStream_t. Error:
  // NCCL's, or a rank did not come within the time.
  static Result<std::unique_ptr<NcclComm>> create(std::shared_ptr<const NcclLibrary> library,
                                                  const nccl::UniqueId& id, int rank, int size, void* stream,
                                                  std::chrono::milliseconds patience);
  ~NcclComm() override;
  // Those ranks that give the same colour, in the order of their keys. All ranks call it. Error: what was
  // split may be of no use any more either.
  Result<std::unique_ptr<NcclComm>> split(int color, int key, int rank, int size);

  int rank() const override { return rank_; }
  int size() const override { return size_; }

  void all_reduce(const Tensor& x) override;
  void reduce_scatter_rows(const Tensor& x, std::span<const int64_t> rows, const Tensor& mine) override;
  void all_gather_rows(const Tensor& mine, std::span<const int64_t> rows, const Tensor& all) override;
  void gather(const Tensor& x, int root, const Tensor& all) override;
  void broadcast(const Tensor& x, int root) override;

  // Bytes for another rank, or from it. A rank's messages to one other arrive in their order.
  struct Message {
    int rank = 0;
    void* data = nullptr;
    size_t bytes = 0;
  };
  // All of it at once, in one launch. To oneself, too: what is sent must be received. Messages without bytes
  // are left out, on both sides.
  void exchange(std::span<const Message> sends, std::span<const Message> receives);

  // NCCL's own abort may never return: it runs in a thread of its own, for which nobody waits. It frees what
  // exchanges use: only where none is under way.
  void abort() override;
  // Calls return at once from now on, and nothing is freed. Any thread.
  void give_up();
  // Asks NCCL, whose answer is about what it has noticed so far.
  bool failed() const override { return failure().has_value(); }
  // Why, in NCCL's words. Any thread.
  std::optional<Error> failure() const;

 private:
  NcclComm(std::shared_ptr<const NcclLibrary> library, int rank, int size, void* stream,
           std::chrono::milliseconds patience)
      : library_(std::move(library)), rank_(rank), size_(size), stream_(stream), patience_(patience) {}

  // Calls return before they are done: waits until the last one is.
  Status finish(int code) const;
  // The same for exchanges, which report through failed().
  void check(int code);
  Error error(int code) const;
  // The first one stays.
  void fail(Error failure) const;
  // Calls `body`, which gives NCCL's code, and waits until it is done; or, grouped, between GroupStart and
  // GroupEnd.
  template <typename Body>
  void call(const Body& body);
  template <typename Body>
  void grouped(const Body& body);

  const std::shared_ptr<const NcclLibrary> library_;
  const int rank_, size_;
  void* const stream_;
  const std::chrono::milliseconds patience_;
  nccl::Comm* comm_ = nullptr;
  std::atomic<bool> aborted_ = false;
  mutable std::atomic<bool> failed_ = false;
  // NCCL ends its calls in CommGetAsyncError, which the threads of a rank must not do at once.
  mutable std::mutex calls_;
  mutable std::mutex mutex_;
  mutable std::optional<Error> failure_;  // set before failed_ is
};

}  // namespace sparrow
