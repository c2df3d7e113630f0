// SPDX-License-Identifier: Apache-2.0
// Any bytes as the answer of somebody else's server. However they are cut into reads, the outcome is the
// same, and never larger than allowed.
#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/check.h"
#include "server/fetch/fetch_response.h"

namespace {

using namespace sparrow;

struct Outcome {
  bool failed = false, done = false, redirect = false;
  std::string location;
  MediaBytes body;

  bool operator==(const Outcome&) const = default;
};

Outcome read(std::string_view bytes, size_t step) {
  constexpr FetchLimits kLimits{.header_bytes = 1024, .body_bytes = 2000};
  FetchResponse response(kLimits);
  Outcome outcome;
  for (size_t at = 0; at < bytes.size() && !response.is_done() && !outcome.failed; at += step)
    outcome.failed = !response.feed(bytes.substr(at, step)).ok();
  outcome.done = !outcome.failed && response.is_done();
  if (!outcome.done) return outcome;
  outcome.redirect = response.is_redirect();
  if (outcome.redirect)
    outcome.location = response.location();
  else
    outcome.body = response.take_body();
  SPARROW_CHECK_LE(outcome.body.size(), kLimits.body_bytes);
  return outcome;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  const Outcome whole = read(bytes, std::max<size_t>(size, 1));
  // Where an answer is whole, how it came makes no difference. One that is refused may be refused earlier.
  const Outcome single = read(bytes, 1), pieces = read(bytes, 7);
  if (whole.done) SPARROW_CHECK(single == whole && pieces == whole);
  if (single.done) SPARROW_CHECK(whole == single);
  return 0;
}
