// SPDX-License-Identifier: Apache-2.0
// What simulations show, for people and for programs.
#pragma once

#include <span>
#include <string>

#include "cli/simulate/fleet.h"

namespace sparrow::cli {

std::string fleet_table(std::span<const FleetResult> results);
std::string fleet_json(std::span<const FleetResult> results);
// How many of the first tokens, and of the gaps between tokens, came within which time: a line for each.
std::string fleet_svg(std::span<const FleetResult> results);

}  // namespace sparrow::cli
