// SPDX-License-Identifier: Apache-2.0
// /openapi.json: what this server answers to, in OpenAPI 3.1, from the tables that its readers check bodies
// by.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "server/openai/fields.h"

namespace sparrow {

// What a route takes and gives.
struct Operation {
  std::string_view method, path;  // "{}": a segment, an id; "*" at the end: whatever follows, likewise
  std::string_view summary;
  std::string_view body = {};    // the name of a schema; empty: none
  std::string_view answer = {};  // likewise; empty: text
  bool is_open = false;          // needs no key
};

std::string openapi_json(std::span<const Operation> operations, const openai::Defaults& defaults,
                         std::string_view version, bool has_keys);

}  // namespace sparrow
