// SPDX-License-Identifier: Apache-2.0
// Detokenizer: ids to text as they come; never half a character, and never a replacement character where more
// bytes would have completed one.
#pragma once

#include <cstdint>
#include <string>

#include "base/result.h"
#include "base/utf8.h"
#include "text/tokenizer/tokenizer.h"

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
  Utf8Stream characters_;
};

}  // namespace sparrow
