// SPDX-License-Identifier: Apache-2.0
// A program that reads one foreign file, in a process that can do little else: ProgramRules, memory and time
// limited, gone when its caller is.
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <vector>

#include "base/result.h"

namespace sparrow {

// Where the child finds its input: a file without a name that only it sees.
constexpr const char* kChildInput = "/proc/self/fd/3";

struct ChildLimits {
  std::chrono::milliseconds time{};
  size_t memory = 0;
  size_t output = 0;
  std::stop_token stop;  // once asked for, the child ends at once, and the call with Errc::kStopped
};

using TakeOutput = std::function<Status(std::span<const std::byte>)>;

// The absolute path of a program, by PATH unless there is a slash in the name.
std::optional<std::string> find_program(const std::string& name);

// Runs arguments[0], an absolute path, and hands its output on as it comes; an error from `take` ends it.
// Over a limit, or with an exit code that is not zero, it is an error, which quotes what the child said.
Status run_child(const std::vector<std::string>& arguments, std::span<const std::byte> input,
                 const ChildLimits& limits, const TakeOutput& take);

}  // namespace sparrow
