// SPDX-License-Identifier: Apache-2.0
// JsonPieces: a JSON document that is described first and written a piece at a time, for documents that
// should never be in memory as a whole.
#pragma once

#include <cstddef>
#include <functional>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "base/json/json_writer.h"

namespace sparrow {

class JsonPieces {
 public:
  static constexpr size_t kAll = std::numeric_limits<size_t>::max();

  // What comes next. Borrows what `write` borrows until that is written.
  void add(std::function<void(JsonWriter&)> write) {
    add_each(1, [write = std::move(write)](JsonWriter& json, size_t) { write(json); });
  }
  // Called for 0 to count - 1, in this order; the document may be cut between two calls.
  void add_each(size_t count, std::function<void(JsonWriter&, size_t)> write) {
    if (count > 0) parts_.push_back({count, std::move(write)});
  }

  // The next piece: `bytes` or as many more as the call that passed them wrote. Empty: that was all.
  std::string next(size_t bytes = kAll) {
    for (; part_ < parts_.size(); ++part_, item_ = 0) {
      for (const Part& part = parts_[part_]; item_ < part.count; ++item_) {
        if (json_.text().size() >= bytes) return json_.take_part();
        part.write(json_, item_);
      }
      parts_[part_].write = nullptr;
    }
    return json_.take_part();
  }

 private:
  struct Part {
    size_t count;
    std::function<void(JsonWriter&, size_t)> write;
  };
  std::vector<Part> parts_;
  size_t part_ = 0, item_ = 0;  // to be written next
  JsonWriter json_;
};

}  // namespace sparrow
