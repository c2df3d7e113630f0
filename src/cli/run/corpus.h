// SPDX-License-Identifier: Apache-2.0
// The text that the tokenizers of synthetic models are trained on: an early state of our documents. It is a
// file of its own and not the documents themselves, so that editing those does not change the models.
#pragma once

#include <string_view>

namespace sparrow::cli {

std::string_view tokenizer_corpus();

}  // namespace sparrow::cli
