// SPDX-License-Identifier: Apache-2.0
// StepTimes: where the time of one step on a GPU goes. Plain data.
#pragma once

#include <string>
#include <vector>

namespace sparrow {

inline constexpr const char* kExchangePart = "exchange + norm";  // the part of a step in which ranks meet

struct StepTimes {
  // A part of the step on one layer; times count from the step's begin.
  struct Span {
    std::string part;
    int layer = 0;
    double begin_us = 0, end_us = 0;
  };

  double median_us = 0, min_us = 0, max_us = 0;  // of the GPU's work, metadata to logits
  double sampling_us = 0;                        // greedy ids of all rows, read back
  double wall_us = 0;                            // step after step as the engine runs them, ids included
  double busy = 0;                               // share of that time in which the GPU works
  std::vector<Span> timeline;     // of a step that notes the time between its parts, which costs some
  std::vector<int> experts_hit;   // [layers] distinct routed experts of the rank; 0 where there are none
  std::string attention_kernels;  // in words
  std::vector<double> rank_us;    // [ranks] each one's part of a step of ranks that take turns

  double read_bytes_per_us = 0, flops_per_us = 0;  // that the device was seen to reach in the same run
};

}  // namespace sparrow
