// SPDX-License-Identifier: Apache-2.0
// The tokenizer that make-model writes.
#include "cli/run/corpus.h"

#include <gtest/gtest.h>

#include "text/synthetic/tokenizer_training.h"
#include "text/tokenizer/tokenizer.h"

namespace sparrow::cli {
namespace {

// A demo model draws any id: each is to be text, and most of them words.
TEST(Corpus, GivesEveryIdOfTheDemoModelAText) {
  for (const int size : {512, 8192, 200064}) {
    const auto trained = train_tokenizer(tokenizer_corpus(), size, SpareIds::kPhrases);
    const Tokenizer tokenizer = Tokenizer::parse(trained.value(), trained_tokenizer_config()).value();
    ASSERT_EQ(tokenizer.vocab_size(), size - 3)
        << "the last three rows have no token in the released model too";
    int words = 0;
    for (int id = 256; id < size - 64; ++id) {
      const std::string_view text = tokenizer.bytes_of(id).value();
      ASSERT_FALSE(text.empty()) << id;
      words += text[0] == ' ' ? 1 : 0;
    }
    EXPECT_GT(words, (size - 64 - 256) / 3);
  }
}

}  // namespace
}  // namespace sparrow::cli
