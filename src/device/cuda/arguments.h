// SPDX-License-Identifier: Apache-2.0
// Arguments: what a launcher demands of its caller, checked on the host before anything is launched. Who
// breaks it has a bug: the message names launcher, argument and value, and the program aborts. What a model's
// shape or a request could cause is refused earlier, with a Result.
//
//   Arguments("rms_norm").pointer("x", x).multiple("hidden", hidden, 64).range("rows", rows, 1, INT_MAX);
#pragma once

#include <cstdint>

namespace sparrow {

class Arguments {
 public:
  explicit Arguments(const char* launcher) : launcher_(launcher) {}

  // Not null, and aligned to so many bytes.
  const Arguments& pointer(const char* name, const void* value, int alignment = 16) const {
    if (value == nullptr || reinterpret_cast<uintptr_t>(value) % static_cast<uintptr_t>(alignment) != 0)
      bad_pointer(name, value, alignment);
    return *this;
  }
  // Both ends included.
  const Arguments& range(const char* name, int64_t value, int64_t least, int64_t most) const {
    if (value < least || value > most) bad_range(name, value, least, most);
    return *this;
  }
  const Arguments& multiple(const char* name, int64_t value, int64_t of) const {
    if (value % of != 0) bad_multiple(name, value, of);
    return *this;
  }
  // Anything else, in words: "must ..."
  const Arguments& require(const char* name, bool holds, const char* demand) const {
    if (!holds) fail(name, demand);
    return *this;
  }

 private:
  [[noreturn]] void bad_pointer(const char* name, const void* value, int alignment) const;
  [[noreturn]] void bad_range(const char* name, int64_t value, int64_t least, int64_t most) const;
  [[noreturn]] void bad_multiple(const char* name, int64_t value, int64_t of) const;
  [[noreturn]] void fail(const char* name, const char* demand) const;

  const char* launcher_;
};

}  // namespace sparrow
