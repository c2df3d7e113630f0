// SPDX-License-Identifier: Apache-2.0
#include "support/variant.h"

#include <algorithm>
#include <cstdlib>
#include <string_view>

#include "ops/ops.h"

namespace sparrow::test {

CpuIsa test_isa() {
  const char* name = std::getenv("SPARROW_TEST_ISA");
  return name ? ops::cpu_isa_named(name).value() : ops::detect_cpu_isa();
}

int test_threads() {
  const char* threads = std::getenv("SPARROW_TEST_THREADS");
  if (!threads) return 1;
  return std::string_view(threads) == "more" ? 2 * ThreadPool::default_size() + 1
                                             : std::max(1, std::atoi(threads));
}

}  // namespace sparrow::test
