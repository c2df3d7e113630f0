// SPDX-License-Identifier: Apache-2.0
#include "server/fields/bad_words.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace sparrow {
namespace {

using Ids = std::vector<int32_t>;

class BadWords final : public TokenConstraint {
 public:
  // `words` have two ids or more. `inner` may be null.
  BadWords(std::shared_ptr<const std::vector<Ids>> words, int vocab_size,
           std::unique_ptr<TokenConstraint> inner)
      : words_(std::move(words)), vocab_size_(vocab_size), inner_(std::move(inner)) {
    for (const Ids& word : *words_) max_recent_ = std::max(max_recent_, word.size() - 1);
  }

  std::unique_ptr<TokenConstraint> copy() const override {
    auto made = std::make_unique<BadWords>(words_, vocab_size_, inner_ ? inner_->copy() : nullptr);
    made->recent_ = recent_;
    return made;
  }

  NextIds next_ids() override {
    NextIds next = inner_ ? inner_->next_ids() : NextIds{};
    Ids banned;
    for (const Ids& word : *words_)
      if (ends_with_all_but_the_last(word)) banned.push_back(word.back());
    if (banned.empty()) return next;
    allowed_.assign(next.allowed.begin(), next.allowed.end());
    if (allowed_.empty()) {
      allowed_.resize(static_cast<size_t>(vocab_size_));
      std::iota(allowed_.begin(), allowed_.end(), 0);
    }
    std::erase_if(allowed_,
                  [&](int32_t id) { return std::find(banned.begin(), banned.end(), id) != banned.end(); });
    // A call that has to be complete counts for more than a word.
    if (!allowed_.empty()) next.allowed = allowed_;
    return next;
  }

  void advance(int32_t id) override {
    if (inner_) inner_->advance(id);
    recent_.push_back(id);
    if (recent_.size() > max_recent_) recent_.erase(recent_.begin());
  }

 private:
  bool ends_with_all_but_the_last(const Ids& word) const {
    const size_t count = word.size() - 1;
    return recent_.size() >= count && std::equal(word.begin(), word.end() - 1, recent_.end() - count);
  }

  std::shared_ptr<const std::vector<Ids>> words_;
  int vocab_size_;
  std::unique_ptr<TokenConstraint> inner_;
  size_t max_recent_ = 0;
  Ids recent_;   // the last ids of the output
  Ids allowed_;  // what next_ids() has handed out
};

}  // namespace

Status ban_words(const std::vector<std::string>& words, const Tokenizer& tokenizer, int vocab_size,
                 Request& request) {
  std::vector<Ids> long_words;
  for (const std::string& word : words)
    for (const char* before : {"", " "}) {
      Ids ids = SPARROW_TRY(tokenizer.encode(before + word, Recognise::kNone));
      if (ids.size() == 1) request.sampling.banned_ids.push_back(ids[0]);
      if (ids.size() > 1) long_words.push_back(std::move(ids));
    }
  if (long_words.empty()) return Ok{};
  request.constraint =
      std::make_shared<const BadWords>(std::make_shared<const std::vector<Ids>>(std::move(long_words)),
                                       vocab_size, request.constraint ? request.constraint->copy() : nullptr);
  return Ok{};
}

}  // namespace sparrow
