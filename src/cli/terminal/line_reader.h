// SPDX-License-Identifier: Apache-2.0
// LineReader: turns of a conversation from a pipe, a file or a terminal that cannot do more.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <string_view>

namespace sparrow::cli {

// What the user's side of a conversation says.
struct UserInput {
  enum class Kind : uint8_t {
    kText,
    kEnd,        // no more will come
    kInterrupt,  // Ctrl-C
  };
  Kind kind;
  std::string text = {};
};

// A line that ends with a backslash continues on the next one. Removes the backslash where it does.
bool take_continuation(std::string& line);

class LineReader {
 public:
  // `interrupted` is set by a signal handler.
  LineReader(int fd, const std::atomic<bool>& interrupted) : fd_(fd), interrupted_(interrupted) {}

  // One line, or several that continue each other.
  UserInput read();
  // Everything up to the end.
  UserInput read_all();

 private:
  bool fill();

  int fd_;
  const std::atomic<bool>& interrupted_;
  std::string in_;
  bool at_end_ = false;
};

}  // namespace sparrow::cli
