// SPDX-License-Identifier: Apache-2.0
#include "text/tokenizer/detokenizer.h"

namespace sparrow {

Status Detokenizer::push(int32_t id, std::string& text) {
  const std::string_view token = SPARROW_TRY(tokenizer_.bytes_of(id));
  if (skip_special_ && tokenizer_.is_special(id)) return Ok{};
  std::string repaired;
  text += characters_.push(token, repaired);
  return Ok{};
}

void Detokenizer::finish(std::string& text) {
  text += characters_.finish();
}

}  // namespace sparrow
