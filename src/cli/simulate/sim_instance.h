// SPDX-License-Identifier: Apache-2.0
// SimInstance: one instance of a fleet on a virtual clock: the real scheduler and prefix cache, steps that
// take a cost model's time, outputs of known length. What EngineCore does, without requests' text and
// streams.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "engine/schedule/scheduler.h"
#include "engine/sim/cost_model.h"

namespace sparrow::cli {

class SimInstance {
 public:
  // The cost model outlives it.
  SimInstance(const CostModel& cost, int blocks_per_group, const SchedulerLimits& limits)
      : cost_(cost), scheduler_(blocks_per_group, limits) {}

  // `owner` comes back with every token.
  Result<SequenceId> add(SequenceSpec spec, double now) { return scheduler_.add(std::move(spec), time(now)); }

  bool busy() const { return flight_.has_value(); }
  // Begins the next step where none runs. The time of its end; nullopt: nothing can run.
  std::optional<double> begin_step(double now);

  // The step that runs has ended. `draw` gives the id of an output's token, by owner and place in the
  // sequence; `drawn` hears of it, and whether it was the last.
  using Draw = std::function<int32_t(uint64_t owner, int64_t position)>;
  using Drawn = std::function<void(const Sequence& sequence, bool last)>;
  void end_step(const Draw& draw, const Drawn& drawn);

  SchedulerStats stats() const { return scheduler_.stats(); }
  bool idle() const { return scheduler_.idle(); }
  double busy_seconds() const { return busy_seconds_; }

 private:
  struct Step {
    std::vector<StepSlice> slices;
    double seconds;
  };

  static SchedulerTime time(double seconds) {
    constexpr double kEnd = 9e9;  // what a clock that counts nanoseconds can show
    return SchedulerTime(std::chrono::duration_cast<SchedulerTime::duration>(
        std::chrono::duration<double>(std::min(seconds, kEnd))));
  }
  double seconds_of(std::span<const StepSlice> slices) const;

  const CostModel& cost_;
  Scheduler scheduler_;
  std::optional<Step> flight_, ahead_;
  std::vector<int32_t> sampled_;
  double busy_seconds_ = 0;
};

}  // namespace sparrow::cli
