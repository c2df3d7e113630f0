// SPDX-License-Identifier: Apache-2.0
// Request targets: what stands between the method and the version. Read once and strictly, so that no two
// parts of the program, and no proxy before it, can disagree about the path.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace sparrow {

enum class PercentDecode {
  kPath,   // %2F and %25 stay: decoding them would make two different paths equal
  kQuery,  // '+' is a space
};

// nullopt: an incomplete escape, a control character, or bytes that are not UTF-8.
std::optional<std::string> percent_decoded(std::string_view text, PercentDecode how);

struct Target {
  std::string path;   // "/v1/models"; "*" for the server as a whole
  std::string query;  // without '?'
  std::string host;   // of an absolute target; empty otherwise
};

// Origin form, absolute form of http and https, and "*" for OPTIONS. nullopt for all else, for fragments,
// user names, bytes outside printable ASCII and "." or ".." segments, plain or encoded.
std::optional<Target> parse_target(std::string_view text, std::string_view method);

// host[:port] as a Host field may have it.
bool is_valid_host(std::string_view host);

}  // namespace sparrow
