// SPDX-License-Identifier: Apache-2.0
#include "cli/plan/plan_fleet.h"

#include <algorithm>
#include <cstdio>
#include <vector>

#include "base/strf.h"
#include "cli/simulate/report.h"
#include "cli/simulate/slo.h"

namespace sparrow::cli {
namespace {

// Why even the largest fleet is not enough.
std::string shortfall(const FleetResult& fleet, const ServiceGoal& goal) {
  std::string line = strf("{}: not with {} GPUs", fleet.layout, fleet.gpus);
  if (fleet.refused > 0)
    return line + strf(": {} of {} requests were refused, the first: {}\n", fleet.refused, fleet.requests,
                       fleet.refusal);
  const auto percentile = [&](const LatencyHistogram& of) { return of.quantile(goal.share); };
  return line + strf(": {:g}% of first tokens come within {:.3g} s, of the others within {:.3g} ms\n",
                     100 * goal.share, percentile(fleet.first_token), 1e3 * percentile(fleet.token_gap));
}

}  // namespace

Result<int> plan_fleet(const PlanCommandOptions& o) {
  if (!o.model.empty())
    return Error{Errc::kInvalidArgument,
                 strf("--slo: cost models say what is run; {} has no meaning here", o.model)};
  if (o.cost_models.empty())
    return Error{Errc::kInvalidArgument, "--slo needs --cost-model, one for each layout to try"};
  const ServiceGoal goal = SPARROW_TRY(parse_goal(o.slo));
  const FleetWorkload workload = SPARROW_TRY(make_workload(o.workload));
  const Routing routing = SPARROW_TRY(routing_named(o.router));
  std::vector<FleetResult> found;
  for (const std::filesystem::path& file : o.cost_models) {
    FleetOptions options{.cost = SPARROW_TRY(CostModel::read(file)), .routing = routing};
    options.limits.max_step_sequences = o.max_step_sequences;
    if (o.max_step_tokens > 0) options.limits.max_step_tokens = o.max_step_tokens;
    FleetSearch search = SPARROW_TRY(smallest_fleet(workload, options, goal, o.max_gpus));
    if (search.found)
      found.push_back(std::move(search.fleet));
    else
      std::fputs(shortfall(search.fleet, goal).c_str(), stderr);
  }
  // The cheapest first: GPUs are what is paid for.
  std::stable_sort(found.begin(), found.end(),
                   [](const FleetResult& a, const FleetResult& b) { return a.gpus < b.gpus; });
  if (o.json) {
    std::fputs(fleet_json(found).c_str(), stdout);
  } else if (!found.empty()) {
    std::fputs(strf("{}, {} requests of {}: {} x {}, {} GPUs\n\n", o.slo, workload.requests.size(),
                    workload.name, found[0].instances, found[0].layout, found[0].gpus)
                   .c_str(),
               stdout);
    std::fputs(fleet_table(found).c_str(), stdout);
  }
  return found.empty() ? 1 : 0;
}

}  // namespace sparrow::cli
