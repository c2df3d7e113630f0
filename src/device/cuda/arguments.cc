// SPDX-License-Identifier: Apache-2.0
#include "device/cuda/arguments.h"

#include <cstdio>
#include <cstdlib>

#include "base/strf.h"

namespace sparrow {

void Arguments::fail(const char* name, const char* demand) const {
  std::fprintf(stderr, "%s: %s %s\n", launcher_, name, demand);
  std::abort();
}

void Arguments::bad_pointer(const char* name, const void* value, int alignment) const {
  if (value == nullptr) fail(name, "must not be null");
  fail(name, strf("must be aligned to {} bytes, got {}", alignment, value).c_str());
}

void Arguments::bad_range(const char* name, int64_t value, int64_t least, int64_t most) const {
  fail(name, strf("must be in [{}, {}], got {}", least, most, value).c_str());
}

void Arguments::bad_multiple(const char* name, int64_t value, int64_t of) const {
  fail(name, strf("must be a multiple of {}, got {}", of, value).c_str());
}

}  // namespace sparrow
