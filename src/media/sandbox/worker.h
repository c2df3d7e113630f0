// SPDX-License-Identifier: Apache-2.0
// The inside of a worker process: locked up first, then one job after the other.
#pragma once

#include <cstddef>
#include <functional>
#include <span>

#include "base/result.h"

namespace sparrow {

// What a worker does with a job's bytes. It may crash, hang, lie or do what is forbidden: that costs its own
// job an error. Returns how many bytes of `output` it has written.
using MediaWork = std::function<Result<size_t>(
    std::span<const std::byte> options, std::span<const std::byte> input, std::span<std::byte> output)>;

// The main function of a program that MediaWorkers starts. Returns when the server has closed the socket.
int run_media_worker(const MediaWork& work);

}  // namespace sparrow
