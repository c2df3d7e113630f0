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
  struct Rules {
    std::vector<Ids> words;
    int vocab_size = 0;
    Ids ends;  // not drawn before so many tokens
    int64_t min_tokens = 0;
  };

  // `inner` may be null.
  BadWords(std::shared_ptr<const Rules> rules, std::unique_ptr<TokenConstraint> inner)
      : rules_(std::move(rules)), inner_(std::move(inner)) {
    for (const Ids& word : rules_->words) max_recent_ = std::max(max_recent_, word.size() - 1);
  }

  std::unique_ptr<TokenConstraint> copy() const override {
    auto made = std::make_unique<BadWords>(rules_, inner_ ? inner_->copy() : nullptr);
    made->recent_ = recent_;
    made->num_tokens_ = num_tokens_;
    return made;
  }

  NextIds next_ids() override {
    NextIds next = inner_ ? inner_->next_ids() : NextIds{};
    Ids banned;
    for (const Ids& word : rules_->words)
      if (ends_with_all_but_the_last(word)) banned.push_back(word.back());
    // Where another constraint leaves the choice open, it alone knows what may end the output.
    if (banned.empty() || (inner_ && next.allowed.empty())) return next;
    allowed_.assign(next.allowed.begin(), next.allowed.end());
    if (!inner_) {
      allowed_.resize(static_cast<size_t>(rules_->vocab_size));
      std::iota(allowed_.begin(), allowed_.end(), 0);
      if (num_tokens_ < rules_->min_tokens)
        banned.insert(banned.end(), rules_->ends.begin(), rules_->ends.end());
    }
    std::erase_if(allowed_,
                  [&](int32_t id) { return std::find(banned.begin(), banned.end(), id) != banned.end(); });
    // A call that has to be complete counts for more than a word.
    if (!allowed_.empty()) next.allowed = allowed_;
    return next;
  }

  void advance(int32_t id) override {
    if (inner_) inner_->advance(id);
    ++num_tokens_;
    recent_.push_back(id);
    if (recent_.size() > max_recent_) recent_.erase(recent_.begin());
  }

 private:
  bool ends_with_all_but_the_last(const Ids& word) const {
    const auto count = static_cast<ptrdiff_t>(word.size()) - 1;
    return std::ssize(recent_) >= count && std::equal(word.begin(), word.end() - 1, recent_.end() - count);
  }

  std::shared_ptr<const Rules> rules_;
  std::unique_ptr<TokenConstraint> inner_;
  size_t max_recent_ = 0;
  int64_t num_tokens_ = 0;
  Ids recent_;   // the last ids of the output
  Ids allowed_;  // what next_ids() has handed out
};

}  // namespace

Status ban_words(const std::vector<std::string>& words, const Tokenizer& tokenizer, int vocab_size,
                 Request& request) {
  const bool is_held = request.constraint != nullptr;
  BadWords::Rules rules{.vocab_size = vocab_size, .ends = request.stop_ids, .min_tokens = request.min_tokens};
  if (tokenizer.eos() && !request.ignore_eos) rules.ends.push_back(*tokenizer.eos());
  for (const std::string& word : words)
    for (const char* before : {"", " "}) {
      Ids ids = SPARROW_TRY(tokenizer.encode(before + word, Recognise::kNone));
      if (ids.size() == 1 && !is_held)
        request.sampling.banned_ids.push_back(ids[0]);
      else if (!ids.empty())  // to be followed as the output goes on
        rules.words.push_back(std::move(ids));
    }
  if (rules.words.empty()) return Ok{};
  request.constraint =
      std::make_shared<const BadWords>(std::make_shared<const BadWords::Rules>(std::move(rules)),
                                       is_held ? request.constraint->copy() : nullptr);
  return Ok{};
}

}  // namespace sparrow
