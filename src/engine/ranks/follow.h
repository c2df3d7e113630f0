// SPDX-License-Identifier: Apache-2.0
// What every rank but the first does: the calls that rank 0 tells it, until it says stop.
#pragma once

#include "base/result.h"
#include "comm/control_link.h"
#include "comm/grid.h"
#include "engine/model_runner.h"
#include "engine/ranks/messages.h"

namespace sparrow {

// What rank 0 may ask of a rank that runs with these.
CallLimits call_limits(const ModelConfig& config, const EngineInfo& info, const EngineOptions& options);

// Error: the instance has failed; all ranks are told.
Status follow(ModelRunner& runner, ControlLink& link, const Grid& grid, const CallLimits& limits);

}  // namespace sparrow
