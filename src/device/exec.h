// SPDX-License-Identifier: Apache-2.0
// Exec: where and with what an operation runs. Passed to every operation; there is no ambient device state.
#pragma once

#include "base/threads/thread_pool.h"
#include "device/scratch.h"

namespace sparrow {

// Instruction sets the CPU kernels are written for, weakest first: a machine that has one has all before it.
// Results are bit-identical between runs on one of them, not between them.
enum class CpuIsa { kScalar, kAvx2, kAvx512, kAvx512Bf16, kAmx };

struct Exec {
  ThreadPool& pool;
  Scratch& scratch;
  CpuIsa isa;
};

}  // namespace sparrow
