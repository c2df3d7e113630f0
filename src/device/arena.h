// SPDX-License-Identifier: Apache-2.0
// Arena: hands out parts of one allocation, front to back; without memory it only counts. So the function
// that lays a thing out is also the one that says how much it takes: run it without memory, allocate that,
// run it again.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "base/math.h"

namespace sparrow {

class Arena {
 public:
  // What cudaMalloc and TMA descriptors like best.
  static constexpr size_t kAlignment = 256;

  struct Part {
    std::string_view name;  // a literal's
    size_t bytes = 0;
  };

  Arena() = default;
  explicit Arena(std::byte* memory) : memory_(memory) {}

  // What is taken from here on belongs to the part of that name.
  void begin(std::string_view name) { parts_.push_back({name}); }

  template <typename T>
  T* take(int64_t count) {
    const size_t bytes = round_up(static_cast<size_t>(count) * sizeof(T), kAlignment);
    std::byte* const place = memory_ == nullptr ? nullptr : memory_ + used_;
    used_ += bytes;
    if (!parts_.empty()) parts_.back().bytes += bytes;
    return reinterpret_cast<T*>(place);
  }

  size_t used() const { return used_; }
  const std::vector<Part>& parts() const { return parts_; }

 private:
  std::byte* memory_ = nullptr;
  size_t used_ = 0;
  std::vector<Part> parts_;
};

}  // namespace sparrow
