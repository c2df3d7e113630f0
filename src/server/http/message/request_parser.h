// SPDX-License-Identifier: Apache-2.0
// Bytes -> one HttpRequest, within the limits. Beast reads the grammar of the head; the rules about framing,
// Host and targets on top of it are ours and strict: what two readers could understand in two ways is
// refused.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

#include "server/http/message/chunked.h"
#include "server/http/message/limits.h"
#include "server/http/message/message.h"

namespace sparrow {

class RequestParser {
 public:
  enum class State { kHead, kBody, kDone, kFailed };

  explicit RequestParser(const HttpLimits& limits) : limits_(limits) {}

  // Takes bytes from the front and returns how many; stops after the head, so that it can be looked at before
  // the body. Each call starts with the bytes that the last one left.
  size_t consume(std::string_view bytes);

  State state() const { return state_; }
  bool started() const { return started_; }
  const ApiError& error() const { return *error_; }  // kFailed only: what to answer before closing
  HttpRequest& request() { return request_; }

  // Known when the head is done.
  bool keep_alive() const { return keep_alive_; }
  bool expects_continue() const { return expects_continue_; }

 private:
  size_t consume_head(std::string_view bytes);
  size_t consume_body(std::string_view bytes);
  // The length of the head, when all of it is there.
  std::optional<size_t> scan_head(std::string_view bytes);
  void parse_head(std::string_view head);
  void check_target(std::string_view target);
  void check_host();
  void check_framing();
  void check_transfer_encoding();
  void check_content_length();
  void check_expectations();
  void fail(int status, std::string message, std::string code = "bad_request");

  const HttpLimits& limits_;
  State state_ = State::kHead;
  std::optional<ApiError> error_;
  HttpRequest request_;
  bool started_ = false, skipped_empty_line_ = false;
  bool keep_alive_ = false, expects_continue_ = false;
  size_t scanned_ = 0, line_start_ = 0;  // in the head: bytes looked at; where the line at hand begins
  int lines_ = 0;
  uint64_t body_left_ = 0;
  std::optional<ChunkedDecoder> chunked_;
};

}  // namespace sparrow
