// SPDX-License-Identifier: Apache-2.0
// Request bodies in, prepared requests or errors out, without a server.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "server/openai/prepare.h"
#include "text/synthetic/synthetic_template.h"
#include "text/synthetic/tokenizer_training.h"

namespace sparrow::openai {

// Trained once: a test needs some tokenizer, not a fresh one.
inline const Tokenizer& small_tokenizer() {
  static const Tokenizer tokenizer =
      Tokenizer::parse(train_tokenizer("the quick brown fox jumps over the lazy dog", 400).value(),
                       trained_tokenizer_config())
          .value();
  return tokenizer;
}

// What /tokenize answers.
inline Result<std::string> tokenize(std::string_view body, const ServedModel& model,
                                    std::string_view tenant = "") {
  const auto prepared = prepare(kTokenizeApi, body, model, tenant);
  if (!prepared.ok()) return prepared.error();
  return prepared.value()->counted;
}

class OpenAiRequests : public testing::Test {
 protected:
  OpenAiRequests()
      : tokenizer_(small_tokenizer()),
        cache_(tokenizer_),
        template_(ChatTemplate::parse(synthetic_chat_template()).value()),
        model_{.names = {"m3", "alias"},
               .tokenizer = tokenizer_,
               .encode_cache = cache_,
               .chat_template = &template_,
               .defaults = {.temperature = 0.7,
                            .top_p = 0.9,
                            .top_k = 40,
                            .vocab_size = 400,
                            .max_model_tokens = 4096,
                            .max_logprobs = 20},
               .constraints = &constraints_} {}

  Result<std::unique_ptr<Prepared>> chat(const std::string& extra) {
    return prepare(kChatApi, R"({"messages":[{"role":"user","content":"hi"}])" + extra + "}", model_);
  }
  Result<std::unique_ptr<Prepared>> completion(const std::string& fields) {
    return prepare(kCompletionApi, "{" + fields + "}", model_);
  }

  const Tokenizer& tokenizer_;
  EncodeCache cache_;
  ConstraintStore constraints_{tokenizer_, 400};
  ChatTemplate template_;
  ServedModel model_;
};

}  // namespace sparrow::openai
