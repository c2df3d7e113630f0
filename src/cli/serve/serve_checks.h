// SPDX-License-Identifier: Apache-2.0
// What `sparrow serve` is told, read and checked: all of it before weights are loaded, which takes minutes.
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
#include "text/chat_template.h"

namespace sparrow::cli {

// Flags that make no sense, or ask for something that is not there.
Status check_flags(const ServeOptions& options);

// The model's configuration. Error: it is no use for a server, or not with these flags.
Result<ModelConfig> read_config(const ServeOptions& options);

// From flags, file and environment; also when they are read again.
Result<std::unique_ptr<ApiKeys>> read_keys(const ServeOptions& options);

// nullopt: the model has none, and no chats.
Result<std::optional<ChatTemplate>> read_template(const ServeOptions& options);

Result<EngineOptions> engine_options(const ServeOptions& options, const ModelConfig& config);

// Error: --max-model-len is more than a cache of so many tokens holds.
Status check_context(const ServeOptions& options, const ModelConfig& config, int64_t cache_tokens);

bool is_loopback(const std::string& host);

// Names that a Host field must have; empty: any. Where keys or distance do not protect the server, a web page
// must not reach it by a name of its own.
std::vector<std::string> allowed_hosts(const ServeOptions& options, bool has_keys);

}  // namespace sparrow::cli
