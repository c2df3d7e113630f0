// SPDX-License-Identifier: Apache-2.0
// Which instruction sets work here. CPUID and the operating system's word suffice for AVX; AMX is tried by
// executing it.
#include <sys/syscall.h>
#include <unistd.h>
#include <csetjmp>
#include <csignal>

#include "msa/msa.h"

namespace msa {
namespace {

sigjmp_buf probe_escape;

void leave_probe(int) {
  siglongjmp(probe_escape, 1);
}

// Asks the kernel for tile state, then loads a configuration and clears a tile under a SIGILL handler.
bool amx_works() {
  constexpr long kArchReqXcompPerm = 0x1023, kXfeatureXtiledata = 18;
  if (syscall(SYS_arch_prctl, kArchReqXcompPerm, kXfeatureXtiledata) != 0) return false;
  struct sigaction action = {}, before = {};
  action.sa_handler = leave_probe;
  sigemptyset(&action.sa_mask);
  if (sigaction(SIGILL, &action, &before) != 0) return false;
  volatile bool works = false;
  if (sigsetjmp(probe_escape, 1) == 0) {
    alignas(64) uint8_t config[64] = {1};  // palette 1
    config[16] = 64;                       // tile 0: 64 bytes a row
    config[48] = 16;                       // tile 0: 16 rows
    asm volatile("ldtilecfg %0\n\ttilezero %%tmm0\n\ttilerelease" : : "m"(config));
    works = true;
  }
  sigaction(SIGILL, &before, nullptr);
  return works;
}

}  // namespace

Isa detect_isa() {
  // The probe installs a signal handler for an instant: do it once, under the lock of a local static.
  static const Isa isa = [] {
    __builtin_cpu_init();
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) return Isa::kScalar;
    const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
    if (!avx512) return Isa::kAvx2;
    const bool bf16 = __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512vbmi");
    if (bf16 && amx_works()) return Isa::kAmx;
    // Measured on a Xeon, f32 is faster than vdpbf16ps. On AMD neither has been measured yet.
    return bf16 && __builtin_cpu_is("amd") ? Isa::kAvx512Bf16 : Isa::kAvx512;
  }();
  return isa;
}

const char* name_of(Isa isa) {
  switch (isa) {
    case Isa::kScalar:
      return "scalar";
    case Isa::kAvx2:
      return "AVX2";
    case Isa::kAvx512:
      return "AVX-512";
    case Isa::kAvx512Bf16:
      return "AVX-512 BF16";
    case Isa::kAmx:
      return "AMX";
  }
  return "?";
}

}  // namespace msa
