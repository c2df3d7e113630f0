// SPDX-License-Identifier: Apache-2.0
// A step: what it runs, what its logits are asked (ids for the outputs, probabilities for the prompts), and
// what became of it.
#include <algorithm>
#include <chrono>
#include <utility>

#include "engine/engine_core.h"
#include "engine/schedule/step_batch.h"

namespace sparrow {
namespace {

bool contains(std::span<const int32_t> ids, int32_t id) {
  return std::find(ids.begin(), ids.end(), id) != ids.end();
}

constexpr int kMaxMaskThreads = 8;

void set_bit(std::span<uint32_t> mask, int32_t id, bool on) {
  const uint32_t bit = uint32_t{1} << (id % 32);
  mask[id / 32] = on ? mask[id / 32] | bit : mask[id / 32] & ~bit;
}

bool has_bit(std::span<const uint32_t> mask, int32_t id) {
  return (mask[id / 32] >> (id % 32) & 1) != 0;
}

// Leaves ids out, unless nothing would be left.
void leave_out(std::span<const int32_t> ids, std::span<uint32_t> mask) {
  std::vector<int32_t> left_out;
  for (const int32_t id : ids)
    if (has_bit(mask, id)) {
      set_bit(mask, id, false);
      left_out.push_back(id);
    }
  if (left_out.empty() || std::ranges::any_of(mask, [](uint32_t word) { return word != 0; })) return;
  for (const int32_t id : left_out) set_bit(mask, id, true);
}

// The ids from this position of an output on that need no draw. Probabilities are those of a draw, and the
// last id of an output is always drawn.
std::vector<int32_t> forced_from(const Request& request, std::span<const int32_t> end_ids,
                                 TokenConstraint* constraint, int64_t position) {
  if (!constraint || request.logprobs) return {};
  const std::span<const int32_t> ids = constraint->forced_ids();
  const int64_t count = std::clamp<int64_t>(request.max_tokens - 1 - position, 0, std::ssize(ids));
  const auto end = std::find_first_of(ids.begin(), ids.begin() + count, end_ids.begin(), end_ids.end());
  return {ids.begin(), end};
}

}  // namespace

// What a draw is held to beside its parameters; `is_early`: before min_tokens. A constraint comes before what
// the request says of its end, for nothing else would be left to draw: a form that is complete ends with the
// model's end, and what it allows may be a stop id.
void EngineCore::set_mask(SampleRow& row, const NextIds& next, const ActiveRequest& active,
                          bool is_early) const {
  row.only = next.end == NextIds::End::kOnly ? std::span(request_limits_.end_ids) : next.allowed;
  if (!row.only.empty()) return;
  const bool banned = next.end == NextIds::End::kBanned;
  const auto model_ends = std::span(active.end_ids).subspan(active.request.stop_ids.size());
  if (next.mask.empty()) {
    if (is_early || banned) row.more_banned = is_early ? active.end_ids : model_ends;
    return;
  }
  for (const int32_t id : model_ends) set_bit(next.mask, id, !banned);
  if (is_early) leave_out(active.end_ids, next.mask);
  row.mask = next.mask;
}

bool EngineCore::step(SchedulerTime now) {
  now_ = now;
  if (runner_failed()) return false;
  if (flight_.num_tokens == 0) {
    encode_media();
    launched_ = std::chrono::steady_clock::now();
    if (bound_steps_) {
      step_tokens_ = budget_.tokens(/*shared=*/outputs_.size() > 1);
      scheduler_.set_step_tokens(step_tokens_);
    }
    const StepPlan& plan = scheduler_.plan_step(now);
    expire(plan);
    if (plan.slices.empty()) {
      scheduler_.commit({});
      return !scheduler_.need_features().empty();  // which the next step begins with
    }
    run_step(plan, flight_);
    score_prompts(plan);
    start_draws(plan, flight_);
  }
  const StepPlan* const waiting = launch_ahead(flight_, now);
  std::vector<Draw> draws = runner_->finish_draws();
  if (runner_failed()) return false;  // nobody gets what it drew
  collect(flight_, std::move(draws));
  if (waiting) start_draws(*waiting, ahead_);
  scheduler_.commit(sampled_);
  send_drawn(flight_);
  const auto ended = std::chrono::steady_clock::now();
  count_step(flight_, std::chrono::duration<double>(ended - std::exchange(launched_, ended)).count());
  flight_.num_tokens = 0;
  std::swap(flight_, ahead_);
  return true;
}

void EngineCore::encode_media() {
  const std::span<Sequence* const> sequences = scheduler_.need_features();
  if (sequences.empty()) return;
  const auto start = std::chrono::steady_clock::now();
  const std::vector<EncodeJob> jobs = features_.plan(sequences);
  if (jobs.empty()) return;
  runner_->encode(jobs);
  stats_.encode_seconds += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

void EngineCore::run_step(const StepPlan& plan, Flight& flight) {
  start_requests(plan);
  runner_->copy_blocks(plan.copies);
  fill_batch(plan.slices, batch_, scheduler_.num_groups(), &features_);
  runner_->run(batch_);
  flight.num_tokens = plan.num_tokens;
  flight.num_sequences = static_cast<int>(plan.slices.size());
  flight.group_tokens = 0;
  for (int group = 0; group < batch_.num_groups(); ++group)
    flight.group_tokens = std::max(flight.group_tokens,
                                   group_begin(batch_, group + 1).token - group_begin(batch_, group).token);
}

void EngineCore::start_draws(const StepPlan& plan, Flight& flight) {
  ask_for_draws(plan, flight);
  runner_->start_draws(flight.draws);
}

const StepPlan* EngineCore::launch_ahead(const Flight& flight, SchedulerTime now) {
  if (!run_ahead_) return nullptr;
  bool draws_wait = false;
  for (const Drawn& drawn : flight.drawn) {
    // What is drawn next may hang on what is drawn now; of outputs that have ended it does not matter.
    const auto output = outputs_.find(drawn.sequence);
    if (output == outputs_.end()) continue;
    if (!drawn.waits) return nullptr;
    // Behind the id that is drawn now.
    const ActiveRequest& active = *output->second.request;
    const Request& request = active.request;
    if (forced_from(request, active.end_ids, output->second.constraint.get(), drawn.position).size() >
        kLeastForcedIds)
      return nullptr;
    draws_wait |= output->second.constraint || request.sampling.has_penalties();
  }
  const StepPlan* const plan = scheduler_.plan_ahead(now);
  if (!plan) return nullptr;
  run_step(*plan, ahead_);
  if (draws_wait) return plan;
  start_draws(*plan, ahead_);
  return nullptr;
}

TokenEvent::Waited EngineCore::waited_until_now(const ActiveRequest& request, WaitReason reason) const {
  return {std::max(0.0, std::chrono::duration<double>(now_ - request.arrived).count()), reason};
}

void EngineCore::start_requests(const StepPlan& plan) {
  for (const StepSlice& slice : plan.slices) {
    ActiveRequest& request = *outputs_.at(slice.sequence->id).request;
    if (std::exchange(request.started, true)) continue;
    request.waited = waited_until_now(request, slice.sequence->wait_reason);
    leave_queue(request);
  }
}

void EngineCore::collect(Flight& flight, std::vector<Draw> draws) {
  std::vector<Drawn>& all = flight.drawn;
  sampled_.clear();
  size_t next = 0;
  for (size_t i = 0; i < all.size(); ++i) {
    Drawn& drawn = all[i];
    if (drawn.waits) finish_draw(drawn, std::move(draws[next++]));
    sampled_.push_back(drawn.event.id.value_or(0));
    // Before the commit: what such a sequence has left in the cache must not be published.
    const bool last_choice = i + 1 == all.size() || all[i + 1].prompt_sequence != drawn.prompt_sequence;
    if (last_choice && drawn.event.finish == FinishReason::kError) scheduler_.finish(drawn.prompt_sequence);
  }
}

void EngineCore::score_prompts(const StepPlan& plan) {
  prompt_rows_.clear();
  int64_t row = 0;  // of the step's logits
  for (const StepSlice& slice : plan.slices) {
    const int64_t first = slice.first + slice.scored.first;
    for (int i = 0; i < slice.scored.count; ++i)
      prompt_rows_.push_back({row + i, slice.sequence->ids[first + i + 1],
                              *outputs_.at(slice.sequence->id).request->request.prompt_logprobs});
    row += slice.scored.count + slice.sampled.count;
  }
  if (prompt_rows_.empty()) return;
  std::vector<std::optional<TokenLogprobs>> scores = runner_->score(prompt_rows_);
  size_t next = 0;
  for (const StepSlice& slice : plan.slices) {
    Output& output = outputs_.at(slice.sequence->id);
    for (int i = 0; i < slice.scored.count; ++i) {
      if (auto& score = scores[next++])
        output.prompt_logprobs.push_back(std::move(*score));
      else
        output.bad_prompt_row = slice.first + slice.scored.first + i;
    }
  }
}

void EngineCore::ask_for_draws(const StepPlan& plan, Flight& flight) {
  flight.draws.clear();
  flight.drawn.clear();
  int64_t row = 0;  // of the step's logits
  for (const StepSlice& slice : plan.slices) {
    row += slice.scored.count;
    // The row of the prompt's last token gives the output's first.
    int64_t position = slice.first + slice.sampled.first + 1 - slice.sequence->num_prompt_tokens;
    for (int i = 0; i < slice.sampled.count; ++i, ++row, ++position)
      for (int choice = 0; choice < slice.draws_per_row; ++choice)
        ask_for_draw(slice, choice, position, row, flight);
  }
  // A mask may take a while, and is an output's own matter. The model runs meanwhile.
  std::vector<std::pair<SampleRow*, Drawn*>> masked;
  size_t next = 0;
  for (Drawn& drawn : flight.drawn) {
    if (!drawn.waits) continue;
    SampleRow* const row_of = &flight.draws[next++].sample;
    if (outputs_.at(drawn.sequence).constraint) masked.emplace_back(row_of, &drawn);
  }
  if (masked.empty()) return;
  if (!mask_threads_)
    mask_threads_ = std::make_unique<ThreadPool>(std::min(ThreadPool::default_size(), kMaxMaskThreads));
  mask_threads_->parallel_for(std::ssize(masked), [&](int64_t i, int /*worker*/) {
    const auto& [row_of, drawn] = masked[static_cast<size_t>(i)];
    const Output& output = outputs_.at(drawn->sequence);
    const NextIds next_ids = output.constraint->next_ids();
    if (next_ids.end == NextIds::End::kOnly) drawn->event.finish = FinishReason::kStop;
    set_mask(*row_of, next_ids, *output.request, drawn->position < output.request->request.min_tokens);
  });
}

void EngineCore::ask_for_draw(const StepSlice& slice, int choice, int64_t position, int64_t row,
                              Flight& flight) {
  const Sequence& sequence = *slice.sequence;
  const SequenceId id = sequence.id + static_cast<SequenceId>(choice);
  Output& output = outputs_.at(id);
  const Request& request = output.request->request;
  output.bad_prompt_row = outputs_.at(sequence.id).bad_prompt_row;
  if (position == 0) output.cached_tokens = sequence.num_cached_tokens;
  Drawn& drawn = flight.drawn.emplace_back();
  drawn = {.sequence = id, .prompt_sequence = sequence.id, .position = position};
  if (std::optional<TokenEvent> event = event_without_draw(output)) {
    drawn.event = std::move(*event);
  } else {
    drawn.waits = true;
    drawn.event = {.output = output.index, .cached_tokens = output.cached_tokens};
    flight.draws.push_back({.row = row,
                            .sample = {.logits = {},
                                       .params = request.sampling,
                                       .counts = &output.counts,
                                       .choice = static_cast<uint64_t>(output.choice),
                                       .position = static_cast<uint64_t>(position)},
                            .num_top_logprobs = request.logprobs});
    if (!output.constraint)
      set_mask(flight.draws.back().sample, {}, *output.request, position < request.min_tokens);
  }
  if (!output.bad_prompt_row) drawn.event.prompt_logprobs = std::exchange(output.prompt_logprobs, {});
}

std::optional<TokenEvent> EngineCore::event_without_draw(const Output& output) const {
  TokenEvent event{.output = output.index, .cached_tokens = output.cached_tokens};
  if (output.bad_prompt_row) {
    event.finish = FinishReason::kError;
    event.error = strf("the logits of prompt token {} are not finite numbers", *output.bad_prompt_row);
    return event;
  }
  if (output.request->request.max_tokens > 0) return std::nullopt;
  event.finish = FinishReason::kLength;
  return event;
}

void EngineCore::finish_draw(Drawn& drawn, Draw draw) {
  const auto found = outputs_.find(drawn.sequence);
  if (found == outputs_.end()) return;  // it ended while the step ran
  Output& output = found->second;
  const Request& request = output.request->request;
  TokenEvent& event = drawn.event;
  if (!draw.id.ok()) {
    event.finish = FinishReason::kError;
    event.error = draw.id.error().message;
    return;
  }
  event.id = draw.id.value();
  event.logprobs = std::move(draw.logprobs);
  ++stats_.generated_tokens;
  if (request.sampling.has_penalties()) output.counts.add_output(*event.id);
  if (output.constraint) output.constraint->advance(*event.id);
  if (event.finish || contains(output.request->end_ids, *event.id))
    event.finish = FinishReason::kStop;
  else if (drawn.position + 1 == request.max_tokens)
    event.finish = FinishReason::kLength;
}

void EngineCore::send_drawn(Flight& flight) {
  for (Drawn& drawn : flight.drawn) {
    const auto found = outputs_.find(drawn.sequence);
    if (found == outputs_.end()) continue;  // it ended while the step ran
    if (drawn.event.finish) {
      end(drawn.sequence, std::move(drawn.event));
      continue;
    }
    Output& output = found->second;
    send(*output.request, std::move(drawn.event));
    const Request& request = output.request->request;
    const std::vector<int32_t> forced =
        forced_from(request, output.request->end_ids, output.constraint.get(), drawn.position + 1);
    if (forced.size() < kLeastForcedIds || !scheduler_.append(drawn.sequence, forced)) continue;
    for (const int32_t id : forced) {
      ++stats_.generated_tokens;
      if (request.sampling.has_penalties()) output.counts.add_output(id);
      output.constraint->advance(id);
      send(*output.request, {.output = output.index, .id = id, .cached_tokens = output.cached_tokens});
    }
  }
}

void EngineCore::count_step(const Flight& flight, double seconds) {
  if (bound_steps_)
    budget_.took(seconds, flight.group_tokens, step_tokens_,
                 /*prompts=*/flight.num_tokens > flight.num_sequences);
  stats_.computed_tokens += flight.num_tokens;
  const auto* const bound = std::ranges::lower_bound(kStepTokenBounds, flight.num_tokens);
  ++stats_.steps_by_tokens[static_cast<size_t>(bound - kStepTokenBounds.begin())];
  ++stats_.steps;
  stats_.step_sequences += flight.num_sequences;
  stats_.largest_step_sequences = std::max(stats_.largest_step_sequences, flight.num_sequences);
  stats_.largest_step_tokens = std::max(stats_.largest_step_tokens, flight.num_tokens);
  stats_.step_seconds += seconds;
  stats_.last_step_seconds = seconds;
}

}  // namespace sparrow
