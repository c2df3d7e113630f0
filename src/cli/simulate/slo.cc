// SPDX-License-Identifier: Apache-2.0
#include "cli/simulate/slo.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <optional>
#include <string_view>

#include "base/json/json.h"
#include "base/strf.h"

namespace sparrow::cli {
namespace {

// All of it, above 0.
std::optional<double> number_of(std::string_view text) {
  double value = 0;
  const auto [end, ec] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (ec != std::errc() || end != text.data() + text.size() || !(value > 0) || !std::isfinite(value))
    return std::nullopt;
  return value;
}

// "2s", "50ms", "0.5"
std::optional<double> seconds_of(std::string_view text) {
  const double unit = text.ends_with("ms") ? 1e-3 : 1;
  if (text.ends_with("s")) text.remove_suffix(text.ends_with("ms") ? 2 : 1);
  const std::optional<double> value = number_of(text);
  return value ? std::optional(*value * unit) : std::nullopt;
}

Error bad_goal(std::string_view part) {
  return {Errc::kInvalidArgument,
          strf("--slo must be such as ttft=2s,itl=50ms,percentile=99, got {}", json_quoted(part))};
}

}  // namespace

bool ServiceGoal::met_by(const FleetResult& result) const {
  return result.refused == 0 && result.first_token.quantile(share) <= first_token &&
         result.token_gap.quantile(share) <= token_gap;
}

Result<ServiceGoal> parse_goal(const std::string& text) {
  std::optional<double> first_token, token_gap, percentile;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    const std::string_view part = std::string_view(text).substr(begin, end - begin);
    begin = end + 1;
    const size_t equals = std::min(part.find('='), part.size());
    const std::string_view name = part.substr(0, equals);
    std::optional<double>* const goal = name == "ttft"         ? &first_token
                                        : name == "itl"        ? &token_gap
                                        : name == "percentile" ? &percentile
                                                               : nullptr;
    if (goal == nullptr || *goal || equals == part.size()) return bad_goal(part);
    const std::string_view value = part.substr(equals + 1);
    *goal = goal == &percentile ? number_of(value) : seconds_of(value);
    if (!*goal) return bad_goal(part);
  }
  if (percentile && *percentile >= 100) return bad_goal(text);
  if (!first_token && !token_gap)
    return Error{Errc::kInvalidArgument, strf("--slo needs ttft=, itl=, or both, got {}", json_quoted(text))};
  ServiceGoal goal;
  goal.first_token = first_token.value_or(goal.first_token);
  goal.token_gap = token_gap.value_or(goal.token_gap);
  goal.share = percentile ? *percentile / 100 : goal.share;
  return goal;
}

// Twice as many until they are enough, then halving the difference. A fleet that is too small is given up as
// soon as too many tokens were late, whatever comes.
Result<FleetSearch> smallest_fleet(const FleetWorkload& workload, FleetOptions options,
                                   const ServiceGoal& goal, int max_gpus) {
  if (max_gpus < options.cost.gpus)
    return Error{Errc::kInvalidArgument, strf("--max-gpus {}: an instance of {} has {}", max_gpus,
                                              json_quoted(options.cost.name), options.cost.gpus)};
  const auto num_requests = static_cast<int64_t>(workload.requests.size());
  int64_t num_gaps = -num_requests;
  for (const SimRequest& request : workload.requests) num_gaps += request.output_tokens;
  const auto too_many_late = [&](const LatencyHistogram& times, double most, int64_t all) {
    const double late = (1 - times.share_within(most)) * static_cast<double>(times.count());
    return late > (1 - goal.share) * static_cast<double>(all) + 1e-6;  // both are rounded
  };
  const auto go_on = [&](const FleetResult& so_far) {
    return so_far.refused == 0 && !too_many_late(so_far.first_token, goal.first_token, num_requests) &&
           !too_many_late(so_far.token_gap, goal.token_gap, num_gaps);
  };
  FleetSearch search;
  const auto try_with = [&](int instances) -> Result<bool> {
    options.instances = instances;
    FleetResult result = SPARROW_TRY(simulate_fleet(workload, options));
    const bool met = result.complete && goal.met_by(result);
    if (met) search = {true, std::move(result)};
    return met;
  };
  options.go_on = go_on;
  const int most = max_gpus / options.cost.gpus;
  int too_few = 0, enough = 1;
  while (!SPARROW_TRY(try_with(enough))) {
    if (enough == most) {  // how near it comes is seen at its end
      options.go_on = nullptr;
      search.fleet = SPARROW_TRY(simulate_fleet(workload, options));
      return search;
    }
    too_few = enough;
    enough = std::min(2 * enough, most);
  }
  while (enough - too_few > 1) {
    const int middle = (enough + too_few) / 2;
    (SPARROW_TRY(try_with(middle)) ? enough : too_few) = middle;
  }
  return search;
}

}  // namespace sparrow::cli
