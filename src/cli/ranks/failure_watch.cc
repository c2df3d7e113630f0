// SPDX-License-Identifier: Apache-2.0
#include "cli/ranks/failure_watch.h"

#include <unistd.h>

#include <cstdio>
#include <utility>

#include "cli/ranks/supervisor.h"
#include "engine/ranks/rank_failure.h"

namespace sparrow::cli {
namespace {

constexpr std::chrono::milliseconds kInterval{20};
constexpr std::chrono::milliseconds kPrintTime{200};

void print(const Error& failure) {
  std::fputs(strf("sparrow: {}\n", failure.message).c_str(), stderr);
}

}  // namespace

FailureWatch::FailureWatch(const ControlLink& link) : link_(link), tell_(print), grace_(kPrintTime) {
  thread_ = std::thread([this] { run(); });
}

FailureWatch::~FailureWatch() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void FailureWatch::on_failure(Tell tell, std::chrono::milliseconds grace) {
  const std::lock_guard lock(mutex_);
  tell_ = std::move(tell);
  grace_ = grace;
}

void FailureWatch::run() {
  std::unique_lock lock(mutex_);
  std::optional<ControlLink::Failure> failure;
  while (!failure) {
    if (changed_.wait_for(lock, kInterval, [this] { return ending_; })) return;
    failure = link_.failure();
  }
  // Not after `tell`, which may wait for a terminal.
  std::thread([grace = grace_] {
    std::this_thread::sleep_for(grace);
    ::_exit(kExitLostRank);
  }).detach();
  if (!tell_) return;
  tell_(rank_failure(*failure));
  told_ = true;
}

bool FailureWatch::silence(std::chrono::milliseconds grace) {
  const std::lock_guard lock(mutex_);
  tell_ = nullptr;
  grace_ = grace;
  return told_;
}

}  // namespace sparrow::cli
