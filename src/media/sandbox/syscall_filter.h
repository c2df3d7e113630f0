// SPDX-License-Identifier: Apache-2.0
// Which system calls a worker may make. Any other kills it.
#pragma once

namespace sparrow {

// For all threads of this process, for good. Reads and writes are allowed on `socket` alone. False: errno
// says why.
bool install_syscall_filter(int socket);

}  // namespace sparrow
