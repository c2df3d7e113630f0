// SPDX-License-Identifier: Apache-2.0
// Scratch: temporary memory of one engine thread. Grows while a workload warms up and is then reused without
// allocating.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace sparrow {

class Scratch {
 public:
  // Memory taken inside a scope is given back when the scope ends. Scopes nest like function calls.
  class Scope {
   public:
    explicit Scope(Scratch& scratch) : scratch_(scratch), chunk_(scratch.chunk_), used_(scratch.used_) {}
    ~Scope() {
      scratch_.chunk_ = chunk_;
      scratch_.used_ = used_;
    }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

    // `count` uninitialised elements, aligned to a cache line.
    template <typename T>
    T* take(int64_t count) {
      return static_cast<T*>(scratch_.take(static_cast<size_t>(count) * sizeof(T)));
    }

   private:
    Scratch& scratch_;
    size_t chunk_, used_;
  };

  Scratch() = default;
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  size_t capacity_bytes() const;

 private:
  struct FreeAligned {
    void operator()(std::byte* memory) const;
  };
  struct Chunk {
    std::unique_ptr<std::byte, FreeAligned> memory;
    size_t bytes;
  };

  void* take(size_t bytes);

  std::vector<Chunk> chunks_;
  size_t chunk_ = 0;  // index of the chunk in use
  size_t used_ = 0;   // bytes taken from it
};

}  // namespace sparrow
