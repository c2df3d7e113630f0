// SPDX-License-Identifier: Apache-2.0
// RunsConstraint: some free ids, then a run of forced ones, over and over.
#pragma once

#include <memory>
#include <span>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "engine/token_constraint.h"

namespace sparrow::test {

class RunsConstraint final : public TokenConstraint {
 public:
  // `tells`: of the run as a whole; otherwise each id is asked for. After `times` all ids are free, or the
  // output ends.
  RunsConstraint(int free, std::vector<int32_t> run, int times, bool tells, NextIds::End then)
      : free_(static_cast<size_t>(free)), run_(std::move(run)), times_(times), tells_(tells), then_(then) {}

  std::unique_ptr<TokenConstraint> copy() const override { return std::make_unique<RunsConstraint>(*this); }
  NextIds next_ids() override {
    if (times_ == 0) return {.end = then_};
    if (at_ < free_) return {.end = NextIds::End::kBanned};
    return {.allowed = rest().first(1), .end = NextIds::End::kBanned};
  }
  std::span<const int32_t> forced_ids() override {
    return tells_ && times_ > 0 && at_ >= free_ ? rest() : std::span<const int32_t>();
  }
  void advance(int32_t id) override {
    if (times_ == 0) return;
    if (at_ >= free_) {
      EXPECT_EQ(id, rest().front());
    }
    if (++at_ < free_ + run_.size()) return;
    at_ = 0;
    --times_;
  }

 private:
  std::span<const int32_t> rest() const { return std::span(run_).subspan(at_ - free_); }

  size_t free_;
  std::vector<int32_t> run_;
  int times_;
  bool tells_;
  NextIds::End then_;
  size_t at_ = 0;  // ids of a free part and its run that have come
};

}  // namespace sparrow::test
