// SPDX-License-Identifier: Apache-2.0
// Two processes prove to each other that they hold the same token, before either parses anything of the
// other: each answers the other's random challenge with an HMAC-SHA256 under the token. The token itself
// never travels, and an answer recorded once is of no use later. Who connects proves first.
#pragma once

#include <string>

#include "base/result.h"
#include "comm/net/socket.h"

namespace sparrow {

// On the side that listened, on the side that connected.
Status admit(const Fd& socket, const std::string& token, const GiveUp& give_up);
Status authenticate(const Fd& socket, const std::string& token, const GiveUp& give_up);

}  // namespace sparrow
