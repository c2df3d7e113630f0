// SPDX-License-Identifier: Apache-2.0
// The part of Connection that speaks HTTP.
#include "server/http/connection.h"

#include <algorithm>
#include <boost/asio/use_awaitable.hpp>

#include "base/strf.h"
#include "server/http/message/cors.h"

namespace sparrow {

namespace {

constexpr size_t kKeptBufferBytes = 2 << 10;  // what an idle connection may hold on to
constexpr size_t kMaxRequestIdBytes = 128;
constexpr size_t kJoinedBodyBytes = 64 << 10;  // sent in one piece with its head

std::string describe_peer(const net::ip::tcp::socket& socket) {
  boost::system::error_code ec;
  const auto endpoint = socket.remote_endpoint(ec);
  if (ec) return "-";
  const std::string address = endpoint.address().to_string();
  return endpoint.address().is_v6() ? strf("[{}]:{}", address, endpoint.port())
                                    : strf("{}:{}", address, endpoint.port());
}

bool is_usable_request_id(std::string_view id) {
  return !id.empty() && id.size() <= kMaxRequestIdBytes && std::all_of(id.begin(), id.end(), [](char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
           std::string_view("-_.:/+=@").find(c) != std::string_view::npos;
  });
}

void release(std::string& buffer) {
  buffer.clear();
  if (buffer.capacity() > kKeptBufferBytes) buffer.shrink_to_fit();
}

}  // namespace

Connection::Connection(HttpServices& services, Worker& worker, net::ip::tcp::socket socket,
                       std::unique_ptr<Transport> transport)
    : services_(services),
      limits_(services.options.limits),
      worker_(worker),
      socket_(std::move(socket)),
      transport_(std::move(transport)),
      timer_(worker.io()),
      peer_(describe_peer(socket_)),
      position_(worker.enter(this)) {}

// Also when an exception ended it in the middle of a request.
Connection::~Connection() {
  release_request();
  leave_idle();
  worker_.leave(position_);
  services_.connection_ended();
}

net::awaitable<void> Connection::run() {
  const auto self = shared_from_this();
  try {
    bool more = co_await handshake();
    while (more) more = co_await serve_one();
    co_await finish();
  } catch (...) {
    // Out of memory, most likely: this connection ends, the others go on.
    boost::system::error_code ignored;
    socket_.close(ignored);
  }
}

// False: the connection has served its last request.
net::awaitable<bool> Connection::serve_one() {
  begin_request();
  const bool complete = co_await read_request();
  leave_idle();
  if (refusal_)
    co_await respond(std::move(*refusal_));
  else if (complete)
    co_await run_handler();
  end_request();
  const bool usable = keep_alive_ && sent_all_ && !aborted_;
  co_return (complete && usable);
}

void Connection::evict() {
  leave_idle();
  abort();
}

bool Connection::has_input_waiting() {
  char byte;
  return ::recv(socket_.native_handle(), &byte, 1, MSG_PEEK | MSG_DONTWAIT) > 0;
}

void Connection::leave_idle() {
  if (idle_position_) worker_.leave_idle(*std::exchange(idle_position_, std::nullopt));
}

void Connection::begin_request() {
  parser_.emplace(limits_);
  refusal_.reset();
  answer_ = Answer::kNone;
  status_ = 0;
  response_bytes_ = 0;
  sent_all_ = true;
  keep_alive_ = false;
  failure_.clear();
}

void Connection::release_request() {
  services_.body_bytes -= std::exchange(reserved_body_bytes_, 0);
  if (wake_) std::exchange(wake_, nullptr)->detach();
}

void Connection::end_request() {
  release_request();
  const HttpRequest& request = parser_->request();
  if (services_.options.on_done && (status_ != 0 || !request.method.empty())) {
    const std::chrono::duration<double> elapsed = Clock::now() - request.received_at;
    services_.options.on_done({.request = request,
                               .status = status_,
                               .response_bytes = response_bytes_,
                               .seconds = elapsed.count(),
                               .complete = answer_ == Answer::kComplete && sent_all_,
                               .notes = notes_,
                               .failure = failure_});
  }
  notes_.clear();
  release(out_);
  release(out_body_);
}

void Connection::refuse(const ApiError& error) {
  refusal_ = services_.options.tell_error(parser_->request(), error);
  keep_alive_ = false;
}

void Connection::consume_input() {
  in_used_ += parser_->consume(std::string_view(in_).substr(in_used_));
  if (in_used_ == in_.size()) {
    release(in_);
    in_used_ = 0;
  } else if (in_used_ > in_.size() / 2) {
    in_.erase(0, in_used_);
    in_used_ = 0;
  }
}

// False: there is nothing to answer, or refusal_ is the answer and the connection ends after it.
net::awaitable<bool> Connection::read_request() {
  if (!co_await read_head()) co_return false;
  name_request();
  if (parser_->state() == RequestParser::State::kFailed) {
    refuse(parser_->error());
    co_return false;
  }
  keep_alive_ = parser_->keep_alive();
  check_head();
  const bool has_body = parser_->state() == RequestParser::State::kBody;
  if (refusal_) {
    keep_alive_ = keep_alive_ && !has_body;  // what follows is a body that nobody wants to read
    co_return !has_body;
  }
  co_return !has_body || co_await read_body();
}

net::awaitable<bool> Connection::read_head() {
  auto deadline = deadline_for(first_request_ ? limits_.header_time : limits_.idle_time, 0);
  first_request_ = false;
  bool started = false;
  for (;;) {
    consume_input();
    if (!started && parser_->started()) {
      started = true;
      parser_->request().received_at = Clock::now();
      deadline = deadline_for(limits_.header_time, 0);
      leave_idle();
    }
    if (parser_->state() != RequestParser::State::kHead) co_return true;
    if (!started && !idle_position_) {
      if (services_.draining) co_return false;
      idle_position_ = worker_.enter_idle(this);
    }
    const ReadResult result = co_await read_more(deadline);
    if (result == ReadResult::kTimeout && started) {
      name_request();
      refuse(
          {.status = 408, .message = "The request head did not arrive in time.", .code = "request_timeout"});
    }
    if (result != ReadResult::kData) co_return false;
  }
}

void Connection::name_request() {
  HttpRequest& request = parser_->request();
  request.peer = peer_;
  const std::string* id = request.headers.find("X-Request-Id");
  request.request_id = id && is_usable_request_id(*id) ? *id : worker_.new_request_id();
}

void Connection::check_head() {
  const HttpRequest& request = parser_->request();
  refusal_ = cors_preflight(request, services_.options.allowed_origins);
  if (!refusal_ && request.path == "*") {
    refusal_ = HttpResponse{.status = 204, .content_type = ""};
    refusal_->headers.add("Allow", "GET, HEAD, POST, DELETE, OPTIONS");
  }
  if (!refusal_ && services_.options.check_head) refusal_ = services_.options.check_head(request);
}

net::awaitable<bool> Connection::read_body() {
  consume_input();
  if (parser_->expects_continue() && parser_->state() == RequestParser::State::kBody &&
      parser_->request().body.empty()) {
    const bool sent = co_await send("HTTP/1.1 100 Continue\r\n\r\n");
    if (!sent) co_return false;
  }
  const auto base = deadline_for(limits_.body_time, 0);
  while (parser_->state() == RequestParser::State::kBody) {
    if (!reserve_body()) {
      refuse(
          {.status = 503, .message = "The server is reading too many large requests.", .code = "overloaded"});
      refusal_->headers.add("Retry-After", "1");
      co_return false;
    }
    const int64_t received = static_cast<int64_t>(parser_->request().body.size());
    const auto extra = std::chrono::milliseconds(received * 1000 / limits_.bytes_per_second);
    const ReadResult result = co_await read_more(base + extra);
    if (result == ReadResult::kTimeout)
      refuse(
          {.status = 408, .message = "The request body did not arrive in time.", .code = "request_timeout"});
    if (result != ReadResult::kData) co_return false;
    consume_input();
  }
  if (parser_->state() != RequestParser::State::kFailed) co_return true;
  refuse(parser_->error());
  co_return false;
}

bool Connection::reserve_body() {
  const size_t now = parser_->request().body.capacity();
  const size_t more = now - std::min(now, reserved_body_bytes_);
  if (services_.body_bytes.fetch_add(more) + more > limits_.all_bodies_bytes) {
    services_.body_bytes -= more;
    return false;
  }
  reserved_body_bytes_ += more;
  return true;
}

net::awaitable<void> Connection::run_handler() {
  Exchange exchange(*this);
  try {
    co_await services_.handler(exchange);
  } catch (const std::exception& exception) {
    failure_ = exception.what();
  } catch (...) {
    failure_ = "an exception of unknown type";
  }
  if (answer_ == Answer::kNone && !peer_gone() && failure_.empty()) failure_ = "the handler gave no answer";
  if (answer_ == Answer::kNone && !failure_.empty()) {
    const ApiError error{.status = 500, .message = "The server failed to answer.", .code = "internal_error"};
    HttpResponse response = services_.options.tell_error(parser_->request(), error);
    co_await respond(std::move(response));
  }
  // An unfinished stream must not look finished: without its last chunk the peer knows.
  if (answer_ != Answer::kComplete) keep_alive_ = false;
  if (answer_ == Answer::kStreaming) output_broken_ = true;
}

std::string Connection::take_head(const ResponseHead& head, const HttpHeaders& headers) {
  ResponseHead full = head;
  const HttpRequest& request = parser_->request();
  if (draining()) keep_alive_ = false;
  full.keep_alive = keep_alive_;
  full.to_http_1_0 = request.http_1_0;
  full.request_id = request.request_id;
  full.date = worker_.date();
  status_ = head.status;
  std::string out = std::move(out_);
  out.clear();
  append_response_head(out, full, headers, cors_headers(request, services_.options.allowed_origins));
  return out;
}

// Not a coroutine itself: what it is given is used up before anything can suspend.
net::awaitable<bool> Connection::respond(HttpResponse&& response) {
  if (answer_ != Answer::kNone) return nothing_to_send();
  answer_ = Answer::kComplete;
  const bool bodiless = response.status == 204 || response.status == 304;
  ResponseHead head{.status = response.status, .content_type = response.content_type};
  if (!bodiless) head.content_length = response.body.size();
  out_ = take_head(head, response.headers);
  if (bodiless || parser_->request().method == "HEAD") return send(out_);
  response_bytes_ = static_cast<int64_t>(response.body.size());
  if (response.body.size() > kJoinedBodyBytes) {
    out_body_ = std::move(response.body);
    return send_with_body();
  }
  out_ += response.body;
  return send(out_);
}

net::awaitable<bool> Connection::begin_stream(std::string_view content_type, const HttpHeaders& headers) {
  if (answer_ != Answer::kNone) return nothing_to_send();
  answer_ = Answer::kStreaming;
  const bool chunked = !parser_->request().http_1_0;
  if (!chunked) keep_alive_ = false;  // the close is what ends the body
  out_ = take_head({.status = 200, .content_type = content_type, .chunked = chunked}, headers);
  return send(out_);
}

net::awaitable<bool> Connection::write_chunk(std::string_view chunk) {
  if (answer_ != Answer::kStreaming || output_broken_ || aborted_) co_return false;
  if (chunk.empty() || parser_->request().method == "HEAD") co_return true;
  response_bytes_ += static_cast<int64_t>(chunk.size());
  if (parser_->request().http_1_0) co_return co_await send(chunk);
  out_.clear();
  append_chunk(out_, chunk);
  co_return co_await send(out_);
}

net::awaitable<bool> Connection::end_stream() {
  if (answer_ != Answer::kStreaming) co_return false;
  answer_ = Answer::kComplete;
  const HttpRequest& request = parser_->request();
  if (request.http_1_0 || request.method == "HEAD") co_return !output_broken_;
  co_return co_await send(kLastChunk);
}

net::awaitable<bool> Connection::nothing_to_send() {
  co_return false;
}

std::shared_ptr<WakeState> Connection::wake_state() {
  if (!wake_) wake_ = std::make_shared<WakeState>(worker_.io(), *this);
  return wake_;
}

}  // namespace sparrow
