// SPDX-License-Identifier: Apache-2.0
// Decoder of chunked bodies, a byte at a time: it never needs a whole line, so that a peer cannot make it
// buffer one. Strict: exactly CRLF, no space around a size, at most 15 hex digits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace sparrow {

class ChunkedDecoder {
 public:
  enum class State { kMore, kDone, kBadFraming, kTooLarge, kTooMuchOverhead };

  // Extensions and trailer fields are skipped, but may take no more than `max_overhead_bytes` together: a
  // trickle of them would be a request that never ends.
  ChunkedDecoder(size_t max_body_bytes, size_t max_overhead_bytes)
      : max_body_bytes_(max_body_bytes), overhead_left_(max_overhead_bytes) {}

  // Appends data to `body`; returns the bytes taken, all of them unless the state is no longer kMore.
  size_t consume(std::string_view bytes, std::string& body);
  State state() const { return state_; }

 private:
  enum class At {
    kFirstDigit,
    kDigits,
    kExtension,
    kSizeLf,
    kData,
    kDataCr,
    kDataLf,
    kTrailerStart,
    kTrailer,
    kTrailerLf,
    kEndLf,
  };

  void take_byte(char c);
  void take_digit(int digit);
  void after_size_line();
  void expect(char c, char wanted, At next);
  void fail(State state) { state_ = state; }

  size_t max_body_bytes_, overhead_left_;
  State state_ = State::kMore;
  At at_ = At::kFirstDigit;
  int digits_ = 0;
  uint64_t size_ = 0;       // of the chunk that is announced, or what is left of it
  size_t total_bytes_ = 0;  // of the chunks announced so far
};

}  // namespace sparrow
