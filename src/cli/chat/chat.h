// SPDX-License-Identifier: Apache-2.0
// `sparrow chat`: its options.
#pragma once

#include <optional>
#include <string>

#include "base/result.h"

namespace sparrow::cli {

struct ChatOptions {
  std::string url = "http://127.0.0.1:8000";
  std::string api_key;    // default: SPARROW_API_KEY
  std::string cacert;     // https: trust these certificates (PEM) instead of the system's
  bool insecure = false;  // https: trust any
  std::string model;      // default: the server's first one
  std::string system;
  std::string tools;  // file, as /tools takes it
  std::optional<double> temperature;
  std::optional<int> max_tokens;
  std::optional<std::string> thinking;  // enabled, disabled or adaptive
  bool one_turn = false;                // all of standard input is one question
  bool raw = false;                     // control characters of an answer as they are
};

Status run_chat(const ChatOptions& options);

}  // namespace sparrow::cli
