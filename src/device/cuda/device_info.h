// SPDX-License-Identifier: Apache-2.0
// DeviceInfo: what the current GPU is and has.
#pragma once

#include <cstddef>
#include <string>

#include "base/result.h"

namespace sparrow {

struct DeviceInfo {
  int ordinal = 0;
  std::string name;
  int num_sms = 0;
  int compute_major = 0, compute_minor = 0;
  size_t free_bytes = 0, total_bytes = 0;
};

// Makes GPU `ordinal` the calling thread's device. Fails, and says what to do, where there is no driver, no
// such GPU, or one that the kernels are not made for (they need compute capability 9.0).
Result<DeviceInfo> use_device(int ordinal);

}  // namespace sparrow
