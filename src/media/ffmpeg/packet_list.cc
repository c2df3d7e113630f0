// SPDX-License-Identifier: Apache-2.0
#include "media/ffmpeg/packet_list.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <limits>

namespace sparrow {
namespace {

// The number at the front, which is taken off together with what separates it; 0 where there is none.
int64_t take_number(std::string_view& text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == ',')) text.remove_prefix(1);
  int64_t value = 0;
  const char* end = std::from_chars(text.data(), text.data() + text.size(), value).ptr;
  text.remove_prefix(static_cast<size_t>(end - text.data()));
  return value;
}

bool take_prefix(std::string_view& text, std::string_view prefix) {
  if (!text.starts_with(prefix)) return false;
  text.remove_prefix(prefix.size());
  return true;
}

int int_of(int64_t value) {
  return static_cast<int>(std::clamp<int64_t>(value, 0, std::numeric_limits<int>::max()));
}

}  // namespace

double frame_rate(int64_t count, int64_t span, double seconds_per_tick) {
  if (count < 2 || span <= 0 || !(seconds_per_tick > 0)) return 1.0;
  const double rate = double(count - 1) / (double(span) * seconds_per_tick);
  const double slack = 1.5 * rate / double(span);  // both ends are rounded to ticks
  double best = rate, distance = slack;
  for (const double candidate :
       {std::round(rate), std::ceil(rate) * 1000 / 1001, std::round(rate) * 1000 / 1001}) {
    if (candidate <= 0 || !(std::abs(candidate - rate) <= distance)) continue;
    best = candidate, distance = std::abs(candidate - rate);
  }
  return best;
}

Result<PacketList> parse_packet_list(std::string_view text) {
  PacketList list;
  double seconds_per_tick = 0;
  // The times are far below this: ffmpeg's own "unknown" is the smallest of all numbers.
  constexpr int64_t kFar = int64_t{1} << 60;
  int64_t first = kFar, last = -kFar;
  while (!text.empty()) {
    std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(text.size(), line.size() + 1));
    if (take_prefix(line, "#tb 0: ")) {
      const int64_t ticks = take_number(line);
      if (take_prefix(line, "/"))
        if (const int64_t seconds = take_number(line); seconds > 0)
          seconds_per_tick = double(ticks) / double(seconds);
    } else if (take_prefix(line, "#dimensions 0: ")) {
      list.width = int_of(take_number(line));
      if (take_prefix(line, "x")) list.height = int_of(take_number(line));
    } else if (take_prefix(line, "0,")) {
      ++list.count;
      take_number(line);  // when it is decoded
      const int64_t shown = take_number(line);
      if (shown > -kFar && shown < kFar) first = std::min(first, shown), last = std::max(last, shown);
    }
  }
  if (list.count == 0 || list.width == 0 || list.height == 0)
    return Error{Errc::kCorrupt, "the file has no video stream that can be read"};
  list.fps = frame_rate(list.count, std::max<int64_t>(last - first, 0), seconds_per_tick);
  return list;
}

}  // namespace sparrow
