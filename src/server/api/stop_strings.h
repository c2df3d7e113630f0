// SPDX-License-Identifier: Apache-2.0
// StopStrings: finds the first stop string in text that comes in pieces, and holds back what may begin one.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace sparrow {

class StopStrings {
 public:
  // With `include` the stop string itself is part of the output.
  StopStrings(std::vector<std::string> stops, bool include) : stops_(std::move(stops)), include_(include) {}

  // Appends to `out` the text that certainly comes before any stop string. True: one was found, nothing may
  // be fed after it.
  bool feed(std::string_view text, std::string& out);
  // The output is over: appends what was held back.
  void finish(std::string& out);

  // The one that was found; empty: none.
  const std::string& found() const { return found_; }

 private:
  size_t held_bytes() const;  // of pending_, from where a stop string may begin

  std::vector<std::string> stops_;
  bool include_;
  std::string pending_;
  std::string found_;
};

}  // namespace sparrow
