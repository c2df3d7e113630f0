// SPDX-License-Identifier: Apache-2.0
// What an object may hold: a field that nobody reads is a mistake of whoever wrote it.
#pragma once

#include <span>
#include <string>

#include "base/json/json.h"

namespace sparrow {

// The value is an object, and has no fields but these. The message names the field, and which is near.
Status expect_fields(const Json& object, std::span<const std::string> known);

}  // namespace sparrow
