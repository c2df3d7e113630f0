// SPDX-License-Identifier: Apache-2.0
// ControlLink: messages between rank 0, which decides, and the others, which follow. Each arrives once, whole
// and in the order in which it was sent, or the link fails. Bytes mean nothing to it.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"

namespace sparrow {

using Bytes = std::vector<std::byte>;

class ControlLink {
 public:
  virtual ~ControlLink() = default;

  virtual int rank() const = 0;
  virtual int world() const = 0;

  // Rank 0: to every other rank. Waits where a follower is too far behind. Engine thread only.
  virtual Status send(std::span<const std::byte> message) = 0;
  // Others: the next message; waits for it. Engine thread only.
  virtual Result<Bytes> receive() = 0;

  // Others: to rank 0. Engine thread only.
  virtual Status reply(std::span<const std::byte> message) = 0;
  // Rank 0: the next reply of that rank; waits for it. Engine thread only.
  virtual Result<Bytes> receive_reply(int rank) = 0;

  // From any thread: tells all ranks that this one gives up, and why. All calls here return errors from now
  // on, and soon everywhere.
  virtual void fail(int rank, const std::string& reason) = 0;
  // The first failure that is known here: which rank, and why. Any thread.
  struct Failure {
    int rank = 0;
    std::string reason;
  };
  virtual std::optional<Failure> failure() const = 0;
};

}  // namespace sparrow
