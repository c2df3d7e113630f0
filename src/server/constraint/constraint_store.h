// SPDX-License-Identifier: Apache-2.0
// ConstraintStore: what answers are held to, made once for requests of one key that ask for the same. Any
// thread.
#pragma once

#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>

#include "base/result.h"
#include "engine/request.h"
#include "server/constraint/answer_form.h"
#include "text/constraint/constraint.h"
#include "text/tokenizer/tokenizer.h"

namespace sparrow {

// Where the form begins.
enum class FormStart {
  kThinking,  // after the thinking block that the prompt ends in
  kOpen,      // at once, or after a thinking block, as the model likes
  kAnswer,    // at once
};

class ConstraintStore {
 public:
  // Borrows the tokenizer, of which the model has `vocab_size` ids.
  ConstraintStore(const Tokenizer& tokenizer, int vocab_size)
      : tokenizer_(tokenizer), vocab_size_(vocab_size) {}

  // `tenant`: whose requests may share it. `forces`: text that has to come is spelled as the tokenizer does,
  // without asking the model; not where some of its tokens may not be drawn.
  Result<std::shared_ptr<const TokenConstraint>> make(const AnswerRule& rule, FormStart start,
                                                      std::string_view tenant, bool forces = true);

 private:
  struct Entry {
    std::string key;
    std::shared_ptr<Constraint> constraint;
  };

  std::shared_ptr<const Vocabulary> vocabulary(bool markup);
  std::shared_ptr<Constraint> find(const std::string& key);
  void keep(const std::string& key, const std::shared_ptr<Constraint>& constraint);

  const Tokenizer& tokenizer_;
  const int vocab_size_;
  std::mutex vocabulary_mutex_;
  std::shared_ptr<const Vocabulary> vocabularies_[2];  // without and with the tokens of tool calls
  std::mutex mutex_;
  std::list<Entry> entries_;  // used last first
};

}  // namespace sparrow
