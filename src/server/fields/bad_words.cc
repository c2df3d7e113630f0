// SPDX-License-Identifier: Apache-2.0
#include "server/fields/bad_words.h"

#include <algorithm>
#include <utility>

namespace sparrow {
namespace {

using Ids = std::vector<int32_t>;

class BadWords final : public TokenConstraint {
 public:
  struct Rules {
    std::vector<Ids> words;
    std::vector<uint32_t> allowed;  // as bits: what other fields leave
  };

  // `inner` may be null.
  BadWords(std::shared_ptr<const Rules> rules, std::unique_ptr<TokenConstraint> inner)
      : rules_(std::move(rules)), inner_(std::move(inner)) {
    for (const Ids& word : rules_->words) max_recent_ = std::max(max_recent_, word.size() - 1);
  }

  std::unique_ptr<TokenConstraint> copy() const override {
    auto made = std::make_unique<BadWords>(rules_, inner_ ? inner_->copy() : nullptr);
    made->recent_ = recent_;
    return made;
  }

  NextIds next_ids() override {
    NextIds next = inner_ ? inner_->next_ids() : NextIds{};
    if (next.end == NextIds::End::kOnly) return next;
    Ids banned;
    for (const Ids& word : rules_->words)
      if (ends_with_all_but_the_last(word)) banned.push_back(word.back());
    if (!banned.empty()) leave_out(banned, next);
    return next;
  }

  void advance(int32_t id) override {
    if (inner_) inner_->advance(id);
    recent_.push_back(id);
    if (recent_.size() > max_recent_) recent_.erase(recent_.begin());
  }

 private:
  bool ends_with_all_but_the_last(const Ids& word) const {
    const auto count = static_cast<ptrdiff_t>(word.size()) - 1;
    return std::ssize(recent_) >= count && std::equal(word.begin(), word.end() - 1, recent_.end() - count);
  }

  // Where nothing else would be left, a word gives way: what has to be complete counts for more.
  void leave_out(const Ids& banned, NextIds& next) {
    if (!next.allowed.empty()) {
      allowed_.assign(next.allowed.begin(), next.allowed.end());
      std::erase_if(allowed_, [&](int32_t id) { return std::ranges::find(banned, id) != banned.end(); });
      if (!allowed_.empty()) next.allowed = allowed_;
      return;
    }
    mask_.assign(next.mask.begin(), next.mask.end());
    if (mask_.empty()) mask_ = rules_->allowed;
    for (const int32_t id : banned) mask_[id / 32] &= ~(uint32_t{1} << (id % 32));
    if (std::ranges::any_of(mask_, [](uint32_t word) { return word != 0; })) next.mask = mask_;
  }

  std::shared_ptr<const Rules> rules_;
  std::unique_ptr<TokenConstraint> inner_;
  size_t max_recent_ = 0;
  Ids recent_;                  // the last ids of the output
  Ids allowed_;                 // what next_ids() has handed out
  std::vector<uint32_t> mask_;  // the same
};

// What may be drawn as far as fields say that hold all the time.
std::vector<uint32_t> allowed_bits(const SamplingParams& sampling, int vocab_size) {
  const bool any = sampling.allowed_ids.empty();
  std::vector<uint32_t> bits((static_cast<size_t>(vocab_size) + 31) / 32, any ? ~uint32_t{0} : 0);
  for (const int32_t id : sampling.allowed_ids) bits[id / 32] |= uint32_t{1} << (id % 32);
  for (const int32_t id : sampling.banned_ids) bits[id / 32] &= ~(uint32_t{1} << (id % 32));
  return bits;
}

}  // namespace

Status ban_words(const std::vector<std::string>& words, const Tokenizer& tokenizer, int vocab_size,
                 Request& request) {
  const bool is_held = request.constraint != nullptr;
  BadWords::Rules rules;
  for (const std::string& word : words)
    for (const char* before : {"", " "}) {
      Ids ids = SPARROW_TRY(tokenizer.encode(before + word, Recognise::kNone));
      if (ids.size() == 1 && !is_held)
        request.sampling.banned_ids.push_back(ids[0]);
      else if (!ids.empty())  // to be followed as the output goes on
        rules.words.push_back(std::move(ids));
    }
  if (rules.words.empty()) return Ok{};
  rules.allowed = allowed_bits(request.sampling, vocab_size);
  request.constraint =
      std::make_shared<const BadWords>(std::make_shared<const BadWords::Rules>(std::move(rules)),
                                       is_held ? request.constraint->copy() : nullptr);
  return Ok{};
}

}  // namespace sparrow
