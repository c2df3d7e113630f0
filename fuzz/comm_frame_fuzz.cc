// SPDX-License-Identifier: Apache-2.0
// Any bytes as what another rank sends: frames, whatever pieces they come in, and what is in them.
#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "base/check.h"
#include "comm/host/peers.h"
#include "comm/net/frame.h"
#include "comm/net/hello.h"

namespace {

using sparrow::Bytes;

// The frames of a stream; whether it ended in an error is in the last place.
std::vector<Bytes> frames(std::span<const std::byte> stream, size_t piece) {
  std::vector<Bytes> found;
  sparrow::FrameParser parser;
  while (!stream.empty()) {
    const size_t n = std::min(piece, stream.size());
    parser.add(stream.first(n));
    stream = stream.subspan(n);
    for (;;) {
      auto frame = parser.next();
      if (!frame.ok()) {
        SPARROW_CHECK(!frame.error().message.empty());
        found.emplace_back(1);
        return found;
      }
      if (!frame->has_value()) break;
      found.push_back(sparrow::make_frame((*frame)->type, (*frame)->payload));
    }
  }
  found.emplace_back();
  return found;
}

void read_payload(std::span<const std::byte> payload) {
  const auto hello = sparrow::unpack_hello(payload);
  if (hello.ok()) {
    // Flags and what fits into a number come back; so a second round changes nothing.
    const Bytes packed = sparrow::pack(hello.value());
    SPARROW_CHECK(sparrow::pack(sparrow::unpack_hello(packed).value()) == packed);
    (void)sparrow::mismatch(hello.value(), hello.value());
    (void)sparrow::conflict(hello.value(), hello.value());
  }
  const auto news = sparrow::unpack_news(payload, 8);
  if (news.ok()) SPARROW_CHECK(news->rank >= 0 && news->rank < 8);
  sparrow::Unpacker in(payload);
  while (in.more()) (void)in.raw();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto stream = std::as_bytes(std::span(data, size));
  const std::vector<Bytes> whole = frames(stream, size + 1);
  SPARROW_CHECK(whole == frames(stream, 1 + size % 13));
  for (const Bytes& frame : whole)
    if (frame.size() >= sparrow::kFrameHead) read_payload(std::span(frame).subspan(sparrow::kFrameHead));
  read_payload(stream);
  return 0;
}
