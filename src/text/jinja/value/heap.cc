// SPDX-License-Identifier: Apache-2.0
#include "text/jinja/value/heap.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <new>

#include "base/math.h"
#include "base/strf.h"
#include "text/jinja/value/compare.h"
#include "text/jinja/value/text_builder.h"

namespace sparrow::jinja {

namespace {

constexpr size_t kChunkBytes = size_t{64} << 10;
constexpr size_t kBytesPerStep = 64;

int depth_of(const Value& v) {
  if (v.is(Kind::kList)) return v.list->depth;
  if (v.is(Kind::kDict)) return v.dict->depth;
  return 0;
}

Status check_depth(int depth) {
  if (depth <= kMaxValueDepth) return Ok{};
  return template_error(strf("lists and dicts are nested more than {} deep", kMaxValueDepth));
}

}  // namespace

Status Heap::spend(int64_t steps) {
  steps_ += steps;
  if (steps_ <= limits_.max_steps) return Ok{};
  return template_error(strf("it takes more than {} steps", limits_.max_steps));
}

Status Heap::spend_text(size_t bytes) {
  if (bytes > limits_.max_output)
    return template_error(
        strf("a text would have {} bytes; at most {} are allowed", bytes, limits_.max_output));
  return spend(static_cast<int64_t>(bytes / kBytesPerStep));
}

Result<std::byte*> Heap::take(Chunks& chunks, size_t bytes) {
  if (bytes > chunks.left) {
    const bool with_origins = &chunks == &text_;
    const size_t size = std::max(kChunkBytes, bytes);
    const size_t all = with_origins ? 2 * size : size;
    if (all > limits_.max_memory || bytes_ > limits_.max_memory - all)
      return template_error(strf("it needs more than {} bytes of memory", limits_.max_memory));
    bytes_ += all;
    chunks.owned.emplace_back(new std::byte[all]);  // not value-initialised: the bytes are written before use
    chunks.next = chunks.owned.back().get();
    chunks.left = chunks.last_size = size;
    if (with_origins) text_sizes_.emplace(reinterpret_cast<const char*>(chunks.next), size);
  }
  std::byte* taken = chunks.next;
  chunks.next += bytes;
  chunks.left -= bytes;
  return taken;
}

Result<void*> Heap::allocate(size_t bytes) {
  constexpr size_t kAlign = alignof(std::max_align_t);
  const size_t rounded = round_up(bytes, kAlign);
  return static_cast<void*>(SPARROW_TRY(take(objects_, rounded)));
}

Result<char*> Heap::allocate_text(size_t bytes) {
  return reinterpret_cast<char*>(SPARROW_TRY(take(text_, bytes)));
}

Heap::Origins Heap::origins_of(std::string_view text) const {
  const std::less<const char*> before;  // defined for pointers into different objects too
  const char* const at = text.data();
  if (!before(at, literals_.data()) && before(at, literals_.data() + literals_.size()))
    return {nullptr, kMarkup};
  const auto next = text_sizes_.upper_bound(at);
  if (next == text_sizes_.begin()) return {nullptr, kData};
  const auto [start, size] = *std::prev(next);
  if (before(at, start + size)) return {at + size, kData};
  return {nullptr, kData};
}

bool Heap::is_markup(std::string_view text) const {
  const Origins from = origins_of(text);
  if (from.each == nullptr) return from.all == kMarkup;
  return std::string_view(from.each, text.size()).find(static_cast<char>(kData)) == std::string_view::npos;
}

// To a place in the last chunk of text.
void Heap::copy_text(std::string_view from, char* to) {
  const Origins origins = origins_of(from);
  std::memcpy(to, from.data(), from.size());
  if (origins.each != nullptr) {
    std::memcpy(to + text_.last_size, origins.each, from.size());
  } else {
    std::memset(to + text_.last_size, origins.all, from.size());
  }
}

Result<Value> Heap::string(std::string_view text) {
  SPARROW_TRY(spend_text(text.size()));
  if (text.empty()) return text_value("");
  char* copy = SPARROW_TRY(allocate_text(text.size()));
  copy_text(text, copy);
  return text_value({copy, text.size()});
}

Result<Value> Heap::string(std::string_view text, Origin origin) {
  const Value copy = SPARROW_TRY(string(text));
  if (copy.size > 0) std::memset(const_cast<char*>(copy.text) + text_.last_size, origin, copy.size);
  return copy;
}

Result<Value> Heap::string(const TextBuilder& text) {
  const Value copy = SPARROW_TRY(string(text.text()));
  if (copy.size > 0)
    std::memcpy(const_cast<char*>(copy.text) + text_.last_size, text.origins().data(), copy.size);
  return copy;
}

Result<Value> Heap::joined(std::string_view left, std::string_view right) {
  if (right.empty()) return text_value(left);
  if (left.empty()) return text_value(right);
  const size_t total = left.size() + right.size();
  const char* top = reinterpret_cast<const char*>(text_.next);
  if (left.data() + left.size() == top && right.size() <= text_.left) {
    if (total > limits_.max_output) return Error(spend_text(total).error());
    SPARROW_TRY(spend_text(right.size()));
    copy_text(right, SPARROW_TRY(allocate_text(right.size())));
    return text_value({left.data(), total});
  }
  SPARROW_TRY(spend_text(total));
  // A long text gets a chunk with room to grow.
  if (total > text_.left && total >= kChunkBytes / 4) {
    const size_t size = std::min(total * 2, std::max(total, limits_.max_output));
    char* room = SPARROW_TRY(allocate_text(size));
    text_.next = reinterpret_cast<std::byte*>(room);
    text_.left = size;
  }
  char* copy = SPARROW_TRY(allocate_text(total));
  copy_text(left, copy);
  copy_text(right, copy + left.size());
  return text_value({copy, total});
}

Result<Value> Heap::list(std::span<const Value> items, ListStyle style) {
  SPARROW_TRY(spend(static_cast<int64_t>(items.size() / 4)));
  int depth = 0;
  for (const Value& item : items) depth = std::max(depth, depth_of(item));
  SPARROW_TRY(check_depth(depth + 1));
  ListNode* node = SPARROW_TRY(make<ListNode>());
  node->items = SPARROW_TRY(array<Value>(items.size()));
  std::copy(items.begin(), items.end(), node->items);
  node->size = static_cast<uint32_t>(items.size());
  node->style = style;
  node->depth = depth + 1;
  Value v;
  v.kind = Kind::kList;
  v.list = node;
  return v;
}

Result<Value> Heap::dict(std::span<const Entry> entries) {
  DictNode* node = SPARROW_TRY(make<DictNode>());
  node->entries = SPARROW_TRY(array<Entry>(entries.size()));
  int depth = 0;
  for (const Entry& entry : entries) {
    // Keys are found by walking: dicts in prompts are small, and a large one is paid for in steps.
    SPARROW_TRY(spend(1 + node->size / 8));
    depth = std::max(depth, depth_of(entry.value));
    Value* place = SPARROW_TRY(find_key(*this, *node, entry.key));
    if (place != nullptr) {
      *place = entry.value;
    } else {
      node->entries[node->size++] = entry;
    }
  }
  SPARROW_TRY(check_depth(depth + 1));
  node->depth = depth + 1;
  Value v;
  v.kind = Kind::kDict;
  v.dict = node;
  return v;
}

Result<Value> Heap::method(const Value& self, std::string_view name) {
  MethodNode* node = SPARROW_TRY(make<MethodNode>());
  node->self = self;
  node->name = name;
  Value v;
  v.kind = Kind::kMethod;
  v.method = node;
  return v;
}

Result<Value> Heap::name_space() {
  Value v;
  v.kind = Kind::kNamespace;
  v.space = SPARROW_TRY(make<NamespaceNode>());
  return v;
}

Status Heap::bind(Bindings& bindings, std::string_view name, const Value& value) {
  SPARROW_TRY(spend(1 + bindings.size / 16));
  if (const Value* found = bindings.find(name)) {
    *const_cast<Value*>(found) = value;
    return Ok{};
  }
  if (bindings.size == bindings.capacity) {
    const uint32_t capacity = std::max<uint32_t>(8, bindings.capacity * 2);
    Entry* moved = SPARROW_TRY(array<Entry>(capacity));
    std::copy(bindings.entries, bindings.entries + bindings.size, moved);
    bindings.entries = moved;
    bindings.capacity = capacity;
  }
  bindings.entries[bindings.size++] = {text_value(name), value};
  return Ok{};
}

}  // namespace sparrow::jinja
