// SPDX-License-Identifier: Apache-2.0
#include "cli/simulate/slo.h"

#include <algorithm>
#include <charconv>
#include <string_view>

#include "base/strf.h"

namespace sparrow::cli {
namespace {

// "2s", "50ms", "0.5"
std::optional<double> seconds_of(std::string_view text) {
  double unit = 1;
  if (text.ends_with("ms")) {
    unit = 1e-3;
    text.remove_suffix(2);
  } else if (text.ends_with("s")) {
    text.remove_suffix(1);
  }
  double value = 0;
  const auto [end, ec] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (ec != std::errc() || end != text.data() + text.size() || !(value > 0)) return std::nullopt;
  return value * unit;
}

}  // namespace

bool ServiceGoal::met_by(const FleetResult& result) const {
  return result.refused == 0 && result.first_token.quantile(share) <= first_token &&
         result.token_gap.quantile(share) <= token_gap;
}

Result<ServiceGoal> parse_goal(const std::string& text) {
  ServiceGoal goal;
  std::string_view rest = text;
  while (!rest.empty()) {
    const std::string_view part = rest.substr(0, rest.find(','));
    rest.remove_prefix(std::min(rest.size(), part.size() + 1));
    const size_t equals = part.find('=');
    const std::string_view name = part.substr(0, equals);
    const auto value = equals == std::string_view::npos ? std::nullopt : seconds_of(part.substr(equals + 1));
    if (value && name == "ttft")
      goal.first_token = *value;
    else if (value && name == "itl")
      goal.token_gap = *value;
    else if (value && name == "percentile" && *value < 100)
      goal.share = *value / 100;
    else
      return Error{Errc::kInvalidArgument,
                   strf("--slo must be such as ttft=2s,itl=50ms,percentile=99, got {}", part)};
  }
  if (goal.first_token == ServiceGoal().first_token && goal.token_gap == ServiceGoal().token_gap)
    return Error{Errc::kInvalidArgument, "--slo needs ttft=, itl=, or both"};
  return goal;
}

// Twice as many until they are enough, then halving the difference. A fleet that is too small is given up as
// soon as too many first tokens were late, whatever comes.
Result<std::optional<FleetResult>> smallest_fleet(const FleetWorkload& workload, FleetOptions options,
                                                  const ServiceGoal& goal, int max_gpus) {
  const auto allowed = (1 - goal.share) * static_cast<double>(workload.requests.size());
  options.go_on = [&](const FleetResult& so_far) {
    const auto late = (1 - so_far.first_token.share_within(goal.first_token)) *
                      static_cast<double>(so_far.first_token.count());
    return late <= allowed;
  };
  std::optional<FleetResult> best;
  int too_few = 0, most = std::max(1, max_gpus / options.cost.gpus);
  const auto try_with = [&](int instances) -> Result<bool> {
    options.instances = instances;
    FleetResult result = SPARROW_TRY(simulate_fleet(workload, options));
    const bool met = result.complete && goal.met_by(result);
    if (met) best = std::move(result);
    return met;
  };
  int enough = 1;
  while (!SPARROW_TRY(try_with(enough))) {
    if (enough >= most) return std::optional<FleetResult>();
    too_few = enough;
    enough = std::min(2 * enough, most);
  }
  while (enough - too_few > 1) {
    const int middle = (enough + too_few) / 2;
    (SPARROW_TRY(try_with(middle)) ? enough : too_few) = middle;
  }
  return best;
}

}  // namespace sparrow::cli
