// SPDX-License-Identifier: Apache-2.0
// NcclRanks: the communicators of one rank over NCCL, and what watches them.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "base/result.h"
#include "comm/control_link.h"
#include "comm/grid.h"
#include "comm/nccl/nccl_comm.h"

namespace sparrow {

class NcclRanks {
 public:
  struct Options {
    Grid grid;
    NcclNeeds needs;
    void* stream = nullptr;  // a cudaStream_t
    std::chrono::milliseconds patience{60'000};
    const char* library = "libnccl.so.2";
    // How often NCCL is asked whether something went wrong: whoever waits for a GPU may wait for ever then.
    std::chrono::milliseconds interval{100};
    std::function<void(const Error&)> lost;  // told once, from a thread of its own; may be empty
  };
  // Takes this rank's bytes and gives everybody's, by rank.
  using Exchange = std::function<Result<std::vector<Bytes>>(std::span<const std::byte>)>;

  // All ranks call it. Error, on every rank: the rank whose library is missing, too old, or not that of the
  // others; a rank that did not come.
  static Result<std::unique_ptr<NcclRanks>> join(const Options& options, const Exchange& exchange);
  ~NcclRanks();
  NcclRanks(const NcclRanks&) = delete;
  NcclRanks& operator=(const NcclRanks&) = delete;

  const Grid& grid() const { return options_.grid; }
  const std::string& version() const { return version_; }
  NcclComm& group() const { return *group_; }    // the tp ranks that share a layer, by their place
  NcclComm& across() const { return *across_; }  // the ranks of this place in all groups, by group
  // Any thread.
  std::optional<Error> failure() const;

 private:
  explicit NcclRanks(const Options& options) : options_(options) {}
  Status make(std::shared_ptr<const NcclLibrary> library, const nccl::UniqueId& id);
  void watch();

  const Options options_;
  std::string version_;
  std::unique_ptr<NcclComm> world_, group_, across_;
  std::mutex mutex_;
  std::condition_variable ending_;
  bool ends_ = false;
  std::thread watch_;
};

}  // namespace sparrow
