// SPDX-License-Identifier: Apache-2.0
// Any bytes as HTTP requests. However they are cut into reads, the parser must find the same requests; what
// it accepts must keep its promises; and what Beast's parser accepts too, it must read the same way.
#include <algorithm>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/check.h"
#include "server/http/message/request_parser.h"

namespace {

using namespace sparrow;

struct Outcome {
  RequestParser::State state;
  size_t consumed = 0;
  HttpRequest request = {};
  int status = 0;

  bool operator==(const Outcome& other) const {
    return state == other.state && consumed == other.consumed && status == other.status &&
           request.method == other.request.method && request.path == other.request.path &&
           request.query == other.request.query && request.body == other.request.body;
  }
};

HttpLimits small_limits() {
  HttpLimits limits;
  limits.header_bytes = 2048;
  limits.header_fields = 16;
  limits.target_bytes = 256;
  limits.body_bytes = 4096;
  return limits;
}

// Reads of `step` bytes, as a connection would see them.
Outcome parse(std::string_view bytes, size_t step) {
  const HttpLimits limits = small_limits();
  RequestParser parser(limits);
  size_t used = 0;
  for (size_t seen = std::min(step, bytes.size());; seen = std::min(seen + step, bytes.size())) {
    for (size_t n = 1; n > 0;) {
      n = parser.consume(bytes.substr(used, seen - used));
      used += n;
    }
    const bool over =
        parser.state() == RequestParser::State::kDone || parser.state() == RequestParser::State::kFailed;
    if (over || seen == bytes.size()) break;
  }
  Outcome outcome{.state = parser.state()};
  // Where the parser stops in a request that it refuses is nobody's business: the connection ends.
  if (outcome.state == RequestParser::State::kFailed) {
    outcome.status = parser.error().status;
    return outcome;
  }
  outcome.consumed = used;
  outcome.request = std::move(parser.request());
  return outcome;
}

void check_promises(const Outcome& outcome) {
  if (outcome.state == RequestParser::State::kFailed) {
    SPARROW_CHECK(outcome.status >= 400 && outcome.status < 600);
    return;
  }
  if (outcome.state != RequestParser::State::kDone) return;
  const HttpRequest& request = outcome.request;
  SPARROW_CHECK(request.path == "*" || request.path.starts_with('/'));
  SPARROW_CHECK(request.path.find("/../") == std::string::npos);
  SPARROW_CHECK(!request.path.ends_with("/.."));
  for (const char c : request.path) SPARROW_CHECK(static_cast<unsigned char>(c) >= 0x20);
  SPARROW_CHECK_LE(request.body.size(), size_t{4096});
  SPARROW_CHECK_LE(request.headers.size(), size_t{16});
  SPARROW_CHECK(request.http_1_0 || request.headers.count("Host") == 1);
}

// Two readers that both take the bytes for a request must agree where it ends: that is what smuggling needs.
void compare_with_beast(std::string_view bytes, const Outcome& ours) {
  namespace http = boost::beast::http;
  http::request_parser<http::string_body> theirs;
  theirs.eager(true);
  boost::beast::error_code ec;
  const size_t consumed = theirs.put(boost::asio::const_buffer(bytes.data(), bytes.size()), ec);
  if (ec || !theirs.is_done())
    return;  // theirs knows grammars that we skip: of chunk extensions, of trailers
  SPARROW_CHECK_EQ(consumed, ours.consumed);
  SPARROW_CHECK(theirs.get().body() == ours.request.body);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  const Outcome whole = parse(bytes, bytes.size() + 1);
  check_promises(whole);
  SPARROW_CHECK(parse(bytes, 1) == whole);
  SPARROW_CHECK(parse(bytes, 7) == whole);
  if (whole.state == RequestParser::State::kDone && !bytes.starts_with("\r\n"))
    compare_with_beast(bytes, whole);
  return 0;
}
