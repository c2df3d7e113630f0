// SPDX-License-Identifier: Apache-2.0
// Makes small tokenizers in the layout of MiniMax-M3's, for synthetic models.
#pragma once

#include <string>
#include <string_view>

#include "base/result.h"

namespace sparrow {

// The text of a tokenizer.json: the 256 bytes, then merges learnt from `corpus`, and the model's added tokens
// at the end of `vocab_size` ids. A small corpus runs out of pairs to merge: then ids before the added tokens
// stay unused. The same corpus and size give the same bytes.
Result<std::string> train_tokenizer(std::string_view corpus, int vocab_size);

// The tokenizer_config.json that goes with it.
std::string trained_tokenizer_config();

}  // namespace sparrow
