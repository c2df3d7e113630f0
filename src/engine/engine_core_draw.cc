// SPDX-License-Identifier: Apache-2.0
// What a step's logits are asked: ids for the outputs, probabilities for the prompts.
#include <algorithm>
#include <utility>

#include "engine/engine_core.h"

namespace sparrow {
namespace {

bool contains(std::span<const int32_t> ids, int32_t id) {
  return std::find(ids.begin(), ids.end(), id) != ids.end();
}

// What a draw is held to beside its parameters. Ids that a constraint names stand whatever else holds:
// without them nothing would be left to draw.
void set_masks(SampleRow& row, TokenConstraint* constraint, std::span<const int32_t> end_ids, bool may_end) {
  const NextIds next = constraint ? constraint->next_ids() : NextIds{};
  const bool banned = !may_end || next.end == NextIds::End::kBanned;
  row.only = next.end == NextIds::End::kOnly && may_end ? end_ids : next.allowed;
  if (!row.only.empty()) return;
  for (const int32_t id : next.mask.empty() ? std::span<const int32_t>() : end_ids) {
    const uint32_t bit = uint32_t{1} << (id % 32);
    uint32_t& word = next.mask[id / 32];
    word = banned ? word & ~bit : word | bit;
  }
  row.mask = next.mask;
  if (banned && row.mask.empty()) row.more_banned = end_ids;
}

}  // namespace

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
    set_masks(flight.draws.back().sample, output.constraint.get(), output.request->end_ids,
              position >= request.min_tokens);
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
  if (contains(output.request->end_ids, *event.id))
    event.finish = FinishReason::kStop;
  else if (drawn.position + 1 == request.max_tokens)
    event.finish = FinishReason::kLength;
}

}  // namespace sparrow
