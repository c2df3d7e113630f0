// SPDX-License-Identifier: Apache-2.0
#include "cli/simulate/fleet.h"

#include <unistd.h>

#include <algorithm>
#include <deque>
#include <queue>
#include <utility>
#include <vector>

#include "base/strf.h"
#include "cli/simulate/sim_instance.h"

namespace sparrow::cli {
namespace {

struct Event {
  double seconds;
  int64_t index;
  bool operator>(const Event& other) const {
    return seconds != other.seconds ? seconds > other.seconds : index > other.index;
  }
};
using EventQueue = std::priority_queue<Event, std::vector<Event>, std::greater<>>;

// How a request stands.
struct Progress {
  double arrived = 0, last_token = 0;
  FleetRouter::Choice choice;
  bool has_token = false;
};

class Fleet {
 public:
  Fleet(const FleetWorkload& workload, const FleetOptions& options)
      : workload_(workload),
        options_(options),
        router_(options.routing, options.instances, blocks(options) * options.cost.groups),
        progress_(workload.requests.size()),
        under_way_(static_cast<size_t>(options.instances)),
        first_follower_(workload.requests.size(), -1),
        next_follower_(workload.requests.size(), -1) {
    SchedulerLimits limits = options.limits;
    limits.groups = options.cost.groups;
    for (int i = 0; i < options.instances; ++i)
      instances_.emplace_back(options_.cost, static_cast<int>(blocks(options)), limits);
    for (size_t i = workload.requests.size(); i-- > 0;) {
      const auto request = static_cast<int64_t>(i);
      const int64_t after = workload.requests[i].after;
      if (after < 0) {
        arrivals_.push({workload.requests[i].seconds, request});
      } else {
        next_follower_[i] = std::exchange(first_follower_[static_cast<size_t>(after)], request);
      }
    }
  }

  void run() {
    for (int64_t events = 0; !arrivals_.empty() || !step_ends_.empty(); ++events) {
      const bool arrival =
          step_ends_.empty() || (!arrivals_.empty() && arrivals_.top().seconds <= step_ends_.top().seconds);
      EventQueue& queue = arrival ? arrivals_ : step_ends_;
      const Event event = queue.top();
      queue.pop();
      now_ = event.seconds;
      if (arrival)
        arrive(event.index);
      else
        end_step(event.index);
      if (options_.go_on && events % 4096 == 4095 && !options_.go_on(result_)) {
        result_.complete = false;
        break;
      }
    }
  }

  FleetResult result() const {
    FleetResult result = result_;
    result.layout = options_.cost.name;
    result.routing = name_of(options_.routing);
    result.workload = workload_.name;
    result.instances = options_.instances;
    result.gpus = options_.instances * options_.cost.gpus;
    result.seconds = last_end_;
    double busy = 0;
    for (const SimInstance& instance : instances_) {
      const SchedulerStats stats = instance.stats();
      result.prefix_tokens_queried += stats.prefix_tokens_queried;
      result.prefix_tokens_hit += stats.prefix_tokens_hit;
      result.preemptions += stats.preemptions;
      result.steps += stats.steps;
      busy += instance.busy_seconds();
    }
    result.busy = FleetResult::ratio(busy, last_end_ * options_.instances);
    return result;
  }

  static int64_t blocks(const FleetOptions& options) {
    return blocks_for_tokens(options.cache_tokens > 0 ? options.cache_tokens : options.cost.cache_tokens);
  }

 private:
  void arrive(int64_t index) {
    const SimRequest& request = workload_.requests[static_cast<size_t>(index)];
    SequenceSpec spec{.prompt = workload_.prompt_of(request),
                      .max_total_tokens = request.prompt_tokens + request.output_tokens,
                      .owner = static_cast<uint64_t>(index)};
    Progress& progress = progress_[static_cast<size_t>(index)];
    progress.arrived = now_;
    progress.choice = router_.pick(spec.prompt, under_way_);
    SimInstance& instance = instances_[static_cast<size_t>(progress.choice.instance)];
    ++result_.requests;
    const auto added = instance.add(std::move(spec), now_);
    if (!added.ok()) {  // more than the cache could ever hold
      if (result_.refused++ == 0) result_.refusal = added.error().message;
      router_.began(progress.choice);
      release_followers(index);
      return;
    }
    result_.prompt_tokens += request.prompt_tokens;
    ++under_way_[static_cast<size_t>(progress.choice.instance)];
    if (!instance.busy()) begin_step(progress.choice.instance);
  }

  void begin_step(int64_t index) {
    if (const auto end = instances_[static_cast<size_t>(index)].begin_step(now_))
      step_ends_.push({*end, index});
  }

  void end_step(int64_t index) {
    instances_[static_cast<size_t>(index)].end_step(
        [this](uint64_t owner, int64_t position) { return draw(owner, position); },
        [this](const Sequence& sequence, bool last) {
          take_token(static_cast<int64_t>(sequence.owner), last);
        });
    begin_step(index);
  }

  // An answer goes on with the stream that its prompt ends with.
  int32_t draw(uint64_t owner, int64_t position) const {
    const SimRequest& request = workload_.requests[owner];
    const StreamPart& last = workload_.parts_of(request).back();
    return token_of(last.stream, last.length + position - request.prompt_tokens);
  }

  void take_token(int64_t index, bool last) {
    Progress& progress = progress_[static_cast<size_t>(index)];
    if (progress.has_token) {
      result_.token_gap.add(now_ - progress.last_token);
    } else {
      result_.first_token.add(now_ - progress.arrived);
      router_.began(progress.choice);
    }
    progress.has_token = true;
    progress.last_token = now_;
    ++result_.output_tokens;
    if (!last) return;
    result_.whole.add(now_ - progress.arrived);
    --under_way_[static_cast<size_t>(progress.choice.instance)];
    last_end_ = now_;
    release_followers(index);
  }

  void release_followers(int64_t index) {
    for (int64_t i = first_follower_[static_cast<size_t>(index)]; i >= 0;
         i = next_follower_[static_cast<size_t>(i)]) {
      const SimRequest& request = workload_.requests[static_cast<size_t>(i)];
      arrivals_.push({std::max(now_ + request.seconds, request.not_before), i});
    }
  }

  const FleetWorkload& workload_;
  const FleetOptions& options_;
  FleetRouter router_;
  std::deque<SimInstance> instances_;
  std::vector<Progress> progress_;
  std::vector<int> under_way_;
  std::vector<int64_t> first_follower_, next_follower_;  // requests that wait for another's end
  EventQueue arrivals_, step_ends_;
  double now_ = 0, last_end_ = 0;
  FleetResult result_;
};

// What the caches of so many instances know takes memory here: a block's ids above all.
Status check_memory(const FleetOptions& options, int64_t blocks) {
  constexpr double kBytesPerBlock = 700;
  const double needed =
      kBytesPerBlock * static_cast<double>(blocks) * options.cost.groups * options.instances;
  const double there =
      static_cast<double>(sysconf(_SC_PHYS_PAGES)) * static_cast<double>(sysconf(_SC_PAGESIZE));
  if (needed <= there) return Ok{};
  return Error{
      Errc::kInvalidArgument,
      strf("--instances {} with {} cached tokens each would take {:.0f} GB of memory here, and this "
           "machine has {:.0f}",
           options.instances, blocks * kBlockTokens * options.cost.groups, needed / 1e9, there / 1e9)};
}

}  // namespace

Result<FleetResult> simulate_fleet(const FleetWorkload& workload, const FleetOptions& options) {
  if (options.instances < 1)
    return Error{Errc::kInvalidArgument, strf("--instances must be at least 1, got {}", options.instances)};
  if (Fleet::blocks(options) < 1)
    return Error{Errc::kInvalidArgument,
                 "--cache-tokens: the cost model does not say how many the cache holds"};
  SPARROW_TRY(validate(options.limits));
  SPARROW_TRY(check_memory(options, Fleet::blocks(options)));
  Fleet fleet(workload, options);
  fleet.run();
  return fleet.result();
}

}  // namespace sparrow::cli
