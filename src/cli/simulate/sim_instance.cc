// SPDX-License-Identifier: Apache-2.0
#include "cli/simulate/sim_instance.h"

#include <algorithm>
#include <utility>

namespace sparrow::cli {

// Slices are sorted by group; the slowest is waited for.
double SimInstance::seconds_of(std::span<const StepSlice> slices) const {
  double us = 0;
  for (size_t i = 0; i < slices.size();) {
    const int group = slices[i].sequence->group;
    StepShape shape;
    for (; i < slices.size() && slices[i].sequence->group == group; ++i)
      shape.add(slices[i].num_tokens, slices[i].first + slices[i].num_tokens, slices[i].sampled.count);
    us = std::max(us, cost_.step_us(shape));
  }
  return us * 1e-6;
}

std::optional<double> SimInstance::begin_step(double now) {
  if (!flight_) {
    const StepPlan& plan = scheduler_.plan_step(time(now));
    if (plan.slices.empty()) {
      scheduler_.commit({});
      return std::nullopt;
    }
    flight_ = Step{plan.slices, seconds_of(plan.slices) + cost_.host_us * 1e-6};
  }
  // As a GPU's engine: whoever comes from here on waits for that step, too.
  if (const StepPlan* plan = scheduler_.plan_ahead(time(now)))
    ahead_ = Step{plan->slices, seconds_of(plan->slices)};
  busy_seconds_ += flight_->seconds;
  return now + flight_->seconds;
}

void SimInstance::end_step(const Draw& draw, const Drawn& drawn) {
  std::vector<StepSlice> slices = std::move(flight_->slices);
  flight_ = std::exchange(ahead_, std::nullopt);
  sampled_.clear();
  for (const StepSlice& slice : slices) {
    const Sequence& sequence = *slice.sequence;
    for (int i = 0; i < slice.num_draws(); ++i)
      sampled_.push_back(draw(sequence.owner, sequence.num_tokens()));
  }
  scheduler_.commit(sampled_);
  for (const StepSlice& slice : slices) {
    if (slice.num_draws() == 0) continue;
    const Sequence& sequence = *slice.sequence;
    const bool last = sequence.num_tokens() >= sequence.max_total_tokens;
    const SequenceId id = sequence.id;
    drawn(sequence, last);
    if (last) scheduler_.finish(id);
  }
}

}  // namespace sparrow::cli
