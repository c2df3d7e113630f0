// SPDX-License-Identifier: Apache-2.0
// main() of the suites that run in variants: one that this machine cannot do is skipped, with the reason.
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>

#include "ops/ops.h"

int main(int argc, char** argv) {
  constexpr int kSkipped = 77, kUsage = 2;
  if (const char* name = std::getenv("SPARROW_TEST_ISA")) {
    const auto isa = sparrow::ops::cpu_isa_named(name);
    if (!isa) {
      std::fprintf(stderr, "SPARROW_TEST_ISA=%s: there is no such instruction set\n", name);
      return kUsage;
    }
    if (*isa >= sparrow::ops::detect_cpu_isa()) {
      std::printf("skipped: %s is %s here\n", name,
                  *isa == sparrow::ops::detect_cpu_isa() ? "what the default runs with" : "not available");
      return kSkipped;
    }
  }
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
