// SPDX-License-Identifier: Apache-2.0
// A picture or a video as it was sent: nobody has looked inside yet.
#pragma once

#include <cstddef>
#include <vector>

namespace sparrow {

using MediaBytes = std::vector<std::byte>;

}  // namespace sparrow
