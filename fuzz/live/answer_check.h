// SPDX-License-Identifier: Apache-2.0
// Reads the answers of the API with a strict reader of its own: HTTP/1.1 as RFC 9112 has it, JSON or events
// inside, errors in OpenAI's shape.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace sparrow::fuzz {

struct AnswerCheck {
  enum class State {
    kMore,   // right so far, and not at its end
    kWhole,  // `size` bytes of it
    kWrong,  // `wrong` says why
  };
  State state = State::kMore;
  std::string wrong = {};
  size_t size = 0;
  int status = 0;
  bool is_stream = false;  // events
  bool closes = false;     // the server will close the connection
};

// The answer at the start of `bytes`. `to_head`: its request was HEAD.
AnswerCheck check_answer(std::string_view bytes, bool to_head);

}  // namespace sparrow::fuzz
