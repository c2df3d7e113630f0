// SPDX-License-Identifier: Apache-2.0
#include "server/http/message/limits.h"

#include "base/strf.h"

namespace sparrow {

Status HttpLimits::validate() const {
  const auto positive = [](const char* name, int64_t value) -> Status {
    if (value > 0) return Ok{};
    return Error{Errc::kInvalidArgument, strf("{} must be positive, got {}", name, value), name};
  };
  SPARROW_TRY(positive("header_bytes", static_cast<int64_t>(header_bytes)));
  SPARROW_TRY(positive("header_fields", header_fields));
  SPARROW_TRY(positive("target_bytes", static_cast<int64_t>(target_bytes)));
  SPARROW_TRY(positive("body_bytes", static_cast<int64_t>(body_bytes)));
  SPARROW_TRY(positive("all_bodies_bytes", static_cast<int64_t>(all_bodies_bytes)));
  SPARROW_TRY(positive("pipelined_bytes", static_cast<int64_t>(pipelined_bytes)));
  SPARROW_TRY(positive("connections", connections));
  SPARROW_TRY(positive("header_time", header_time.count()));
  SPARROW_TRY(positive("body_time", body_time.count()));
  SPARROW_TRY(positive("idle_time", idle_time.count()));
  SPARROW_TRY(positive("write_time", write_time.count()));
  SPARROW_TRY(positive("bytes_per_second", bytes_per_second));
  SPARROW_TRY(positive("linger_time", linger_time.count()));
  return Ok{};
}

}  // namespace sparrow
