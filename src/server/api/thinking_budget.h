// SPDX-License-Identifier: Apache-2.0
// ThinkingBudget: a thought of so many tokens ends, and the answer begins. What else the output is held to
// goes on beside it.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

#include "engine/request.h"

namespace sparrow {

struct ThinkingIds {
  int32_t open = 0, close = 0;  // the tags' tokens
};

class ThinkingBudget final : public TokenConstraint {
 public:
  // `thinks`: the prompt ends inside a thought; otherwise the model may begin one with its first tokens.
  // `inner` may be null.
  ThinkingBudget(ThinkingIds ids, int64_t budget, bool thinks,
                 const std::shared_ptr<const TokenConstraint>& inner)
      : ids_(ids), left_(budget), thinks_(thinks), inner_(inner ? inner->copy() : nullptr) {}

  std::unique_ptr<TokenConstraint> copy() const override {
    auto other = std::make_unique<ThinkingBudget>(ids_, left_, thinks_, nullptr);
    if (inner_) other->inner_ = inner_->copy();
    return other;
  }

  NextIds next_ids() override {
    if (thinks_ && left_ <= 0) return {.allowed = close_, .end = NextIds::End::kBanned};
    return inner_ ? inner_->next_ids() : NextIds{};
  }

  std::span<const int32_t> forced_ids() override {
    return inner_ && !thinks_ ? inner_->forced_ids() : std::span<const int32_t>();
  }

  void advance(int32_t id) override {
    if (inner_) inner_->advance(id);
    if (id == ids_.open) {
      thinks_ = true;
    } else if (id == ids_.close) {
      thinks_ = false;
    } else if (thinks_) {
      --left_;
    }
  }

 private:
  const ThinkingIds ids_;
  const std::array<int32_t, 1> close_{ids_.close};
  int64_t left_;
  bool thinks_;
  std::unique_ptr<TokenConstraint> inner_;
};

}  // namespace sparrow
