// SPDX-License-Identifier: Apache-2.0
// DeviceBuffer and PinnedBuffer: sole owners of GPU memory and of page-locked host memory. Allocation fails
// with an error (the model may simply be too large); everything else CUDA refuses is a bug.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "base/result.h"

namespace sparrow {

class DeviceBuffer {
 public:
  DeviceBuffer() = default;
  // Uninitialised, 256-byte aligned, on the current device.
  static Result<DeviceBuffer> allocate(size_t bytes);

  std::byte* data() const { return memory_.get(); }
  template <typename T>
  T* as() const {
    return reinterpret_cast<T*>(memory_.get());
  }
  size_t bytes() const { return memory_ ? memory_.get_deleter().bytes : 0; }

 private:
  struct Free {
    size_t bytes;
    void operator()(std::byte* memory) const;
  };
  std::unique_ptr<std::byte, Free> memory_;
};

class PinnedBuffer {
 public:
  PinnedBuffer() = default;
  // Uninitialised; every device may copy from and to it asynchronously.
  static Result<PinnedBuffer> allocate(size_t bytes);

  std::byte* data() const { return memory_.get(); }
  template <typename T>
  T* as() const {
    return reinterpret_cast<T*>(memory_.get());
  }
  size_t bytes() const { return memory_ ? memory_.get_deleter().bytes : 0; }

 private:
  struct Free {
    size_t bytes;
    void operator()(std::byte* memory) const;
  };
  std::unique_ptr<std::byte, Free> memory_;
};

// What these two have allocated in this process. Any thread.
struct AllocationCounts {
  struct Kind {
    int64_t allocations = 0;  // ever
    int64_t bytes = 0;        // now
  };
  Kind device, pinned;
};
AllocationCounts allocation_counts();

}  // namespace sparrow
