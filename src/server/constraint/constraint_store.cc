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
constexpr size_t kMaxForcedBytes = 256;  // that are looked at at a time

constexpr MarkupToken kMarkup[] = {
    {kToolMarker, kMarkerByte}, {"<tool_call>", kCallsOpenByte}, {"</tool_call>", kCallsCloseByte}};

// One output: thinks as long as it may, then keeps to the constraint.
class FormConstraint final : public TokenConstraint {
 public:
  struct Tokens {
    const Tokenizer* tokenizer;
    std::optional<int32_t> think_open, think_close;
    bool forces = true;  // ids where there is one text; otherwise the model spells it as it likes
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
    if (const auto forced = forced_ids(); !forced.empty())
      return {.allowed = forced.first(1), .end = End::kBanned};
    mask_.resize(constraint_->vocabulary().num_words());
    matcher().write_mask(mask_);
    if (phase_ == Phase::kOpen)
      for (const auto& id : {tokens_.think_open, tokens_.think_close})
        if (id) mask_[*id / 32] |= uint32_t{1} << (*id % 32);
    return {.mask = mask_, .end = matcher().may_end() ? End::kFree : End::kBanned};
  }

  std::span<const int32_t> forced_ids() override {
    if (phase_ != Phase::kForm || !tokens_.forces) return {};
    if (num_forced_ == forced_.size() && !std::exchange(looked_ahead_, true)) look_ahead();
    return std::span<const int32_t>(forced_).subspan(num_forced_);
  }

  void advance(int32_t id) override {
    looked_ahead_ = false;
    if (num_forced_ < forced_.size() && forced_[num_forced_++] != id) num_forced_ = forced_.size();
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

  Matcher& matcher() {
    if (!matcher_) matcher_.emplace(constraint_);
    return *matcher_;
  }

  // Finds the ids of what has to come. The last is left to the model: a longer token may begin like it.
  void look_ahead() {
    const std::string text = matcher().forced(kMaxForcedBytes);
    forced_.clear();
    num_forced_ = 0;
    if (text.size() <= kLeastForcedIds) return;
    for (size_t at = 0; at < text.size();) {
      const auto* const markup = std::ranges::find(kMarkup, text[at], &MarkupToken::byte);
      if (markup != std::end(kMarkup)) {
        forced_.push_back(tokens_.tokenizer->id_of(markup->token).value());
        ++at;
        continue;
      }
      size_t end = at;
      while (end < text.size() &&
             std::ranges::find(kMarkup, text[end], &MarkupToken::byte) == std::end(kMarkup))
        ++end;
      const auto ids =
          tokens_.tokenizer->encode(std::string_view(text).substr(at, end - at), Recognise::kNone);
      if (!ids.ok()) break;
      forced_.insert(forced_.end(), ids.value().begin(), ids.value().end());
      at = end;
    }
    if (!forced_.empty()) forced_.pop_back();
    // Part of a character, or a token that an answer may not have, is nothing that can be spelled like this.
    const Vocabulary& vocabulary = constraint_->vocabulary();
    std::string_view rest = text;
    const bool spells = std::ranges::all_of(forced_, [&](int32_t id) {
      if (id >= vocabulary.size() || vocabulary.bytes_of(id).empty() ||
          !rest.starts_with(vocabulary.bytes_of(id)))
        return false;
      rest.remove_prefix(vocabulary.bytes_of(id).size());
      return true;
    });
    if (!spells || forced_.size() <= kLeastForcedIds) forced_.clear();
  }

  std::shared_ptr<Constraint> constraint_;
  Tokens tokens_;
  Phase phase_;
  std::optional<Matcher> matcher_;
  std::vector<uint32_t> mask_;
  std::string text_;             // the last of what was thought
  std::vector<int32_t> forced_;  // ids of which the first have come
  size_t num_forced_ = 0;
  bool looked_ahead_ = false;  // since the last id
};

}  // namespace

std::shared_ptr<const Vocabulary> ConstraintStore::vocabulary(bool markup) {
  const std::lock_guard lock(vocabulary_mutex_);
  std::shared_ptr<const Vocabulary>& known = vocabularies_[markup];
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
                                                                     std::string_view tenant, bool forces) {
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
  const FormConstraint::Tokens tokens{&tokenizer_, id_of(kThinkOpen), id_of(kThinkClose), forces};
  return std::shared_ptr<const TokenConstraint>(
      std::make_shared<const FormConstraint>(std::move(constraint), start, tokens));
}

}  // namespace sparrow
