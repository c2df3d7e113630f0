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

// GPU `ordinal`, but for its bytes: who only looks takes none of its memory. Fails, and says what to do,
// where there is no driver, no such GPU, or one that the kernels are not made for (they need compute
// capability 9.0).
Result<DeviceInfo> find_device(int ordinal);
// The same, and makes it the calling thread's device.
Result<DeviceInfo> use_device(int ordinal);

}  // namespace sparrow
