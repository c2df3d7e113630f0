// SPDX-License-Identifier: Apache-2.0
// KvEventOptions: whether and where the prefix cache's events are published. Keys and defaults are those of
// vLLM's --kv-events-config, but for max_queue_size (there 100,000); `format` is ours.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"

namespace sparrow {

enum class KvEventFormat {
  kMap,    // an event is a map of named fields: vLLM since June 2026
  kArray,  // an array that begins with its kind: vLLM before that, and who has not followed
};

struct KvEndpoint {
  std::string host;  // "*": all addresses of this machine
  int port = 0;      // 0: any free one
  bool connect = false;

  std::string text() const;
};

struct KvEventOptions {
  bool enabled = false;
  KvEndpoint endpoint{.host = "*", .port = 5557};
  std::optional<KvEndpoint> replay_endpoint;
  int buffer_steps = 10'000;    // batches kept for replay
  int hwm = 100'000;            // batches that wait for one slow subscriber; more are lost to it
  int max_queue_size = 10'000;  // batches on their way from the engine
  std::string topic;
  KvEventFormat format = KvEventFormat::kMap;
};

Result<KvEventOptions> parse_kv_event_options(std::string_view json);

}  // namespace sparrow
