// SPDX-License-Identifier: Apache-2.0
#include "server/events/kv_event_options.h"

#include <array>
#include <charconv>

#include "base/json/json.h"
#include "base/strf.h"

namespace sparrow {
namespace {

constexpr std::string_view kFlag = "--kv-events-config";
constexpr std::array<std::string_view, 9> kKeys = {
    "enable_kv_cache_events", "publisher", "endpoint", "replay_endpoint", "buffer_steps", "hwm", "topic",
    "max_queue_size",         "format"};

// Who is connected to has a name; who waits for others has "*" or "::" in it: vLLM's rule.
Result<KvEndpoint> parse_endpoint(const Json& value) {
  constexpr std::string_view kScheme = "tcp://";
  const std::string text = SPARROW_TRY(value.as_string());
  const size_t colon = text.rfind(':');
  const Error bad = value.error("must be tcp://HOST:PORT, where HOST * listens on all addresses");
  if (!text.starts_with(kScheme) || colon < kScheme.size()) return bad;
  KvEndpoint endpoint{.host = text.substr(kScheme.size(), colon - kScheme.size())};
  const char* end = text.data() + text.size();
  const auto [stop, ec] = std::from_chars(text.data() + colon + 1, end, endpoint.port);
  if (ec != std::errc() || stop != end || endpoint.port < 0 || endpoint.port > 65535) return bad;
  if (endpoint.host.empty()) return bad;
  endpoint.connect =
      endpoint.host != "*" && endpoint.host != "0.0.0.0" && endpoint.host.find("::") == std::string::npos;
  if (endpoint.host.starts_with('[') && endpoint.host.ends_with(']'))
    endpoint.host = endpoint.host.substr(1, endpoint.host.size() - 2);
  return endpoint;
}

Status check_keys(const Json& root) {
  for (size_t i = 0; i < root.size(); ++i) {
    bool known = false;
    for (const std::string_view key : kKeys) known |= root.key(i) == key;
    if (!known)
      return Error{Errc::kInvalidArgument, strf("{}: there is no key {}", kFlag, json_quoted(root.key(i)))};
  }
  return Ok{};
}

}  // namespace

std::string KvEndpoint::text() const {
  const bool is_ipv6 = host.find(':') != std::string::npos;
  return strf("tcp://{}{}{}:{}", is_ipv6 ? "[" : "", host, is_ipv6 ? "]" : "", port);
}

Result<KvEventOptions> parse_kv_event_options(std::string_view json) {
  const JsonDocument document = SPARROW_TRY(JsonDocument::parse(json, kFlag));
  const Json root = document.root(std::string(kFlag));
  SPARROW_TRY(root.expect_object());
  SPARROW_TRY(check_keys(root));
  constexpr int64_t kMost = 1'000'000;
  KvEventOptions options;
  options.enabled = SPARROW_TRY(root.bool_or("enable_kv_cache_events", false));
  const std::string publisher = SPARROW_TRY(root.string_or("publisher", options.enabled ? "zmq" : "null"));
  if (publisher != "zmq" && publisher != "null") return root.at("publisher")->error("must be zmq or null");
  options.enabled = options.enabled && publisher == "zmq";
  if (const auto value = root.find("endpoint")) options.endpoint = SPARROW_TRY(parse_endpoint(*value));
  if (const auto value = root.find("replay_endpoint")) {
    options.replay_endpoint = SPARROW_TRY(parse_endpoint(*value));
    options.replay_endpoint->connect = false;
  }
  options.buffer_steps =
      static_cast<int>(SPARROW_TRY(root.int_or("buffer_steps", options.buffer_steps, 0, kMost)));
  options.hwm = static_cast<int>(SPARROW_TRY(root.int_or("hwm", options.hwm, 1, kMost)));
  options.max_queue_size =
      static_cast<int>(SPARROW_TRY(root.int_or("max_queue_size", options.max_queue_size, 1, kMost)));
  options.topic = SPARROW_TRY(root.string_or("topic", ""));
  const std::string format = SPARROW_TRY(root.string_or("format", "map"));
  if (format != "map" && format != "array") return root.at("format")->error("must be map or array");
  options.format = format == "map" ? KvEventFormat::kMap : KvEventFormat::kArray;
  return options;
}

}  // namespace sparrow
