// SPDX-License-Identifier: Apache-2.0
// Scratch: temporary memory of one engine thread. Grows in pieces while a workload warms up; between two
// steps the pieces become one of the size that was needed at most, which is then reused without allocating.
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
    explicit Scope(Scratch& scratch)
        : scratch_(scratch), chunk_(scratch.chunk_), used_(scratch.used_), live_(scratch.live_) {}
    ~Scope() {
      scratch_.chunk_ = chunk_;
      scratch_.used_ = used_;
      scratch_.live_ = live_;
      if (live_ == 0 && scratch_.chunks_.size() > 1) scratch_.merge();
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
    size_t chunk_, used_, live_;
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
  void add_chunk(size_t bytes);
  void merge();

  std::vector<Chunk> chunks_;
  size_t chunk_ = 0;  // index of the chunk in use
  size_t used_ = 0;   // bytes taken from it
  size_t live_ = 0;   // bytes taken from all
  size_t peak_ = 0;   // the most that were ever taken at a time
};

}  // namespace sparrow
