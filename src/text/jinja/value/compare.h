// SPDX-License-Identifier: Apache-2.0
// Equality, order and membership as Python defines them.
#pragma once

#include "text/jinja/value/heap.h"

namespace sparrow::jinja {

bool is_true(const Value& v);

Result<bool> equal(Heap& heap, const Value& a, const Value& b);
// Negative, zero or positive; an error where Python raises TypeError. `op` is for the message.
Result<int> order(Heap& heap, const Value& a, const Value& b, std::string_view op);
// item in container.
Result<bool> contains(Heap& heap, const Value& container, const Value& item);

// Where the value of an equal key lies; null without one.
Result<Value*> find_key(Heap& heap, const DictNode& dict, const Value& key);

// The items of anything that can be iterated: lists, dict keys, the characters of a string. A generator is
// empty from then on, as in Python.
Result<std::span<const Value>> iterate(Heap& heap, const Value& v);
// len(v).
Result<int64_t> length(const Value& v);

}  // namespace sparrow::jinja
