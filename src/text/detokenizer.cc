// SPDX-License-Identifier: Apache-2.0
#include "text/detokenizer.h"

#include "base/utf8.h"

namespace sparrow {

Status Detokenizer::push(int32_t id, std::string& text) {
  const std::string_view token = SPARROW_TRY(tokenizer_.bytes_of(id));
  if (skip_special_ && tokenizer_.is_special(id)) return Ok{};
  std::string joined;
  std::string_view rest = token;
  if (!waiting_.empty()) rest = joined = waiting_ + std::string(token);
  waiting_.clear();
  while (!rest.empty()) {
    const size_t valid = valid_utf8_prefix(rest);
    text += rest.substr(0, valid);
    rest.remove_prefix(valid);
    if (rest.empty()) break;
    const Utf8Char broken = decode_utf8(rest);
    if (broken.truncated) {
      waiting_ = rest;
      break;
    }
    text += kReplacementUtf8;
    rest.remove_prefix(broken.length);
  }
  return Ok{};
}

void Detokenizer::finish(std::string& text) {
  if (!waiting_.empty()) text += kReplacementUtf8;
  waiting_.clear();
}

}  // namespace sparrow
