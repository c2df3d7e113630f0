// SPDX-License-Identifier: Apache-2.0
// ProgramRules: what a foreign program such as ffmpeg may do. It has to open its own libraries, so a worker's
// filter would not let it start. It reads the system's programs and libraries and no other file, writes none,
// has no network, and reaches no other process: neither its memory nor with signals.
#pragma once

#include <string>

#include "base/files/fd.h"
#include "media/sandbox/syscall_filter.h"

namespace sparrow {

class ProgramRules {
 public:
  // For a program by its absolute path. Made in the server: between vfork and exec nothing may be allocated.
  explicit ProgramRules(const std::string& program);

  // In the child, before exec. Makes system calls only. False: errno says why.
  bool apply() const;

  // Whether files are out of reach: by Landlock, which kernels have since 5.13 unless they are set up
  // without.
  bool guards_files() const { return static_cast<bool>(files_); }

 private:
  Fd files_;
  SyscallFilter calls_ = SyscallFilter::of_program();
};

}  // namespace sparrow
