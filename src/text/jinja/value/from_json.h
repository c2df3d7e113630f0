// SPDX-License-Identifier: Apache-2.0
// JSON documents as template values.
#pragma once

#include "base/json/json.h"
#include "text/jinja/value/heap.h"

namespace sparrow::jinja {

// Text is borrowed: the document must outlive the rendering.
Result<Value> from_json(Heap& heap, const Json& json);
// Text is copied to the heap.
Result<Value> owned_from_json(Heap& heap, const Json& json);

}  // namespace sparrow::jinja
