// SPDX-License-Identifier: Apache-2.0
// DeviceBuffer and PinnedBuffer: sole owners of GPU memory and of page-locked host memory. Allocation fails
// with an error (the model may simply be too large); everything else CUDA refuses is a bug.
#pragma once

#include <cstddef>
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
  size_t bytes() const { return memory_ ? bytes_ : 0; }

 private:
  struct Free {
    void operator()(std::byte* memory) const;
  };
  std::unique_ptr<std::byte, Free> memory_;
  size_t bytes_ = 0;
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
  size_t bytes() const { return memory_ ? bytes_ : 0; }

 private:
  struct Free {
    void operator()(std::byte* memory) const;
  };
  std::unique_ptr<std::byte, Free> memory_;
  size_t bytes_ = 0;
};

}  // namespace sparrow
