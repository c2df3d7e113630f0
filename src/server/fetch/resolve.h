// SPDX-License-Identifier: Apache-2.0
// Names -> addresses, as the system resolves them.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "base/result.h"
#include "media/source/address.h"

namespace sparrow {

using Resolver = std::function<Result<std::vector<IpAddress>>(const std::string& host)>;

// Waits for the answer; how long is set in the system's resolv.conf.
Result<std::vector<IpAddress>> resolve_with_system(const std::string& host);

}  // namespace sparrow
