// SPDX-License-Identifier: Apache-2.0
// Words that an output must not hold, as token ids: the last id of a word is not drawn where the others stand
// before it. A word that can be spelled with other ids is not kept out.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "engine/request.h"
#include "text/tokenizer/tokenizer.h"

namespace sparrow {

// Adds them to the request: at the start of a text and after a blank. A constraint that it has counts for
// more: where it leaves nothing but a word, that is drawn.
Status ban_words(const std::vector<std::string>& words, const Tokenizer& tokenizer, int vocab_size,
                 Request& request);

}  // namespace sparrow
