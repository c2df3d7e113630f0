// SPDX-License-Identifier: Apache-2.0
#include "server/constraint/constraint_store.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "base/strf.h"
#include "text/output/output_parser.h"
#include "text/output/tool_markup.h"

namespace sparrow {
namespace {

// Each may hold some MiB of states and masks.
constexpr size_t kMaxEntries = 32;

// One output: thinks as long as it may, then keeps to the constraint.
class FormConstraint final : public TokenConstraint {
 public:
  struct Tokens {
    const Tokenizer* tokenizer;
    std::optional<int32_t> think_open, think_close;
  };

  FormConstraint(std::shared_ptr<Constraint> constraint, FormStart start, const Tokens& tokens)
      : constraint_(std::move(constraint)), tokens_(tokens) {
    phase_ = start == FormStart::kThinking ? Phase::kThinking
             : start == FormStart::kOpen   ? Phase::kOpen
                                           : Phase::kForm;
  }

  std::unique_ptr<TokenConstraint> copy() const override { return std::make_unique<FormConstraint>(*this); }

  NextIds next_ids() override {
    using End = NextIds::End;
    if (phase_ == Phase::kThinking) return {.end = End::kBanned};
    if (phase_ == Phase::kDone) return {.end = End::kOnly};
    if (matcher().must_end()) return {.end = End::kOnly};
    mask_.resize(constraint_->vocabulary().num_words());
    matcher().write_mask(mask_);
    if (phase_ == Phase::kOpen)
      for (const auto& id : {tokens_.think_open, tokens_.think_close})
        if (id) mask_[*id / 32] |= uint32_t{1} << (*id % 32);
    return {.mask = mask_, .end = matcher().may_end() ? End::kFree : End::kBanned};
  }

  void advance(int32_t id) override {
    if (phase_ == Phase::kThinking) {
      // The model may spell the tag with several tokens.
      text_ += tokens_.tokenizer->bytes_of(id).value();
      if (text_.find(kThinkClose) != std::string::npos) phase_ = Phase::kForm;
      if (text_.size() >= kThinkClose.size()) text_.erase(0, text_.size() - kThinkClose.size() + 1);
      return;
    }
    if (phase_ == Phase::kOpen) {
      phase_ = id == tokens_.think_open ? Phase::kThinking : Phase::kForm;
      if (id == tokens_.think_open || id == tokens_.think_close) return;
    }
    // What does not fit is an end, or came after it.
    if (phase_ == Phase::kForm && !matcher().advance(id)) phase_ = Phase::kDone;
  }

 private:
  enum class Phase { kThinking, kOpen, kForm, kDone };

  // Made by the engine's thread, whose states are.
  Matcher& matcher() {
    if (!matcher_) matcher_.emplace(constraint_);
    return *matcher_;
  }

  std::shared_ptr<Constraint> constraint_;
  Tokens tokens_;
  Phase phase_;
  std::optional<Matcher> matcher_;
  std::vector<uint32_t> mask_;
  std::string text_;  // the last of what was thought
};

}  // namespace

std::shared_ptr<const Vocabulary> ConstraintStore::vocabulary(bool markup) {
  const std::lock_guard lock(vocabulary_mutex_);
  std::shared_ptr<const Vocabulary>& known = vocabularies_[markup];
  static constexpr MarkupToken kMarkup[] = {
      {kToolMarker, kMarkerByte}, {"<tool_call>", kCallsOpenByte}, {"</tool_call>", kCallsCloseByte}};
  if (!known)
    known = std::make_shared<const Vocabulary>(tokenizer_, vocab_size_,
                                               markup ? std::span(kMarkup) : std::span<const MarkupToken>());
  return known;
}

std::shared_ptr<Constraint> ConstraintStore::find(const std::string& key) {
  const std::lock_guard lock(mutex_);
  const auto found = std::ranges::find(entries_, key, &Entry::key);
  if (found == entries_.end()) return nullptr;
  entries_.splice(entries_.begin(), entries_, found);
  return found->constraint;
}

void ConstraintStore::keep(const std::string& key, const std::shared_ptr<Constraint>& constraint) {
  const std::lock_guard lock(mutex_);
  entries_.push_front({key, constraint});
  if (entries_.size() > kMaxEntries) entries_.pop_back();
}

Result<std::shared_ptr<const TokenConstraint>> ConstraintStore::make(const AnswerRule& rule, FormStart start,
                                                                     std::string_view tenant) {
  const std::string key = strf("{} {}\n{}", tenant.size(), tenant, rule.key());
  for (const std::string_view token :
       {kToolMarker, std::string_view("<tool_call>"), std::string_view("</tool_call>")})
    if (!rule.tools.empty() && tokenizer_.id_of(token).value_or(vocab_size_) >= vocab_size_)
      return Error{Errc::kUnsupported, strf("this model has no token {}", token)};
  std::shared_ptr<Constraint> constraint = find(key);
  if (!constraint) {
    const std::shared_ptr<const Grammar> grammar = SPARROW_TRY(grammar_of(rule));
    auto created = Constraint::create(grammar, vocabulary(!rule.tools.empty()));
    const std::string field = rule.form ? rule.form->field : "tools";
    if (!created.ok())
      return Error{Errc::kInvalidArgument, strf("{}: {}", field, created.error().message), field};
    constraint = std::move(created).value();
    // The first masks, while nobody waits.
    Matcher first(constraint);
    std::vector<uint32_t> mask(constraint->vocabulary().num_words());
    first.write_mask(mask);
    if (const std::string forced = first.forced(); !forced.empty() && first.advance(forced))
      first.write_mask(mask);
    keep(key, constraint);
  }
  const auto id_of = [&](std::string_view token) {
    const auto id = tokenizer_.id_of(token);
    return id && *id < vocab_size_ ? id : std::nullopt;
  };
  const FormConstraint::Tokens tokens{&tokenizer_, id_of(kThinkOpen), id_of(kThinkClose)};
  return std::shared_ptr<const TokenConstraint>(
      std::make_shared<const FormConstraint>(std::move(constraint), start, tokens));
}

}  // namespace sparrow
