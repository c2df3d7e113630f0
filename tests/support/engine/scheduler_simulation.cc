// SPDX-License-Identifier: Apache-2.0
#include "support/engine/scheduler_simulation.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <utility>

#include "engine/schedule/step_batch.h"

namespace sparrow::test {
namespace {

constexpr std::chrono::milliseconds kStepTime(10);

uint64_t mix(uint64_t a, uint64_t b) {
  uint64_t x = (a ^ (b + 0x9e3779b97f4a7c15u)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 29)) * 0x94d049bb133111ebu;
  return x ^ (x >> 32);
}

// The choices of a prompt draw differently, each always the same.
int32_t draw(uint64_t state, int choice) {
  return static_cast<int32_t>(mix(state, choice) % 1000);
}
constexpr int32_t kEndIds = 4;  // ids below end an output

// What stands at a place of a sequence: an id, and the picture that it is a part of.
uint64_t content(const Sequence& sequence, int64_t position) {
  const auto id = static_cast<uint64_t>(sequence.ids[position]);
  for (const MediaSpan& span : sequence.media)
    if (span.begin <= position && position < span.end) return id | uint64_t{span.digest[0]} << 32;
  return id;
}

class Simulation {
 public:
  explicit Simulation(const SimulationOptions& options)
      : options_(options),
        random_(options.seed),
        memory_(static_cast<size_t>(options.num_blocks) * options.limits.groups * kBlockTokens),
        scheduler_(options.num_blocks, options.limits, options.seed) {
    if (options.cache_events) scheduler_.tell_cache_events(options.cache_events);
  }

  SimulationOutcome run() {
    while (outcome_.refused + num_added_ < options_.num_requests || !live_.empty() ||
           !flight_.slices.empty()) {
      step();
      if (testing::Test::HasFailure()) break;
    }
    EXPECT_TRUE(scheduler_.idle());
    EXPECT_EQ(outcome_.ended + outcome_.cancelled + outcome_.expired, num_outputs_);
    outcome_.stats = scheduler_.stats();
    EXPECT_EQ(outcome_.stats.blocks_in_use, 0);
    return outcome_;
  }

 private:
  struct Live {
    int64_t arrived, cancel_at, resume_at = 0;
    int num_choices;
    int group = -1;  // that it was last in
    bool started = false;
  };
  // A step that has run and is not committed.
  struct Flight {
    std::vector<StepSlice> slices;
    std::vector<SequenceId> ids;  // of its sequences, which may go before it does
    std::vector<int32_t> sampled;

    // What it drew for a sequence.
    int32_t drawn(SequenceId id) const {
      return sampled[std::find(ids.begin(), ids.end(), id) - ids.begin()];
    }
  };

  int64_t pick(int64_t low, int64_t high) {
    return low + static_cast<int64_t>(random_() % static_cast<uint64_t>(high - low + 1));
  }
  bool chance(double p) { return static_cast<double>(random_() >> 11) * 0x1p-53 < p; }
  SchedulerTime now() const { return SchedulerTime(outcome_.steps * kStepTime); }

  void step();
  void arrive();
  void add_pictures(SequenceSpec& spec);
  void disturb();
  void plan();
  void plan_ahead();
  Flight run_slices(const StepPlan& plan);
  void check_plan(const StepPlan& plan);
  void check_progress(const StepPlan& plan);
  void check_groups(const StepPlan& plan);
  void check_owners();
  void end_outputs(const std::vector<StepSlice>& slices);
  void check_output(const Sequence& sequence);
  void end(SequenceId id, int64_t& counter);
  void trace(uint64_t value) { outcome_.trace = mix(outcome_.trace, value); }

  SimulationOptions options_;
  std::mt19937_64 random_;
  std::vector<uint64_t> memory_;  // [block, kBlockTokens]
  Scheduler scheduler_;
  std::map<SequenceId, Live> live_;
  std::vector<SequenceId> paused_;
  Flight flight_, ahead_;
  Batch batch_;
  int64_t num_added_ = 0, num_outputs_ = 0;
  SimulationOutcome outcome_;
};

void Simulation::arrive() {
  SequenceSpec spec;
  // A document that many ask about, cut somewhere, and a question of their own.
  const int64_t document = pick(0, 9);
  const int64_t longest = int64_t{options_.num_blocks} * kBlockTokens;
  const int64_t shared = chance(0.5) ? 0 : chance(0.005) ? pick(0, longest) : pick(0, 600);
  const int64_t own = chance(0.02) ? 0 : chance(0.1) ? pick(1, 400) : pick(1, 60);
  for (int64_t i = 0; i < shared; ++i) spec.prompt.push_back(static_cast<int32_t>(mix(document, i) % 1000));
  for (int64_t i = 0; i < own; ++i) spec.prompt.push_back(static_cast<int32_t>(pick(0, 999)));
  if (options_.pictures > 0 && chance(options_.pictures)) add_pictures(spec);
  const auto prompt = static_cast<int64_t>(spec.prompt.size());
  spec.max_total_tokens = prompt + (chance(0.02)                    ? pick(1, 2000)
                                    : chance(options_.long_outputs) ? pick(1, options_.long_output)
                                                                    : pick(1, 40));
  spec.num_choices = chance(0.05) ? static_cast<int>(pick(2, 6)) : 1;
  spec.priority = static_cast<int32_t>(pick(-2, 2));
  spec.salt = chance(0.2) ? "tenant" : "";
  spec.score_prompt = chance(0.03);
  if (chance(0.05)) spec.queue_deadline = now() + pick(0, 100) * kStepTime;
  const bool fits = prompt > 0 && blocks_for_tokens(spec.max_total_tokens - 1) <= options_.num_blocks;
  const int num_choices = spec.num_choices;
  const auto id = scheduler_.add(std::move(spec), now());
  EXPECT_EQ(id.ok(), fits);
  if (!id.ok()) {
    ++outcome_.refused;
    return;
  }
  ++num_added_;
  num_outputs_ += num_choices;
  live_[id.value()] = {.arrived = outcome_.steps,
                       .cancel_at = chance(0.05) ? outcome_.steps + pick(0, 200) : INT64_MAX,
                       .num_choices = num_choices};
}

// One of three arrangements of pictures, so that some prompts share theirs. The ids below a picture are the
// same whatever it shows.
void Simulation::add_pictures(SequenceSpec& spec) {
  std::mt19937_64 arrangement(static_cast<uint64_t>(pick(0, 2)));
  const auto next = [&](int64_t count) { return static_cast<int64_t>(arrangement() % count); };
  const auto end = static_cast<int64_t>(spec.prompt.size());
  for (int64_t at = next(100); at < end; at += next(100)) {
    MediaSpan span{.begin = at, .end = std::min(end, at + 1 + next(300))};
    span.digest[0] = static_cast<uint8_t>(1 + next(200));
    std::fill(spec.prompt.begin() + span.begin, spec.prompt.begin() + span.end, 7);
    at = span.end;
    spec.media.spans.push_back(span);
  }
}

// Cancels what is due, and pauses and resumes here and there.
void Simulation::disturb() {
  for (auto at = live_.begin(); at != live_.end();) {
    const auto [id, live] = *at++;
    if (live.cancel_at <= outcome_.steps) end(id, outcome_.cancelled);
  }
  if (!live_.empty() && chance(0.02)) {
    auto at = live_.lower_bound(live_.rbegin()->first - static_cast<SequenceId>(pick(0, 400)));
    if (at == live_.end()) at = live_.begin();
    scheduler_.set_paused(at->first, true);
    at->second.resume_at = outcome_.steps + pick(1, 300);
    paused_.push_back(at->first);
  }
  std::erase_if(paused_, [&](SequenceId id) {
    const auto at = live_.find(id);
    if (at == live_.end()) return true;
    if (at->second.resume_at > outcome_.steps) return false;
    if (chance(0.2))
      end(id, outcome_.cancelled);
    else
      scheduler_.set_paused(id, false);
    return true;
  });
}

void Simulation::step() {
  ++outcome_.steps;
  const int64_t arrivals = chance(0.01) ? 10 * options_.max_arrivals : pick(0, options_.max_arrivals);
  for (int64_t i = 0; i < arrivals; ++i)
    if (static_cast<int>(live_.size()) < options_.max_live &&
        outcome_.refused + num_added_ < options_.num_requests)
      arrive();
  disturb();
  if (flight_.slices.empty()) plan();
  if (chance(options_.runs_ahead)) plan_ahead();
  if (!flight_.slices.empty() && chance(0.05)) {  // a client leaves while the step runs
    const SequenceId id = flight_.ids[pick(0, static_cast<int64_t>(flight_.ids.size()) - 1)];
    if (live_.contains(id)) end(id, outcome_.cancelled);
  }
  scheduler_.commit(flight_.sampled);
  if (options_.after_step) options_.after_step(scheduler_, outcome_.steps);
  std::vector<StepSlice> kept;
  for (size_t i = 0; i < flight_.slices.size(); ++i)
    if (flight_.slices[i].num_draws() > 0 && live_.contains(flight_.ids[i]))
      kept.push_back(flight_.slices[i]);
  end_outputs(kept);
  flight_ = std::exchange(ahead_, {});
  if (outcome_.steps % 64 == 0 && flight_.slices.empty()) check_owners();
}

void Simulation::plan() {
  const StepPlan& plan = scheduler_.plan_step(now());
  for (const Expired& expired : plan.expired) {
    const Live& live = live_.at(expired.id);
    EXPECT_FALSE(live.started);
    outcome_.expired += live.num_choices;
    live_.erase(expired.id);
  }
  check_plan(plan);
  check_progress(plan);
  flight_ = run_slices(plan);
}

void Simulation::plan_ahead() {
  const StepPlan* plan = scheduler_.plan_ahead(now());
  if (plan == nullptr) return;
  ++outcome_.ahead;
  ASSERT_TRUE(plan->copies.empty() && plan->expired.empty() && !plan->slices.empty());
  check_plan(*plan);
  for (const StepSlice& slice : plan->slices) ASSERT_EQ(slice.first, slice.sequence->num_tokens());
  ahead_ = run_slices(*plan);
}

void Simulation::check_plan(const StepPlan& plan) {
  int num_tokens = 0;
  for (const StepSlice& slice : plan.slices) {
    const Sequence& sequence = *slice.sequence;
    ASSERT_GE(slice.num_tokens, 1);
    ASSERT_FALSE(sequence.paused);
    ASSERT_LE(slice.first + slice.num_tokens, sequence.blocks.capacity_tokens());
    num_tokens += slice.num_tokens;
    Live& live = live_.at(sequence.id);
    if (!live.started)
      outcome_.max_wait_steps = std::max(outcome_.max_wait_steps, outcome_.steps - live.arrived);
    live.started = true;
    outcome_.moved += live.group >= 0 && live.group != sequence.group;
    live.group = sequence.group;
    trace(sequence.id);
    trace(static_cast<uint64_t>(slice.first) << 20 | static_cast<uint64_t>(slice.num_tokens));
    trace(static_cast<uint64_t>(sequence.group));
  }
  ASSERT_EQ(num_tokens, plan.num_tokens);
  // Something always gets on, unless all of it is paused.
  ASSERT_TRUE(!plan.slices.empty() || live_.empty() || !paused_.empty());
  for (const BlockCopy& copy : plan.copies) {
    trace(static_cast<uint64_t>(copy.from) << 32 | copy.to);
    ASSERT_EQ(copy.from / options_.num_blocks, copy.to / options_.num_blocks) << "from group to group";
  }
  check_groups(plan);
}

// Every group gets on of which anything can run.
void Simulation::check_progress(const StepPlan& plan) {
  std::vector<bool> runs(options_.limits.groups);
  for (const StepSlice& slice : plan.slices) runs[slice.sequence->group] = true;
  for (const auto& [id, live] : live_) {
    const Sequence& sequence = *scheduler_.find(id);
    ASSERT_TRUE(runs[sequence.group] || sequence.paused || sequence.state != SequenceState::kRunning);
  }
}

// Each group keeps to the limits and to its own blocks.
void Simulation::check_groups(const StepPlan& plan) {
  const int groups = options_.limits.groups;
  fill_batch(plan.slices, batch_, groups);
  ASSERT_EQ(batch_.num_groups(), groups);
  int num_tokens = 0;
  for (int group = 0; group < groups; ++group) {
    const Batch part = group_part(batch_, group, options_.num_blocks);  // checks the blocks
    num_tokens += part.num_tokens();
    ASSERT_LE(part.num_tokens(), options_.limits.max_step_tokens);
    ASSERT_LE(part.num_sequences(), options_.limits.max_step_sequences);
    for (const int64_t slot : part.slots) ASSERT_LT(slot / kBlockTokens, options_.num_blocks);
  }
  ASSERT_EQ(num_tokens, plan.num_tokens);
}

Simulation::Flight Simulation::run_slices(const StepPlan& plan) {
  Flight flight{.slices = plan.slices, .ids = {}, .sampled = {}};
  for (const BlockCopy& copy : plan.copies)
    std::copy_n(memory_.begin() + int64_t{copy.from} * kBlockTokens, kBlockTokens,
                memory_.begin() + int64_t{copy.to} * kBlockTokens);
  for (const StepSlice& slice : plan.slices) {
    const Sequence& sequence = *slice.sequence;
    flight.ids.push_back(sequence.id);
    uint64_t state = slice.first == 0 ? 0 : memory_[sequence.blocks.slot(slice.first - 1)];
    for (int64_t p = slice.first; p < slice.first + slice.num_tokens; ++p)
      memory_[sequence.blocks.slot(p)] = state =
          mix(state, p < sequence.num_tokens() ? content(sequence, p)
                                               : static_cast<uint64_t>(flight_.drawn(sequence.id)));
    for (int i = 0; i < slice.num_draws(); ++i) flight.sampled.push_back(draw(state, sequence.choice + i));
  }
  return flight;
}

// Recomputes the output from its prompt, and what the cache should hold of it.
void Simulation::check_output(const Sequence& sequence) {
  uint64_t state = 0;
  for (int64_t p = 0; p < sequence.num_tokens(); ++p) {
    if (p >= sequence.num_prompt_tokens) {
      ASSERT_EQ(sequence.ids[p], draw(state, sequence.choice));
    }
    state = mix(state, content(sequence, p));
    if (p < sequence.num_computed) {
      ASSERT_EQ(memory_[sequence.blocks.slot(p)], state) << "at token " << p;
    }
  }
}

void Simulation::end_outputs(const std::vector<StepSlice>& slices) {
  for (const StepSlice& slice : slices) {
    const SequenceId first = slice.sequence->id;
    const int group = slice.sequence->group;  // the first choice may be gone when the others' turn comes
    for (int i = 0; i < slice.num_draws(); ++i) {
      const Sequence& sequence = *scheduler_.find(first + i);
      ASSERT_EQ(sequence.group, group) << "choices share blocks";
      if (i > 0)
        live_[sequence.id] = {
            .arrived = outcome_.steps, .cancel_at = INT64_MAX, .num_choices = 1, .started = true};
      live_[sequence.id].num_choices = 1;
      if (sequence.num_tokens() < sequence.max_total_tokens && sequence.ids.back() >= kEndIds) continue;
      check_output(sequence);
      end(sequence.id, outcome_.ended);
    }
  }
}

void Simulation::end(SequenceId id, int64_t& counter) {
  EXPECT_TRUE(scheduler_.finish(id));
  counter += live_.at(id).num_choices;
  live_.erase(id);
}

// Every block has the owners that the sequences' tables say, and no others.
void Simulation::check_owners() {
  std::vector<int> owners(memory_.size() / kBlockTokens);
  for (const auto& [id, live] : live_)
    for (const BlockId block : scheduler_.find(id)->blocks.blocks()) ++owners[block];
  for (int group = 0; group < options_.limits.groups; ++group) {
    const BlockPool& pool = scheduler_.pool(group);
    int in_use = 0;
    for (BlockId block = pool.first_block(); block < pool.first_block() + pool.num_blocks(); ++block) {
      ASSERT_EQ(pool.num_owners(block), owners[block]) << "block " << block;
      in_use += owners[block] > 0;
    }
    ASSERT_EQ(in_use, pool.num_in_use());
    ASSERT_EQ(pool.num_in_use() + pool.num_cached() + pool.num_free(), pool.num_blocks());
  }
}

}  // namespace

SimulationOutcome simulate_scheduler(const SimulationOptions& options) {
  return Simulation(options).run();
}

}  // namespace sparrow::test
