// SPDX-License-Identifier: Apache-2.0
#include "server/api/stop_strings.h"

#include <algorithm>

namespace sparrow {

bool StopStrings::feed(std::string_view text, std::string& out) {
  if (stops_.empty()) {
    out += text;
    return false;
  }
  pending_ += text;
  size_t first = std::string::npos;
  for (const std::string& stop : stops_)
    if (const size_t at = pending_.find(stop); at < first) {
      first = at;
      found_ = stop;
    }
  if (first != std::string::npos) {
    out.append(pending_, 0, first + (include_ ? found_.size() : 0));
    pending_.clear();
    return true;
  }
  const size_t certain = pending_.size() - held_bytes();
  out.append(pending_, 0, certain);
  pending_.erase(0, certain);
  return false;
}

void StopStrings::finish(std::string& out) {
  out += pending_;
  pending_.clear();
}

size_t StopStrings::held_bytes() const {
  size_t held = 0;
  for (const std::string& stop : stops_)
    for (size_t length = std::min(stop.size() - 1, pending_.size()); length > held; --length)
      if (pending_.compare(pending_.size() - length, length, stop, 0, length) == 0) {
        held = length;
        break;
      }
  return held;
}

}  // namespace sparrow
