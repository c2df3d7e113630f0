// SPDX-License-Identifier: Apache-2.0
// FetchResponse: what somebody else's server answers, read within limits.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

#include "base/result.h"
#include "media/media_bytes.h"

namespace sparrow {

struct FetchLimits {
  size_t header_bytes = 16 << 10;
  size_t body_bytes = size_t{32} << 20;
};

class FetchResponse {
 public:
  explicit FetchResponse(const FetchLimits& limits);
  ~FetchResponse();
  FetchResponse(FetchResponse&&) noexcept;
  FetchResponse& operator=(FetchResponse&&) noexcept;

  // The next bytes of the connection. An error where they are no answer of a picture within the limits: a
  // status that is neither 200 nor a redirect, a coding, a length that is missing or too large.
  Status feed(std::string_view bytes);
  // All is there. A redirect is there with its head.
  bool is_done() const;

  bool is_redirect() const;
  std::string location() const;
  MediaBytes take_body();

 private:
  struct State;
  Status feed_body(std::string_view bytes);
  Status check_head() const;
  Error too_large() const;
  std::unique_ptr<State> state_;
};

}  // namespace sparrow
