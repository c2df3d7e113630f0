// SPDX-License-Identifier: Apache-2.0
// Which system calls a process may make from now on: a filter in the kernel's BPF, looked at before each of
// them.
#pragma once

#include <linux/filter.h>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace sparrow {

class SyscallFilter {
 public:
  // For a worker: what arithmetic on memory needs, and reading and writing `socket`. Any other call kills it.
  static SyscallFilter of_worker(int socket);
  // For a worker that was built with a sanitizer, which reads files and starts threads: no network, no
  // programs.
  static SyscallFilter of_sanitized_worker();
  // For a program that has to open its libraries first: no network, no other processes. Such calls fail.
  static SyscallFilter of_program();

  // For all threads of this process, for good; it must have PR_SET_NO_NEW_PRIVS. Makes one system call and
  // nothing else. False: errno says why.
  bool install() const;

 private:
  SyscallFilter();
  void on(long call, uint32_t action);
  void on_argument(long call, int argument, uint32_t value, uint32_t action, uint32_t otherwise);
  void allow_unless_bits(long call, int argument, uint32_t forbidden);
  void allow_anonymous_data(long call);
  void otherwise(uint32_t action) { give(action); }

  void add(uint16_t code, uint32_t k, uint8_t if_true, uint8_t if_false) {
    code_.push_back({.code = code, .jt = if_true, .jf = if_false, .k = k});
  }
  void load(size_t offset) { add(BPF_LD | BPF_W | BPF_ABS, static_cast<uint32_t>(offset), 0, 0); }
  void give(uint32_t action) { add(BPF_RET | BPF_K, action, 0, 0); }
  // Each skips that many instructions where its condition holds.
  void if_equal(uint32_t value, uint8_t skip) { add(BPF_JMP | BPF_JEQ | BPF_K, value, skip, 0); }
  void if_not_equal(uint32_t value, uint8_t skip) { add(BPF_JMP | BPF_JEQ | BPF_K, value, 0, skip); }
  void if_below(uint32_t value, uint8_t skip) { add(BPF_JMP | BPF_JGE | BPF_K, value, 0, skip); }
  void if_bits(uint32_t bits, uint8_t skip) { add(BPF_JMP | BPF_JSET | BPF_K, bits, skip, 0); }
  void if_no_bits(uint32_t bits, uint8_t skip) { add(BPF_JMP | BPF_JSET | BPF_K, bits, 0, skip); }

  std::vector<sock_filter> code_;
};

}  // namespace sparrow
