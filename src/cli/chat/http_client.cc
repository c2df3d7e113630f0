// SPDX-License-Identifier: Apache-2.0
#include "cli/chat/http_client.h"

#include <algorithm>
#include <charconv>
#include <optional>

#include "base/strf.h"

namespace sparrow::cli {
namespace {

using Io = Connection::Io;

constexpr size_t kMaxHeadBytes = 64 << 10;

std::string head_of(const HttpServerAddress& server, const HttpCall& call) {
  std::string head = strf("{} {}{} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n", call.method,
                          server.url.path, call.path, server.url.authority());
  if (!server.api_key.empty()) head += strf("Authorization: Bearer {}\r\n", server.api_key);
  if (!call.body.empty())
    head += strf("Content-Type: application/json\r\nContent-Length: {}\r\n", call.body.size());
  return head + "\r\n";
}

// The value of a field, in lower case as the whole head.
std::optional<std::string_view> field_of(std::string_view head, std::string_view name) {
  for (size_t at = 0; (at = head.find("\r\n", at)) != std::string_view::npos;) {
    at += 2;
    std::string_view line = head.substr(at, head.find("\r\n", at) - at);
    if (!line.starts_with(name) || line.size() == name.size() || line[name.size()] != ':') continue;
    line.remove_prefix(name.size() + 1);
    while (line.starts_with(' ') || line.starts_with('\t')) line.remove_prefix(1);
    return line;
  }
  return std::nullopt;
}

// Takes the framing off a body.
class BodyReader {
 public:
  BodyReader(std::string head, const std::function<void(std::string_view)>& on_body) : on_body_(on_body) {
    std::transform(head.begin(), head.end(), head.begin(),
                   [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c | 0x20) : c; });
    chunked_ = field_of(head, "transfer-encoding").value_or("").ends_with("chunked");
    const std::string_view length = field_of(head, "content-length").value_or("");
    uint64_t value = 0;
    if (!chunked_ && std::from_chars(length.data(), length.data() + length.size(), value).ec == std::errc{})
      left_ = value;
  }

  // Takes what it can off the front of `in`. False: this is no body.
  bool take(std::string& in) {
    if (chunked_) return take_chunks(in);
    const size_t size = left_ ? std::min<uint64_t>(*left_, in.size()) : in.size();
    if (size > 0) on_body_(std::string_view(in).substr(0, size));
    if (left_) *left_ -= size;
    in.clear();
    return true;
  }
  bool at_end() const { return chunked_ ? last_chunk_ : left_ == 0u; }
  // Without a length the end of the connection is the end of the body.
  bool ends_with_connection() const { return !chunked_ && !left_; }

 private:
  bool take_chunks(std::string& in) {
    size_t at = 0;
    while (!last_chunk_) {
      const size_t line_end = in.find("\r\n", at);
      if (line_end == std::string::npos) break;
      size_t size = 0;
      const auto [end, failed] = std::from_chars(in.data() + at, in.data() + line_end, size, 16);
      if (failed != std::errc{} || end == in.data() + at || size > (size_t{1} << 30)) return false;
      last_chunk_ = size == 0;
      if (last_chunk_) break;
      if (in.size() - (line_end + 2) < size + 2) break;
      on_body_(std::string_view(in).substr(line_end + 2, size));
      at = line_end + 2 + size + 2;
    }
    in.erase(0, at);
    return true;
  }

  const std::function<void(std::string_view)>& on_body_;
  bool chunked_ = false, last_chunk_ = false;
  std::optional<uint64_t> left_;  // bytes that the head announced and that have not come
};

Error io_error(Io io, const char* otherwise) {
  if (io == Io::kStopped) return {Errc::kStopped, "stopped"};
  return {Errc::kIo, otherwise};
}

bool is_plain(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return c > ' ' && c < 0x7f; });
}

}  // namespace

Result<HttpUrl> parse_http_url(std::string_view text) {
  const Error error{Errc::kInvalidArgument,
                    strf("--url must look like http://127.0.0.1:8000 or https://host, got {}", text)};
  const bool tls = text.starts_with("https://");
  if (!tls && !text.starts_with("http://")) return error;
  text.remove_prefix(tls ? 8 : 7);
  const size_t slash = std::min(text.find('/'), text.size());
  std::string_view authority = text.substr(0, slash), path = text.substr(slash);
  while (path.ends_with('/')) path.remove_suffix(1);
  if (path.ends_with("/v1")) path.remove_suffix(3);  // as clients of OpenAI write it
  const size_t colon = authority.find_last_of(':');
  const bool has_port =
      colon != std::string_view::npos && authority.find(']', colon) == std::string_view::npos;
  std::string_view host = has_port ? authority.substr(0, colon) : authority;
  const std::string_view port = has_port ? authority.substr(colon + 1) : tls ? "443" : "80";
  if (host.starts_with('[') && host.ends_with(']')) host = host.substr(1, host.size() - 2);
  int number = 0;
  const auto [end, failed] = std::from_chars(port.data(), port.data() + port.size(), number);
  const bool is_port =
      failed == std::errc{} && end == port.data() + port.size() && number > 0 && number < 65536;
  if (host.empty() || !is_port || !is_plain(host) || !is_plain(path) ||
      host.find('@') != std::string_view::npos)
    return error;
  return HttpUrl{.host = std::string(host), .port = std::string(port), .path = std::string(path), .tls = tls};
}

Result<HttpAnswer> http_call(const HttpServerAddress& server, const HttpCall& call,
                             const std::function<void(std::string_view)>& on_body) {
  if (!is_plain(server.api_key))
    return Error{Errc::kInvalidArgument, "--api-key must be ASCII without spaces"};
  const auto connection = SPARROW_TRY(Connection::open(server.url, server.trust, call.stop));
  Io io = connection->send(head_of(server, call) + call.body);
  // A server that refuses a body may answer and close before it has read all of it.
  if (io == Io::kStopped) return io_error(io, "");
  std::string in;
  size_t head_end;
  while ((head_end = in.find("\r\n\r\n")) == std::string::npos) {
    if (in.size() > kMaxHeadBytes) return Error{Errc::kIo, "what answers there does not speak HTTP"};
    if ((io = connection->receive(in)) != Io::kDone)
      return io_error(io, !in.empty() ? "what answers there does not speak HTTP"
                          : server.url.tls
                              ? "the server closed the connection without an answer"
                              : "the server closed the connection without an answer; is it https://?");
  }
  int status = 0;
  if (!in.starts_with("HTTP/1.") || in.size() < 12 ||
      std::from_chars(in.data() + 9, in.data() + 12, status).ec != std::errc{})
    return Error{Errc::kIo, "what answers there does not speak HTTP"};
  BodyReader body(in.substr(0, head_end + 2), on_body);
  in.erase(0, head_end + 4);
  for (;;) {
    if (!body.take(in)) return Error{Errc::kIo, "the server's answer is garbled"};
    if (body.at_end()) return HttpAnswer{status, true};
    io = connection->receive(in);
    if (io != Io::kDone) return HttpAnswer{status, io == Io::kEnd && body.ends_with_connection()};
  }
}

}  // namespace sparrow::cli
