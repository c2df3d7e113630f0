// SPDX-License-Identifier: Apache-2.0
#include "server/http/connection.h"

namespace sparrow {

void Waker::wake() const {
  state_->wake();
}

const HttpRequest& Exchange::request() const {
  return connection_.request();
}

net::awaitable<bool> Exchange::respond(HttpResponse response) {
  return connection_.respond(std::move(response));
}

net::awaitable<bool> Exchange::begin_stream(std::string_view content_type, const HttpHeaders& headers) {
  return connection_.begin_stream(content_type, headers);
}

net::awaitable<bool> Exchange::write(std::string_view chunk) {
  return connection_.write_chunk(chunk);
}

net::awaitable<bool> Exchange::end_stream() {
  return connection_.end_stream();
}

net::awaitable<WaitResult> Exchange::wait(Clock::time_point deadline) {
  return connection_.wait(deadline);
}

net::awaitable<void> Exchange::wait_for_wake() {
  return connection_.wait_for_wake();
}

net::awaitable<void> Exchange::yield() {
  return connection_.yield();
}

std::string Exchange::take_body() {
  return connection_.take_body();
}

Waker Exchange::waker() const {
  return Waker(connection_.wake_state());
}

bool Exchange::peer_gone() const {
  return connection_.peer_gone();
}

bool Exchange::draining() const {
  return connection_.draining();
}

void Exchange::annotate(std::string name, std::string value) {
  connection_.annotate({.name = std::move(name), .text = std::move(value), .is_number = false});
}

void Exchange::annotate(std::string name, int64_t value) {
  connection_.annotate({.name = std::move(name), .text = std::to_string(value), .is_number = true});
}

}  // namespace sparrow
