// SPDX-License-Identifier: Apache-2.0
// The instruction set and threads that tests of the engine, the model and the server run with: those of the
// environment, so that the same suites can be run for all of them.
//
//   SPARROW_TEST_ISA=avx2         default: the best that works here
//   SPARROW_TEST_THREADS=N|more   default: 1; more: more than there are processors
#pragma once

#include "device/exec.h"

namespace sparrow::test {

CpuIsa test_isa();
int test_threads();

}  // namespace sparrow::test
