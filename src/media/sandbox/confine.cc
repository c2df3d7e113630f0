// SPDX-License-Identifier: Apache-2.0
#include "media/sandbox/confine.h"

#include <fcntl.h>
#include <linux/capability.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "media/sandbox/syscall_filter.h"

namespace sparrow {
namespace {

using Fault = std::optional<ConfineFault>;

Fault fault(const char* step) {
  return ConfineFault{step, errno};
}

// Where memory runs out for the whole machine, this process goes first. Best effort.
void offer_to_the_oom_killer() {
  const int file = ::open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC);
  if (file < 0) return;
  [[maybe_unused]] const ssize_t written = ::write(file, "1000", 4);
  ::close(file);
}

// Address space in use now. 0: unknown.
uint64_t mapped_bytes() {
  const int file = ::open("/proc/self/statm", O_RDONLY | O_CLOEXEC);
  if (file < 0) return 0;
  char text[64] = {};
  const ssize_t size = ::read(file, text, sizeof text - 1);
  ::close(file);
  if (size <= 0) return 0;
  return std::strtoull(text, nullptr, 10) * static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
}

bool limit(__rlimit_resource resource, uint64_t value) {
  const rlimit both{.rlim_cur = value, .rlim_max = value};
  return ::setrlimit(resource, &both) == 0;
}

Fault set_limits(const Confinement& limits) {
  if (!limit(RLIMIT_CORE, 0)) return fault("RLIMIT_CORE");
  if (!limit(RLIMIT_CPU, limits.cpu_seconds)) return fault("RLIMIT_CPU");
  if (!limit(RLIMIT_MEMLOCK, 0)) return fault("RLIMIT_MEMLOCK");
  if (!limit(RLIMIT_MSGQUEUE, 0)) return fault("RLIMIT_MSGQUEUE");
  if (!kConfinedStrictly) return std::nullopt;
  const uint64_t mapped = mapped_bytes();
  if (mapped == 0) return fault("/proc/self/statm");
  if (!limit(RLIMIT_AS, mapped + limits.memory_bytes)) return fault("RLIMIT_AS");
  if (!limit(RLIMIT_FSIZE, 0)) return fault("RLIMIT_FSIZE");
  if (!limit(RLIMIT_NPROC, 0)) return fault("RLIMIT_NPROC");
  if (!limit(RLIMIT_NOFILE, 0)) return fault("RLIMIT_NOFILE");
  return std::nullopt;
}

}  // namespace

bool drop_privileges() {
  __user_cap_header_struct header{.version = _LINUX_CAPABILITY_VERSION_3, .pid = 0};
  __user_cap_data_struct none[_LINUX_CAPABILITY_U32S_3] = {};
  return ::prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0) == 0 &&
         ::syscall(SYS_capset, &header, none) == 0 && ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0;
}

std::optional<ConfineFault> confine(const Confinement& limits) {
  offer_to_the_oom_killer();
  if (const Fault found = set_limits(limits)) return found;
  if (!drop_privileges()) return fault("capabilities");
  // Other processes of the same user can neither trace it nor read its memory.
  if (::prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) != 0) return fault("PR_SET_DUMPABLE");
  if (::prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0) != 0) return fault("PR_SET_PDEATHSIG");
  const SyscallFilter filter =
      kConfinedStrictly ? SyscallFilter::of_worker(limits.socket) : SyscallFilter::of_sanitized_worker();
  if (!filter.install()) return fault("seccomp");
  return std::nullopt;
}

}  // namespace sparrow
