// SPDX-License-Identifier: Apache-2.0
// A runner without a model: it notes its calls as text.
#pragma once

#include <atomic>
#include <deque>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "comm/grid.h"
#include "engine/model_runner.h"

namespace sparrow::test {

class FakeRunner : public ModelRunner {
 public:
  static constexpr int kVocab = 1000, kBlocks = 64;

  explicit FakeRunner(const Grid& grid = {}, bool run_ahead = false) : grid_(grid) {
    info_ = {.device = "fake",
             .num_blocks = kBlocks,
             .cache_tokens = int64_t{kBlocks} * kBlockTokens,
             .run_ahead = run_ahead};
  }

  const EngineInfo& info() const override { return info_; }
  void copy_blocks(std::span<const BlockCopy> copies) override {
    for (const BlockCopy& copy : copies) note(strf("copy {}->{}", copy.from, copy.to));
  }
  void run(const Batch& batch, Capture*) override {
    if (on_run) on_run();
    note("run " + describe(batch));
    logits_begin_ = group_begin(batch, grid_.group()).logit;
    logits_end_ = group_begin(batch, grid_.group() + 1).logit;
    for (size_t row = 0; row < batch.ids.size(); ++row) {
      const int draw = batch.drawn_by.empty() ? -1 : batch.drawn_by[row];
      mix(static_cast<uint64_t>(draw < 0 ? batch.ids[row] : drawn_.at(draw)));
      mix(static_cast<uint64_t>(batch.slots[row]));
    }
    if (spoil_after >= 0 && spoil_after-- == 0) mix(1);
  }
  void start_draws(std::span<const DrawRequest> draws) override {
    note(strf("draw {}", draws.size()));
    drawn_.clear();
    std::vector<Draw>& all = draws_.emplace_back();
    for (const DrawRequest& draw : draws) {
      drawn_.push_back(drawn_from(draw, grid_.group()));
      if (is_mine(draw.row)) all.push_back({drawn_.back(), std::nullopt});
    }
  }
  std::vector<Draw> finish_draws() override {
    note("finish");
    std::vector<Draw> draws = std::move(draws_.front());
    draws_.pop_front();
    if (!grid_.leads_group()) draws.clear();
    return draws;
  }
  std::vector<std::optional<TokenLogprobs>> score(std::span<const PromptRow> rows) override {
    for (const PromptRow& row : rows) note(strf("score {} {} {}", row.row, row.id, row.num_top));
    std::vector<std::optional<TokenLogprobs>> scores;
    for (const PromptRow& row : rows)
      if (is_mine(row.row)) scores.push_back(TokenLogprobs{.token = {row.id, -1.0f}, .rank = 1});
    return scores;
  }
  Tensor logits() override { return {}; }
  uint64_t replica_hash() override { return state_; }
  std::optional<Error> failure() const override {
    const std::lock_guard lock(mutex_);
    return failure_;
  }

  void fail(Error failure) {
    const std::lock_guard lock(mutex_);
    failure_ = std::move(failure);
  }
  std::vector<std::string> calls() const {
    const std::lock_guard lock(mutex_);
    return calls_;
  }
  std::function<void()> on_run;
  int spoil_after = -1;  // steps; then it goes wrong

  static int32_t drawn_from(const DrawRequest& draw, int group) {
    return static_cast<int32_t>(100 * group + 7 * draw.row) % kVocab;
  }
  static std::string describe(const Batch& batch) {
    std::string text;
    const auto list = [&text](const char* name, const auto& values) {
      text += strf(" {}", name);
      for (const auto value : values) text += strf(" {}", value);
    };
    list("ids", batch.ids);
    list("positions", batch.positions);
    list("slots", batch.slots);
    list("cu", batch.cu_seqlens_q);
    list("lens", batch.seq_lens);
    list("table", batch.block_table);
    list("logits", batch.logit_rows);
    list("drawn", batch.drawn_by);
    return text + strf(" {}", batch.max_blocks);
  }

 private:
  void note(std::string call) {
    const std::lock_guard lock(mutex_);
    calls_.push_back(std::move(call));
  }
  bool is_mine(int64_t logits_row) const { return logits_begin_ <= logits_row && logits_row < logits_end_; }
  void mix(uint64_t value) { state_ = (state_ ^ value) * 0x9e3779b97f4a7c15u + 1; }

  const Grid grid_;
  EngineInfo info_;
  uint64_t state_ = 1;
  int logits_begin_ = 0, logits_end_ = 0;  // of this group
  std::vector<int32_t> drawn_;
  std::deque<std::vector<Draw>> draws_;
  mutable std::mutex mutex_;
  std::vector<std::string> calls_;
  std::optional<Error> failure_;
};

}  // namespace sparrow::test
