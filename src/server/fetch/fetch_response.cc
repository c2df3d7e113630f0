// SPDX-License-Identifier: Apache-2.0
#include "server/fetch/fetch_response.h"

#include <algorithm>
#include <boost/beast/core/string.hpp>
#include <boost/beast/http/empty_body.hpp>
#include <boost/beast/http/parser.hpp>
#include <cstdint>
#include <utility>

#include "base/strf.h"
#include "server/http/message/chunked.h"

namespace sparrow {
namespace {

namespace beast = boost::beast;
namespace http = boost::beast::http;

Error refused(std::string message) {
  return {Errc::kInvalidArgument, std::move(message)};
}

}  // namespace

// Beast reads the head. Chunks are read as the server's own requests are: Beast wants their lines whole, and
// trips over an assertion of its own where the last one comes in pieces.
struct FetchResponse::State {
  explicit State(const FetchLimits& limits)
      : limits(limits), chunked(limits.body_bytes, limits.header_bytes + limits.body_bytes / 16) {
    head.header_limit(static_cast<uint32_t>(limits.header_bytes));
    head.body_limit(limits.body_bytes);
    head.eager(false);
  }

  bool has_head() const { return head.is_header_done(); }

  FetchLimits limits;
  http::response_parser<http::empty_body> head;
  std::string held;  // of a head that is not whole yet
  ChunkedDecoder chunked;
  MediaBytes body;
};

FetchResponse::FetchResponse(const FetchLimits& limits) : state_(std::make_unique<State>(limits)) {}
FetchResponse::~FetchResponse() = default;
FetchResponse::FetchResponse(FetchResponse&&) noexcept = default;
FetchResponse& FetchResponse::operator=(FetchResponse&&) noexcept = default;

Status FetchResponse::feed(std::string_view bytes) {
  if (state_->has_head()) return feed_body(bytes);
  std::string& held = state_->held;
  held.append(bytes);
  for (size_t used = 0; used < held.size();) {
    beast::error_code ec;
    used += state_->head.put(boost::asio::buffer(held.data() + used, held.size() - used), ec);
    if (ec == http::error::header_limit) return refused("its server sends too many header fields");
    if (ec == http::error::body_limit) return too_large();
    if (ec && ec != http::error::need_more)
      return refused(strf("its server does not answer in HTTP ({})", ec.message()));
    if (state_->has_head()) {
      SPARROW_TRY(check_head());
      const std::string rest = held.substr(used);
      held = {};
      return feed_body(rest);
    }
    if (ec == http::error::need_more) {
      held.erase(0, used);
      break;
    }
  }
  return Ok{};
}

Status FetchResponse::feed_body(std::string_view bytes) {
  if (is_done() || bytes.empty()) return Ok{};
  MediaBytes& body = state_->body;
  const auto append = [&](std::string_view data) {
    const auto* const first = reinterpret_cast<const std::byte*>(data.data());
    body.insert(body.end(), first, first + data.size());
  };
  if (!state_->head.chunked()) {
    append(bytes.substr(0, *state_->head.content_length() - body.size()));
    return Ok{};
  }
  std::string data;
  state_->chunked.consume(bytes, data);
  append(data);
  switch (state_->chunked.state()) {
    case ChunkedDecoder::State::kTooLarge:
      return too_large();
    case ChunkedDecoder::State::kBadFraming:
    case ChunkedDecoder::State::kTooMuchOverhead:
      return refused("its server sends chunks that cannot be read");
    default:
      return Ok{};
  }
}

Error FetchResponse::too_large() const {
  return refused(strf("it has more bytes than the {} that are allowed", state_->limits.body_bytes));
}

Status FetchResponse::check_head() const {
  if (is_redirect()) return Ok{};
  const auto& head = state_->head.get();
  if (head.result_int() != 200) return refused(strf("its server answers with status {}", head.result_int()));
  const auto coding = head.find(http::field::content_encoding);
  if (coding != head.end() && !beast::iequals(coding->value(), "identity"))
    return refused("its server compresses it, and was asked not to");
  const auto transfer = head.find(http::field::transfer_encoding);
  if (transfer != head.end() && !beast::iequals(transfer->value(), "chunked"))
    return refused("its server sends it in a transfer coding that was not asked for");
  const auto length = state_->head.content_length();
  if (!state_->head.chunked() && !length) return refused("its server does not say how long it is");
  if (length && *length > state_->limits.body_bytes) return too_large();
  return Ok{};
}

bool FetchResponse::is_done() const {
  if (!state_->has_head()) return false;
  if (is_redirect()) return true;
  if (state_->head.chunked()) return state_->chunked.state() == ChunkedDecoder::State::kDone;
  return state_->head.content_length() == state_->body.size();
}

bool FetchResponse::is_redirect() const {
  if (!state_->has_head()) return false;
  const unsigned status = state_->head.get().result_int();
  return status == 301 || status == 302 || status == 303 || status == 307 || status == 308;
}

std::string FetchResponse::location() const {
  return std::string(state_->head.get()[http::field::location]);
}

MediaBytes FetchResponse::take_body() {
  return std::move(state_->body);
}

}  // namespace sparrow
