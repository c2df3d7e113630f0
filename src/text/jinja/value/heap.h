// SPDX-License-Identifier: Apache-2.0
// Heap: memory and budgets of one rendering. Nothing is freed before the rendering ends, and everything that
// can grow without bound is charged here first. One thread.
#pragma once

#include <cstddef>
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

  Result<Value> string(std::string_view text);
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

  struct Chunks {
    std::vector<std::unique_ptr<std::byte[]>> owned;
    std::byte* next = nullptr;
    size_t left = 0;
  };
  // Text has its own chunks: its bytes need no alignment, and the last text made can then be lengthened in
  // place.
  Result<std::byte*> take(Chunks& chunks, size_t bytes);

  Limits limits_;
  int64_t steps_ = 0;
  size_t bytes_ = 0;
  Chunks objects_, text_;
};

// Deepest nesting of lists and dicts in a value.
inline constexpr int kMaxValueDepth = 200;

}  // namespace sparrow::jinja
