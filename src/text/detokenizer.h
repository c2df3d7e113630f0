// SPDX-License-Identifier: Apache-2.0
// Detokenizer: ids to text while they are made. What it has given out is never taken back: a character goes
// out when it is whole, a replacement character only when no further byte could have completed what it stands
// for.
#pragma once

#include <cstdint>
#include <string>

#include "base/result.h"
#include "text/tokenizer.h"

namespace sparrow {

// One for each stream of ids, one thread at a time. All its output together is Tokenizer::decode() of all its
// ids.
class Detokenizer {
 public:
  explicit Detokenizer(const Tokenizer& tokenizer, bool skip_special = true)
      : tokenizer_(tokenizer), skip_special_(skip_special) {}

  // Appends to `text` what has become certain. An id out of range is an error and changes nothing.
  Status push(int32_t id, std::string& text);
  // Appends what still waited for more bytes; the detokenizer is as new.
  void finish(std::string& text);

 private:
  const Tokenizer& tokenizer_;
  bool skip_special_;
  std::string waiting_;  // at most three bytes that begin a character
};

}  // namespace sparrow
