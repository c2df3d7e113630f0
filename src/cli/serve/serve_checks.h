// SPDX-License-Identifier: Apache-2.0
// Reads and checks everything that `sparrow serve` is told, before weights are loaded, which takes minutes.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "cli/serve/serve.h"
#include "config/config.h"
#include "engine/engine_types.h"
#include "server/auth.h"
#include "server/events/kv_event_options.h"
#include "text/chat_template.h"

namespace sparrow::cli {

// Flags that make no sense, or ask for something that is not there.
Status check_flags(const ServeOptions& options);

// --allowed-origins, one by one.
Result<std::vector<std::string>> allowed_origins(const ServeOptions& options);

// The model's configuration. Error: it cannot be served, or not with these flags.
Result<ModelConfig> read_config(const ServeOptions& options);

// From flags, file and environment; also when they are read again.
Result<std::unique_ptr<ApiKeys>> read_keys(const ServeOptions& options);

// From --kv-events-config.
Result<KvEventOptions> event_options(const ServeOptions& options);

// nullopt: the model has none, so there are no chats.
Result<std::optional<ChatTemplate>> read_template(const ServeOptions& options);

Result<EngineOptions> engine_options(const ServeOptions& options, const ModelConfig& config);

// Error: --max-model-len is more than a cache of so many tokens holds.
Status check_context(const ServeOptions& options, const ModelConfig& config, int64_t cache_tokens);

// What stored responses may take; 0: none are stored.
Result<int64_t> response_bytes(const ServeOptions& options);

bool is_loopback(const std::string& host);

// Names that a Host field may have; empty: any. A server on loopback without keys must not be reached by a
// web page that points a name of its own at it.
std::vector<std::string> allowed_hosts(const ServeOptions& options, bool has_keys);

}  // namespace sparrow::cli
