// SPDX-License-Identifier: Apache-2.0
// Overrides: changes that the user makes to config.json before it is read (--hf-overrides). Whatever is
// accepted takes effect: a field in one spelling changes the one that the file uses.
#pragma once

#include <string>
#include <string_view>

#include "base/result.h"

namespace sparrow {

// config.json with the overrides merged in: objects member by member, everything else replaced, null back to
// the default. "text_config" reaches the text model in both layouts; its fields at the top level of a nested
// configuration are an error that says where they belong, as are fields that nothing reads. Values are
// checked by parse_config().
Result<std::string> override_config(std::string_view config_json, std::string_view overrides_json);

}  // namespace sparrow
