// SPDX-License-Identifier: Apache-2.0
// `sparrow simulate`: a fleet that is not there, with the real scheduler and prefix cache, on a virtual
// clock.
#include "cli/simulate/simulate.h"

#include <algorithm>
#include <cstdio>
#include <fstream>

#include "base/files/mapped_file.h"
#include "base/strf.h"
#include "cli/simulate/fit.h"
#include "cli/simulate/fleet.h"
#include "cli/simulate/report.h"

namespace sparrow::cli {
namespace {

Status not_written(const std::filesystem::path& file) {
  return Error{Errc::kIo, strf("{} could not be written", quoted(file))};
}

Status check_writable(const std::filesystem::path& file) {
  return file.empty() || std::ofstream(file, std::ios::app) ? Status(Ok{}) : not_written(file);
}

Status write_file(const std::filesystem::path& file, const std::string& text) {
  return file.empty() || std::ofstream(file) << text << std::flush ? Status(Ok{}) : not_written(file);
}

Status fit_model(const SimulateOptions& o) {
  const std::vector<StepRecord> records = SPARROW_TRY(read_step_records(o.fit));
  CostModel model{.name = o.name, .gpus = o.ranks, .cache_tokens = o.cache_tokens};
  if (!o.exchange.empty()) {
    model.exchange = SPARROW_TRY(read_exchange(o.exchange, o.ranks));
    model.exchanges = o.exchanges;
  }
  fit(model, records);
  std::fputs(validation_table(model, records).c_str(), stderr);
  if (o.cost_model.empty()) {
    std::fputs(model.json().c_str(), stdout);
    return Ok{};
  }
  return write_file(o.cost_model, model.json());
}

}  // namespace

Status run_simulate(const SimulateOptions& o) {
  if (!o.fit.empty()) return fit_model(o);
  if (o.cost_model.empty())
    return Error{Errc::kInvalidArgument, "simulate needs --cost-model, which says how long steps take"};
  const CostModel cost = SPARROW_TRY(CostModel::read(o.cost_model));
  if (!o.validate.empty()) {
    const std::vector<StepRecord> records = SPARROW_TRY(read_step_records(o.validate));
    std::fputs(validation_table(cost, records).c_str(), stdout);
    return Ok{};
  }
  // Whatever is wrong is said before anything takes long.
  for (const std::filesystem::path& file : {o.json, o.svg}) SPARROW_TRY(check_writable(file));
  std::vector<Routing> routings;
  for (const std::string& router : o.routers) routings.push_back(SPARROW_TRY(routing_named(router)));
  const FleetWorkload workload = SPARROW_TRY(make_workload(o.workload));
  std::vector<FleetResult> results;
  for (const int instances : o.instances)
    for (const Routing routing : routings) {
      FleetOptions options{
          .cost = cost, .instances = instances, .routing = routing, .cache_tokens = o.cache_tokens};
      options.limits.max_step_tokens = std::max(o.max_step_tokens, o.max_step_sequences);  // as `serve`
      options.limits.max_step_sequences = o.max_step_sequences;
      results.push_back(SPARROW_TRY(simulate_fleet(workload, options)));
    }
  std::fputs(strf("{} requests of {}, on {}\n", workload.requests.size(), workload.name, cost.name).c_str(),
             stdout);
  std::fputs(fleet_table(results).c_str(), stdout);
  for (const FleetResult& result : results)
    if (result.refused > 0)
      std::fputs(strf("{} with {}: {} requests were refused, the first: {}\n", result.routing,
                      result.instances, result.refused, result.refusal)
                     .c_str(),
                 stdout);
  SPARROW_TRY(write_file(o.json, fleet_json(results)));
  return write_file(o.svg, fleet_svg(results));
}

}  // namespace sparrow::cli
