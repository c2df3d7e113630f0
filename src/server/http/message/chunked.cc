// SPDX-License-Identifier: Apache-2.0
#include "server/http/message/chunked.h"

#include <algorithm>

namespace sparrow {

namespace {

constexpr int kMaxSizeDigits = 15;  // no size of so many digits overflows 64 bits

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

// Of an extension or a trailer field: anything that cannot be taken for the end of a line.
bool is_line_char(char c) {
  return c == '\t' || (static_cast<unsigned char>(c) >= 0x20 && c != 0x7f);
}

}  // namespace

size_t ChunkedDecoder::consume(std::string_view bytes, std::string& body) {
  size_t used = 0;
  while (used < bytes.size() && state_ == State::kMore) {
    if (at_ != At::kData) {
      take_byte(bytes[used++]);
      continue;
    }
    const size_t n = std::min<uint64_t>(size_, bytes.size() - used);
    body.append(bytes.substr(used, n));
    used += n;
    size_ -= n;
    if (size_ == 0) at_ = At::kDataCr;
  }
  return used;
}

void ChunkedDecoder::take_byte(char c) {
  switch (at_) {
    case At::kFirstDigit:
    case At::kDigits:
      if (const int digit = hex_digit(c); digit >= 0) return take_digit(digit);
      if (at_ == At::kFirstDigit) return fail(State::kBadFraming);
      if (c == ';')
        at_ = At::kExtension;
      else
        expect(c, '\r', At::kSizeLf);
      return;
    case At::kExtension:
    case At::kTrailer:
      if (overhead_left_-- == 0) return fail(State::kTooMuchOverhead);
      if (!is_line_char(c)) expect(c, '\r', at_ == At::kExtension ? At::kSizeLf : At::kTrailerLf);
      return;
    case At::kSizeLf:
      expect(c, '\n', At::kData);
      if (state_ == State::kMore) after_size_line();
      return;
    case At::kDataCr:
      return expect(c, '\r', At::kDataLf);
    case At::kDataLf:
      return expect(c, '\n', At::kFirstDigit);
    case At::kTrailerStart:
      if (overhead_left_-- == 0) return fail(State::kTooMuchOverhead);
      // A line that starts with a space would continue the last one, and one with a colon has no name.
      if (c == ' ' || c == '\t' || c == ':') return fail(State::kBadFraming);
      if (is_line_char(c))
        at_ = At::kTrailer;
      else
        expect(c, '\r', At::kEndLf);
      return;
    case At::kTrailerLf:
      return expect(c, '\n', At::kTrailerStart);
    case At::kEndLf:
      expect(c, '\n', At::kEndLf);
      if (state_ == State::kMore) state_ = State::kDone;
      return;
    case At::kData:
      return;  // consume() takes data in pieces
  }
}

void ChunkedDecoder::take_digit(int digit) {
  at_ = At::kDigits;
  if (++digits_ > kMaxSizeDigits) return fail(State::kBadFraming);
  size_ = size_ * 16 + static_cast<uint64_t>(digit);
}

void ChunkedDecoder::after_size_line() {
  digits_ = 0;
  if (size_ == 0) {
    at_ = At::kTrailerStart;
    return;
  }
  if (size_ > max_body_bytes_ - total_bytes_) return fail(State::kTooLarge);
  total_bytes_ += size_;
}

void ChunkedDecoder::expect(char c, char wanted, At next) {
  if (c != wanted) return fail(State::kBadFraming);
  at_ = next;
}

}  // namespace sparrow
