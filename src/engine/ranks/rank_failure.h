// SPDX-License-Identifier: Apache-2.0
// A lost rank as an error, in the words that users, clients and probes see.
#pragma once

#include "base/result.h"
#include "comm/control_link.h"

namespace sparrow {

inline Error rank_failure(const ControlLink::Failure& failure) {
  return {Errc::kStopped, strf("rank {}: {}", failure.rank, failure.reason)};
}

}  // namespace sparrow
