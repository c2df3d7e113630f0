// SPDX-License-Identifier: Apache-2.0
// A step's timeline as an SVG picture: one row for each layer, one colour for each part.
#pragma once

#include <string>

#include "engine/ranks/step_times.h"

namespace sparrow::cli {

std::string step_picture(const StepTimes& times);

}  // namespace sparrow::cli
