// SPDX-License-Identifier: Apache-2.0
// Makes small tokenizers in the layout of MiniMax-M3's, for synthetic models.
#pragma once

#include <string>
#include <string_view>

#include "base/result.h"

namespace sparrow {

// What to do with the remaining ids when no pair of the corpus occurs twice any more.
enum class SpareIds {
  kUnused,
  // First the words that occur once are merged as well; then come pairs of words, which no text is ever cut
  // into, so that a model that draws any id says something.
  kPhrases,
};

// The text of a tokenizer.json: the 256 bytes, then merges learnt from `corpus`, and the model's added tokens
// at the end of `vocab_size` ids. The same corpus and size give the same bytes.
Result<std::string> train_tokenizer(std::string_view corpus, int vocab_size,
                                    SpareIds spare = SpareIds::kUnused);

// The tokenizer_config.json that goes with it.
std::string trained_tokenizer_config();

}  // namespace sparrow
