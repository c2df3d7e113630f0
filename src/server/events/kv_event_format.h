// SPDX-License-Identifier: Apache-2.0
// A batch of cache events as vLLM writes it: msgpack [seconds, events, data-parallel rank].
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "engine/engine.h"
#include "server/events/kv_event_options.h"

namespace sparrow {

// As consumers know a block: vLLM's choice of 64 bits of a digest.
uint64_t block_hash(const Digest& digest);

std::string encode_kv_events(std::span<const CacheEvent> events, double seconds_since_epoch, int group,
                             KvEventFormat format);

// Blocks stored and removed, and caches cleared: what metrics count.
int64_t num_kv_events(std::span<const CacheEvent> events);

}  // namespace sparrow
