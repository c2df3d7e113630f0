// SPDX-License-Identifier: Apache-2.0
// Parallel regions over the caller's workers, for the plain schedule files.
#pragma once

#include <atomic>
#include <cstdint>
#include <type_traits>

#include "msa/msa.h"

namespace msa {

// Runs body(worker) on the workers that come; body claims its work.
template <typename F>
void on_workers(const Workers& workers, F&& body) {
  if (workers.run == nullptr || workers.count <= 1) {
    for (int worker = 0; worker < workers.count; ++worker) body(worker);
    return;
  }
  using Body = std::remove_reference_t<F>;
  workers.run(
      workers.pool, [](void* arg, int worker) { (*static_cast<Body*>(arg))(worker); }, &body);
}

// Runs body(i, worker) for i in [0, count): workers claim indices in order as they get free.
template <typename F>
void parallel_for(const Workers& workers, int64_t count, F&& body) {
  std::atomic<int64_t> next{0};
  auto claim = [&](int worker) {
    for (int64_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < count;) body(i, worker);
  };
  on_workers(workers, claim);
}

inline char* align_64(void* p) {
  return static_cast<char*>(p) + (-reinterpret_cast<uintptr_t>(p) & 63);
}

}  // namespace msa
