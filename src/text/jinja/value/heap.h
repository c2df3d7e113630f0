// SPDX-License-Identifier: Apache-2.0
// Heap: memory and budgets of one rendering. Nothing is freed before the rendering ends, and everything that
// can grow without bound is charged here first. One thread.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <vector>

#include "text/jinja/value/value.h"

namespace sparrow::jinja {

struct Limits {
  int64_t max_steps = 50'000'000;        // expressions, statements, and every 64 bytes of work on text
  int max_depth = 1000;                  // of statements, expressions and macro calls inside each other
  size_t max_output = size_t{64} << 20;  // bytes of one text, the prompt included
  size_t max_memory = size_t{1} << 30;   // bytes
};

// Who wrote a byte of a text.
enum Origin : char {
  kData,    // a message, a tool, an option: whoever made the request, or one of the builtins
  kMarkup,  // the template
};

class TextBuilder;

class Heap {
 public:
  explicit Heap(Limits limits) : limits_(limits) {}
  Heap(const Heap&) = delete;
  Heap& operator=(const Heap&) = delete;

  const Limits& limits() const { return limits_; }

  // Charges work. Call it before doing the work.
  Status spend(int64_t steps);
  // Charges making a text of `bytes`; also refuses one that is longer than any text may be.
  Status spend_text(size_t bytes);

  // Constants of the template live there. They are the only markup outside the heap.
  void set_literals(std::string_view literals) { literals_ = literals; }
  // The origins of a text's bytes, by its address: parts of a text need no bookkeeping of their own.
  struct Origins {
    const char* each;  // one for each byte; nullptr: all have the same
    Origin all;
  };
  Origins origins_of(std::string_view text) const;
  bool is_markup(std::string_view text) const;

  // Copies, with the origins that the text has.
  Result<Value> string(std::string_view text);
  Result<Value> string(const TextBuilder& text);
  // A copy with one origin.
  Result<Value> string(std::string_view text, Origin origin);
  // left + right. Costs only `right` where `left` was the last text made, so that building up a prompt piece
  // by piece stays linear.
  Result<Value> joined(std::string_view left, std::string_view right);
  Result<Value> list(std::span<const Value> items, ListStyle style = ListStyle::kList);
  Result<Value> list(std::initializer_list<Value> items, ListStyle style = ListStyle::kList) {
    return list(std::span<const Value>(items.begin(), items.size()), style);
  }
  // Later entries overwrite earlier ones of an equal key, which keep their place.
  Result<Value> dict(std::span<const Entry> entries);
  Result<Value> method(const Value& self, std::string_view name);
  Result<Value> name_space();

  Status bind(Bindings& bindings, std::string_view name, const Value& value);

  template <typename T>
  Result<T*> make() {
    static_assert(std::is_trivially_destructible_v<T>);
    return new (SPARROW_TRY(allocate(sizeof(T)))) T();
  }
  template <typename T>
  Result<T*> array(size_t count) {
    static_assert(std::is_trivially_destructible_v<T>);
    T* first = static_cast<T*>(SPARROW_TRY(allocate(count * sizeof(T))));
    for (size_t i = 0; i < count; ++i) new (first + i) T();
    return first;
  }

 private:
  Result<void*> allocate(size_t bytes);
  Result<char*> allocate_text(size_t bytes);
  void copy_text(std::string_view from, char* to);

  struct Chunks {
    std::vector<std::unique_ptr<std::byte[]>> owned;
    std::byte* next = nullptr;
    size_t left = 0;
    size_t last_size = 0;  // of the last one
  };
  // Text has its own chunks: its bytes need no alignment, and the last text made can then be lengthened in
  // place. Behind the bytes of such a chunk lie their origins.
  Result<std::byte*> take(Chunks& chunks, size_t bytes);

  Limits limits_;
  int64_t steps_ = 0;
  size_t bytes_ = 0;
  Chunks objects_, text_;
  std::map<const char*, size_t> text_sizes_;  // of the chunks of text, by their start
  std::string_view literals_;
};

// Deepest nesting of lists and dicts in a value.
inline constexpr int kMaxValueDepth = 200;

}  // namespace sparrow::jinja
