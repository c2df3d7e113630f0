// SPDX-License-Identifier: Apache-2.0
#include "media/sandbox/syscall_filter.h"

#include <linux/audit.h>
#include <linux/seccomp.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>

namespace sparrow {
namespace {

#if defined(__x86_64__)
constexpr uint32_t kArchitecture = AUDIT_ARCH_X86_64;
#elif defined(__aarch64__)
constexpr uint32_t kArchitecture = AUDIT_ARCH_AARCH64;
#endif

constexpr uint32_t kAllow = SECCOMP_RET_ALLOW, kKill = SECCOMP_RET_KILL_PROCESS;
constexpr uint32_t kRefuse = SECCOMP_RET_ERRNO | EACCES;

constexpr uint32_t low(int argument) {
  return static_cast<uint32_t>(offsetof(seccomp_data, args) + 8 * static_cast<size_t>(argument));
}
constexpr uint32_t high(int argument) {
  return low(argument) + 4;
}

}  // namespace

// The call's number stays loaded between the rules; a rule that loads an argument gives an answer.
SyscallFilter::SyscallFilter() {
  load(offsetof(seccomp_data, arch));
  // Calls of another architecture have other numbers.
  if_equal(kArchitecture, 1);
  give(kKill);
  load(offsetof(seccomp_data, nr));
#if defined(__x86_64__)
  constexpr uint32_t kX32 = 0x40000000;
  if_below(kX32, 1);
  give(kKill);
#endif
}

void SyscallFilter::on(long call, uint32_t action) {
  if_not_equal(static_cast<uint32_t>(call), 1);
  give(action);
}

// Both halves: the kernel sees all 64 bits of an argument.
void SyscallFilter::on_argument(long call, int argument, uint32_t value, uint32_t action,
                                uint32_t otherwise) {
  if_not_equal(static_cast<uint32_t>(call), 6);
  load(low(argument));
  if_not_equal(value, 3);
  load(high(argument));
  if_not_equal(0, 1);
  give(action);
  give(otherwise);
}

void SyscallFilter::allow_unless_bits(long call, int argument, uint32_t forbidden) {
  if_not_equal(static_cast<uint32_t>(call), 4);
  load(low(argument));
  if_bits(forbidden, 1);
  give(kAllow);
  give(kKill);
}

// mmap of memory that is no file's and holds no code.
void SyscallFilter::allow_anonymous_data(long call) {
  if_not_equal(static_cast<uint32_t>(call), 6);
  load(low(2));
  if_bits(PROT_EXEC, 3);
  load(low(3));
  if_no_bits(MAP_ANONYMOUS, 1);
  give(kAllow);
  give(kKill);
}

bool SyscallFilter::install() const {
  const sock_fprog program{.len = static_cast<unsigned short>(code_.size()),
                           .filter = const_cast<sock_filter*>(code_.data())};
  return ::syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &program) == 0;
}

SyscallFilter SyscallFilter::of_worker(int socket) {
  SyscallFilter filter;
  for (const long call : {SYS_read, SYS_write})
    filter.on_argument(call, 0, static_cast<uint32_t>(socket), kAllow, kKill);
  filter.allow_anonymous_data(SYS_mmap);
  filter.allow_unless_bits(SYS_mprotect, 2, PROT_EXEC);
  for (const long call : {SYS_munmap, SYS_mremap, SYS_brk, SYS_madvise, SYS_futex, SYS_clock_gettime,
                          SYS_rt_sigreturn, SYS_restart_syscall, SYS_exit, SYS_exit_group})
    filter.on(call, kAllow);
  filter.otherwise(kKill);
  return filter;
}

SyscallFilter SyscallFilter::of_sanitized_worker() {
  SyscallFilter filter;
  for (const long call :
       {SYS_socket, SYS_socketpair, SYS_connect, SYS_bind, SYS_listen, SYS_accept, SYS_accept4, SYS_execve,
        SYS_execveat, SYS_ptrace, SYS_process_vm_readv, SYS_process_vm_writev, SYS_io_uring_setup, SYS_bpf,
        SYS_mount, SYS_unshare, SYS_setns})
    filter.on(call, kKill);
  filter.otherwise(kAllow);
  return filter;
}

SyscallFilter SyscallFilter::of_program() {
  SyscallFilter filter;
  for (const long call : {SYS_socket,
                          SYS_socketpair,
                          SYS_connect,
                          SYS_bind,
                          SYS_listen,
                          SYS_accept,
                          SYS_accept4,
                          SYS_io_uring_setup,
                          SYS_ptrace,
                          SYS_process_vm_readv,
                          SYS_process_vm_writev,
                          SYS_pidfd_open,
                          SYS_pidfd_getfd,
                          SYS_pidfd_send_signal,
                          SYS_kill,
                          SYS_tkill,
                          SYS_tgkill,
                          SYS_rt_sigqueueinfo,
                          SYS_rt_tgsigqueueinfo,
                          SYS_setpriority,
                          SYS_ioprio_set,
                          SYS_sched_setscheduler,
                          SYS_sched_setparam,
                          SYS_sched_setattr,
                          SYS_sched_setaffinity,
                          SYS_migrate_pages,
                          SYS_move_pages,
                          SYS_bpf,
                          SYS_perf_event_open,
                          SYS_userfaultfd,
                          SYS_mount,
                          SYS_umount2,
                          SYS_pivot_root,
                          SYS_chroot,
                          SYS_unshare,
                          SYS_setns,
                          SYS_keyctl,
                          SYS_add_key,
                          SYS_request_key,
                          SYS_memfd_create})
    filter.on(call, kRefuse);
  filter.on_argument(SYS_prlimit64, 0, 0, kAllow, kRefuse);  // of itself
  filter.otherwise(kAllow);
  return filter;
}

}  // namespace sparrow
