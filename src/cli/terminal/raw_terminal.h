// SPDX-License-Identifier: Apache-2.0
// RawTerminal: the terminal while a conversation runs in it. Gives it back as it was, also when the program
// is ended by a signal.
#pragma once

#include <memory>

namespace sparrow::cli {

class RawTerminal {
 public:
  // nullptr: `in` is no terminal, or `out` is none that knows escape sequences (TERM=dumb).
  static std::unique_ptr<RawTerminal> open(int in, int out);
  ~RawTerminal();
  RawTerminal(const RawTerminal&) = delete;
  RawTerminal& operator=(const RawTerminal&) = delete;

  int in() const { return in_; }
  int out() const { return out_; }

  // Keys come one by one and are not shown; Ctrl-C is one of them.
  void edit();
  // The same, but Ctrl-C is a signal: for while an answer comes in.
  void watch();
  // Ctrl-Z: back to the shell, and on when it says so.
  void suspend();

  struct Size {
    int rows, columns;
  };
  Size size() const;

 private:
  RawTerminal(int in, int out) : in_(in), out_(out) {}
  int in_, out_;
};

// A terminal that takes escape sequences; also wants_colour: one whose user has not set NO_COLOR.
bool takes_escapes(int fd);
bool wants_colour(int fd);

}  // namespace sparrow::cli
