// SPDX-License-Identifier: Apache-2.0
#include "server/events/kv_event_format.h"

#include <algorithm>

#include "base/strf.h"
#include "server/events/msgpack_writer.h"

namespace sparrow {
namespace {

// vLLM's name for the cache that the engine itself computes with, whatever the device.
constexpr std::string_view kMedium = "GPU";

// An event's fields, under their names or one after the other.
class FieldWriter {
 public:
  FieldWriter(MsgpackWriter& out, KvEventFormat format, std::string_view kind, size_t num_fields)
      : out_(out), named_(format == KvEventFormat::kMap) {
    if (named_)
      out_.begin_map(num_fields + 1);
    else
      out_.begin_array(num_fields + 1);
    field("type").string(kind);
  }

  MsgpackWriter& field(std::string_view name) {
    if (named_) out_.string(name);
    return out_;
  }

 private:
  MsgpackWriter& out_;
  const bool named_;
};

void write_hashes(MsgpackWriter& out, std::span<const Digest> digests) {
  out.begin_array(digests.size());
  for (const Digest& digest : digests) out.unsigned_integer(block_hash(digest));
}

// Media as (identifier, where it begins in the block), then the salt.
void write_extra(MsgpackWriter& out, const CacheEvent::Extra& extra) {
  if (extra.empty()) return out.nil();
  out.begin_array(extra.media.size() + (extra.salt.empty() ? 0 : 1));
  for (const MediaSpan& span : extra.media) {
    std::string hex;
    for (const uint8_t byte : span.digest) hex += strf("{:02x}", byte);
    out.begin_array(2);
    out.string(hex);
    out.integer(span.begin);
  }
  if (!extra.salt.empty()) out.string(extra.salt);
}

void write_stored(MsgpackWriter& out, const CacheEvent& event, KvEventFormat format) {
  const bool has_extras =
      std::any_of(event.extras.begin(), event.extras.end(), [](const auto& extra) { return !extra.empty(); });
  FieldWriter fields(out, format, "BlockStored", has_extras ? 8 : 7);
  write_hashes(fields.field("block_hashes"), event.digests);
  fields.field("parent_block_hash");
  event.parent ? out.unsigned_integer(block_hash(*event.parent)) : out.nil();
  fields.field("token_ids").begin_array(event.ids.size());
  for (const int32_t id : event.ids) out.integer(id);
  fields.field("block_size").integer(static_cast<int64_t>(event.ids.size() / event.digests.size()));
  fields.field("lora_id").nil();
  fields.field("medium").string(kMedium);
  fields.field("lora_name").nil();
  if (!has_extras) return;
  fields.field("extra_keys").begin_array(event.extras.size());
  for (const CacheEvent::Extra& extra : event.extras) write_extra(out, extra);
}

void write_event(MsgpackWriter& out, const CacheEvent& event, KvEventFormat format) {
  switch (event.kind) {
    case CacheEvent::Kind::kStored:
      return write_stored(out, event, format);
    case CacheEvent::Kind::kRemoved: {
      FieldWriter fields(out, format, "BlockRemoved", 2);
      write_hashes(fields.field("block_hashes"), event.digests);
      return fields.field("medium").string(kMedium);
    }
    case CacheEvent::Kind::kCleared:
      FieldWriter(out, format, "AllBlocksCleared", 0);
  }
}

}  // namespace

uint64_t block_hash(const Digest& digest) {
  uint64_t hash = 0;
  for (size_t i = digest.size() - 8; i < digest.size(); ++i) hash = hash << 8 | digest[i];
  return hash;
}

std::string encode_kv_events(std::span<const CacheEvent> events, double seconds_since_epoch, int group,
                             KvEventFormat format) {
  MsgpackWriter out;
  out.begin_array(3);
  out.number(seconds_since_epoch);
  out.begin_array(events.size());
  for (const CacheEvent& event : events) write_event(out, event, format);
  out.integer(group);
  return out.take();
}

int64_t num_kv_events(std::span<const CacheEvent> events) {
  int64_t count = 0;
  for (const CacheEvent& event : events) count += std::max<int64_t>(1, event.digests.size());
  return count;
}

}  // namespace sparrow
