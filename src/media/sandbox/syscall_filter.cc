// SPDX-License-Identifier: Apache-2.0
#include "media/sandbox/syscall_filter.h"

#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "media/sandbox/confine.h"

namespace sparrow {
namespace {

#if defined(__x86_64__)
constexpr uint32_t kArchitecture = AUDIT_ARCH_X86_64;
#elif defined(__aarch64__)
constexpr uint32_t kArchitecture = AUDIT_ARCH_AARCH64;
#endif

// A filter in the kernel's BPF: the call's number, then its arguments, each loaded when it is looked at.
class Filter {
 public:
  Filter() {
    load(offsetof(seccomp_data, arch));
    // Calls of another architecture have other numbers.
    if_equal(kArchitecture, 1);
    give(SECCOMP_RET_KILL_PROCESS);
    load(offsetof(seccomp_data, nr));
#if defined(__x86_64__)
    constexpr uint32_t kX32 = 0x40000000;
    add(BPF_JMP | BPF_JGE | BPF_K, kX32, 0, 1);
    give(SECCOMP_RET_KILL_PROCESS);
#endif
  }

  // The number stays loaded between the rules.
  void on(long call, uint32_t action) {
    if_not_equal(static_cast<uint32_t>(call), 1);
    give(action);
  }
  void allow(long call) {
    on(call, SECCOMP_RET_ALLOW);
  }
  // Both halves: the kernel sees all 64 bits of an argument.
  void allow_if_argument_is(long call, int argument, uint32_t value) {
    if_not_equal(static_cast<uint32_t>(call), 6);
    load(low(argument));
    if_not_equal(value, 3);
    load(high(argument));
    if_not_equal(0, 1);
    give(SECCOMP_RET_ALLOW);
    give(SECCOMP_RET_KILL_PROCESS);
  }
  void allow_unless_bits(long call, int argument, uint32_t forbidden) {
    if_not_equal(static_cast<uint32_t>(call), 4);
    load(low(argument));
    if_bits(forbidden, 1);
    give(SECCOMP_RET_ALLOW);
    give(SECCOMP_RET_KILL_PROCESS);
  }
  // Memory that is no file's and holds no code.
  void allow_anonymous_data(long call) {
    if_not_equal(static_cast<uint32_t>(call), 6);
    load(low(2));
    if_bits(PROT_EXEC, 3);
    load(low(3));
    if_no_bits(MAP_ANONYMOUS, 1);
    give(SECCOMP_RET_ALLOW);
    give(SECCOMP_RET_KILL_PROCESS);
  }

  bool install(uint32_t otherwise) {
    give(otherwise);
    const sock_fprog program{.len = static_cast<unsigned short>(code_.size()), .filter = code_.data()};
    return ::syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &program) == 0;
  }

 private:
  static uint32_t low(int argument) {
    return static_cast<uint32_t>(offsetof(seccomp_data, args) + 8 * static_cast<size_t>(argument));
  }
  static uint32_t high(int argument) {
    return low(argument) + 4;
  }

  void add(uint16_t code, uint32_t k, uint8_t if_true, uint8_t if_false) {
    code_.push_back({.code = code, .jt = if_true, .jf = if_false, .k = k});
  }
  void load(size_t offset) {
    add(BPF_LD | BPF_W | BPF_ABS, static_cast<uint32_t>(offset), 0, 0);
  }
  void give(uint32_t action) {
    add(BPF_RET | BPF_K, action, 0, 0);
  }
  // Each skips that many instructions where its condition holds.
  void if_equal(uint32_t value, uint8_t skip) {
    add(BPF_JMP | BPF_JEQ | BPF_K, value, skip, 0);
  }
  void if_not_equal(uint32_t value, uint8_t skip) {
    add(BPF_JMP | BPF_JEQ | BPF_K, value, 0, skip);
  }
  void if_bits(uint32_t bits, uint8_t skip) {
    add(BPF_JMP | BPF_JSET | BPF_K, bits, skip, 0);
  }
  void if_no_bits(uint32_t bits, uint8_t skip) {
    add(BPF_JMP | BPF_JSET | BPF_K, bits, 0, skip);
  }

  std::vector<sock_filter> code_;
};

// All that arithmetic on memory needs.
bool install_strict(int socket) {
  Filter filter;
  filter.allow_if_argument_is(SYS_read, 0, static_cast<uint32_t>(socket));
  filter.allow_if_argument_is(SYS_write, 0, static_cast<uint32_t>(socket));
  filter.allow_anonymous_data(SYS_mmap);
  filter.allow_unless_bits(SYS_mprotect, 2, PROT_EXEC);
  for (const long call : {SYS_munmap, SYS_mremap, SYS_brk, SYS_madvise, SYS_futex, SYS_clock_gettime,
                          SYS_rt_sigreturn, SYS_restart_syscall, SYS_exit, SYS_exit_group})
    filter.allow(call);
  return filter.install(SECCOMP_RET_KILL_PROCESS);
}

// Beside a sanitizer's run time.
bool install_for_sanitizers() {
  Filter filter;
  for (const long call :
       {SYS_socket, SYS_socketpair, SYS_connect, SYS_bind, SYS_listen, SYS_accept, SYS_accept4, SYS_execve,
        SYS_execveat, SYS_ptrace, SYS_process_vm_readv, SYS_process_vm_writev, SYS_io_uring_setup, SYS_bpf,
        SYS_mount, SYS_unshare, SYS_setns})
    filter.on(call, SECCOMP_RET_KILL_PROCESS);
  return filter.install(SECCOMP_RET_ALLOW);
}

}  // namespace

bool install_syscall_filter(int socket) {
  return kConfinedStrictly ? install_strict(socket) : install_for_sanitizers();
}

}  // namespace sparrow
