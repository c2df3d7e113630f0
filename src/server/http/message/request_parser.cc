// SPDX-License-Identifier: Apache-2.0
#include "server/http/message/request_parser.h"

#include <algorithm>
#include <array>
#include <boost/beast/http/basic_parser.hpp>
#include <charconv>

#include "base/strf.h"
#include "server/http/message/target.h"

namespace sparrow {

namespace {

namespace beast_http = boost::beast::http;
using boost::beast::error_code;
// Beast's own type, which is not std::string_view in this version.
using BeastView = boost::beast::string_view;

constexpr size_t kVersionBytes = 16;  // " HTTP/1.1\r\n", the method and the space after it

std::string to_string(BeastView view) {
  return std::string(view.data(), view.size());
}

// Collects what Beast finds in a head; bodies are not its business here.
class HeadReader final : public beast_http::basic_parser<true> {
 public:
  HeadReader() { skip(true); }

  std::string method, target;
  int version = 0;
  HttpHeaders headers;

 private:
  void on_request_impl(beast_http::verb, BeastView name, BeastView where, int v, error_code&) override {
    method = to_string(name);
    target = to_string(where);
    version = v;
  }
  void on_field_impl(beast_http::field, BeastView name, BeastView value, error_code&) override {
    headers.add(to_string(name), to_string(value));
  }
  void on_response_impl(int, BeastView, int, error_code&) override {}
  void on_header_impl(error_code&) override {}
  void on_body_init_impl(const boost::optional<std::uint64_t>&, error_code&) override {}
  std::size_t on_body_impl(BeastView body, error_code&) override { return body.size(); }
  void on_chunk_header_impl(std::uint64_t, BeastView, error_code&) override {}
  std::size_t on_chunk_body_impl(std::uint64_t, BeastView body, error_code&) override { return body.size(); }
  void on_finish_impl(error_code&) override {}
};

std::string describe(const error_code& ec) {
  if (ec == beast_http::error::bad_method) return "The request line has no valid method.";
  if (ec == beast_http::error::bad_target) return "The request target is not valid.";
  if (ec == beast_http::error::bad_content_length || ec == beast_http::error::multiple_content_length)
    return "Content-Length is not valid, or contradicts another field.";
  if (ec == beast_http::error::bad_transfer_encoding)
    return "Transfer-Encoding is not valid, or contradicts another field.";
  return "The request head is not valid HTTP.";
}

// That it exists; which of them a path has is for its handler to say.
bool is_method(std::string_view method) {
  static constexpr std::array<std::string_view, 9> kMethods = {"GET",    "POST",  "HEAD",  "OPTIONS", "PUT",
                                                               "DELETE", "PATCH", "TRACE", "QUERY"};
  return std::find(kMethods.begin(), kMethods.end(), method) != kMethods.end();
}

}  // namespace

void RequestParser::fail(int status, std::string message, std::string code) {
  if (state_ == State::kFailed) return;
  state_ = State::kFailed;
  error_ = ApiError{.status = status, .message = std::move(message), .code = std::move(code)};
}

size_t RequestParser::consume(std::string_view bytes) {
  if (bytes.empty()) return 0;
  started_ = true;
  switch (state_) {
    case State::kHead:
      return consume_head(bytes);
    case State::kBody:
      return consume_body(bytes);
    case State::kDone:
    case State::kFailed:
      break;
  }
  return 0;
}

size_t RequestParser::consume_head(std::string_view bytes) {
  // Some clients end a body with an empty line that its length does not count.
  if (scanned_ == 0 && !skipped_empty_line_ && bytes.starts_with("\r\n")) {
    skipped_empty_line_ = true;
    started_ = false;
    return 2 + consume(bytes.substr(2));
  }
  if (bytes == "\r" && !skipped_empty_line_) return 0;
  const auto length = scan_head(bytes);
  if (!length || state_ == State::kFailed) return 0;
  parse_head(bytes.substr(0, *length));
  return *length;
}

// Everything that can be refused without the whole head is refused here, before more of it is waited for.
std::optional<size_t> RequestParser::scan_head(std::string_view bytes) {
  if (bytes[0] < 'A' || bytes[0] > 'Z') fail(400, "The request line has no valid method.");
  while (state_ == State::kHead) {
    const size_t lf = bytes.find('\n', scanned_);
    const size_t line_end = std::min(lf, bytes.size());
    if (lines_ == 0 && line_end > limits_.target_bytes + kVersionBytes) {
      fail(414, strf("The request target is longer than {} bytes.", limits_.target_bytes), "uri_too_long");
    } else if (line_end >= limits_.header_bytes) {
      fail(431, strf("The request head is longer than {} bytes.", limits_.header_bytes), "headers_too_large");
    } else if (lf == std::string_view::npos) {
      scanned_ = bytes.size();
      return std::nullopt;
    } else if (lf == 0 || bytes[lf - 1] != '\r') {
      fail(400, "Lines of the request head must end with CRLF.");
    } else if (bytes[line_start_] == ' ' || bytes[line_start_] == '\t') {
      fail(400, "A header field must not continue on the next line.");
    } else if (lf - 1 == line_start_) {
      return lf + 1;
    } else if (++lines_ > limits_.header_fields + 1) {
      fail(431, strf("The request has more than {} header fields.", limits_.header_fields),
           "headers_too_large");
    }
    scanned_ = line_start_ = lf + 1;
  }
  return std::nullopt;
}

void RequestParser::parse_head(std::string_view head) {
  HeadReader reader;
  reader.header_limit(static_cast<std::uint32_t>(head.size() + 1));
  error_code ec;
  reader.put(boost::asio::const_buffer(head.data(), head.size()), ec);
  if (ec == beast_http::error::bad_version && head.find(" HTTP/") != std::string_view::npos)
    return fail(505, "Only HTTP/1.1 and HTTP/1.0 are spoken here.", "http_version_not_supported");
  if (ec || !reader.is_header_done()) return fail(400, describe(ec));

  request_.method = std::move(reader.method);
  request_.headers = std::move(reader.headers);
  request_.http_1_0 = reader.version == 10;
  keep_alive_ = reader.keep_alive();
  if (!is_method(request_.method))
    return fail(501, strf("The method {} is not implemented.", request_.method.substr(0, 32)),
                "not_implemented");
  check_target(reader.target);
  check_host();
  check_framing();
  check_expectations();
  if (state_ == State::kHead) state_ = chunked_ || body_left_ > 0 ? State::kBody : State::kDone;
}

void RequestParser::check_target(std::string_view text) {
  auto target = parse_target(text, request_.method);
  if (!target) return fail(400, "The request target is not valid.");
  request_.path = std::move(target->path);
  request_.query = std::move(target->query);
}

void RequestParser::check_host() {
  const int count = request_.headers.count("Host");
  if (count == 0 && !request_.http_1_0) return fail(400, "The Host field is missing.");
  if (count > 1) return fail(400, "There is more than one Host field.");
  if (count == 1 && !is_valid_host(*request_.headers.find("Host"))) fail(400, "The Host field is not valid.");
}

void RequestParser::check_framing() {
  const int lengths = request_.headers.count("Content-Length");
  const int encodings = request_.headers.count("Transfer-Encoding");
  if (lengths > 0 && encodings > 0)
    return fail(400, "Content-Length and Transfer-Encoding must not be sent together.");
  if (lengths > 1) return fail(400, "There is more than one Content-Length field.");
  if (encodings > 1) return fail(400, "There is more than one Transfer-Encoding field.");
  if (encodings == 1) return check_transfer_encoding();
  if (lengths == 1) check_content_length();
}

void RequestParser::check_transfer_encoding() {
  const std::string& value = *request_.headers.find("Transfer-Encoding");
  if (request_.http_1_0) return fail(400, "HTTP/1.0 has no Transfer-Encoding.");
  if (!same_field_name(value, "chunked"))
    return fail(501, "The only Transfer-Encoding that is implemented is chunked.", "not_implemented");
  chunked_.emplace(limits_.body_bytes, limits_.header_bytes);
}

void RequestParser::check_content_length() {
  const std::string& value = *request_.headers.find("Content-Length");
  const bool digits = std::all_of(value.begin(), value.end(), [](char c) { return c >= '0' && c <= '9'; });
  if (value.empty() || !digits) return fail(400, "Content-Length must be a number of digits only.");
  const auto [end, ec] = std::from_chars(value.data(), value.data() + value.size(), body_left_);
  if (ec == std::errc::result_out_of_range || body_left_ > limits_.body_bytes)
    fail(413, strf("The request body is longer than {} bytes.", limits_.body_bytes), "body_too_large");
}

void RequestParser::check_expectations() {
  if (const std::string* expect = request_.headers.find("Expect"); expect && !request_.http_1_0) {
    expects_continue_ = same_field_name(*expect, "100-continue");
    if (!expects_continue_)
      return fail(417, "The only expectation that can be met is 100-continue.", "expectation_failed");
  }
  const std::string* encoding = request_.headers.find("Content-Encoding");
  if (encoding && !same_field_name(*encoding, "identity"))
    fail(415, "Compressed request bodies are not supported.", "unsupported_content_encoding");
}

size_t RequestParser::consume_body(std::string_view bytes) {
  if (!chunked_) {
    const size_t n = std::min<uint64_t>(body_left_, bytes.size());
    request_.body.append(bytes.substr(0, n));
    body_left_ -= n;
    if (body_left_ == 0) state_ = State::kDone;
    return n;
  }
  const size_t n = chunked_->consume(bytes, request_.body);
  switch (chunked_->state()) {
    case ChunkedDecoder::State::kMore:
      break;
    case ChunkedDecoder::State::kDone:
      state_ = State::kDone;
      break;
    case ChunkedDecoder::State::kBadFraming:
      fail(400, "The chunked request body is malformed.");
      break;
    case ChunkedDecoder::State::kTooLarge:
      fail(413, strf("The request body is longer than {} bytes.", limits_.body_bytes), "body_too_large");
      break;
    case ChunkedDecoder::State::kTooMuchOverhead:
      fail(400, "The chunked request body has too many extensions or trailer fields.");
      break;
  }
  return n;
}

}  // namespace sparrow
