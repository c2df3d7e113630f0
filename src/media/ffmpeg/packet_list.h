// SPDX-License-Identifier: Apache-2.0
// The packets of a video stream, as ffmpeg's framecrc format lists them.
#pragma once

#include <cstdint>
#include <string_view>

#include "base/result.h"

namespace sparrow {

struct PacketList {
  int width = 0, height = 0;
  int64_t count = 0;  // above zero
  double fps = 0;     // above zero
};

Result<PacketList> parse_packet_list(std::string_view text);

// The rate of `count` frames whose first and last are `span` ticks apart. Ticks may be coarse, milliseconds
// in Matroska: a whole rate or one of television (30000/1001) that the ticks cannot be told from is meant.
double frame_rate(int64_t count, int64_t span, double seconds_per_tick);

}  // namespace sparrow
