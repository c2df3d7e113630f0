// SPDX-License-Identifier: Apache-2.0
#include "cli/bench/step_picture.h"

#include <algorithm>
#include <array>
#include <map>

#include "base/strf.h"

namespace sparrow::cli {
namespace {

constexpr double kWidth = 1000, kLeft = 60, kRow = 12, kTop = 60;
constexpr std::array kColours = {"#4e79a7", "#f28e2b", "#e15759", "#76b7b2", "#59a14f",
                                 "#edc948", "#b07aa1", "#ff9da7", "#9c755f", "#bab0ac"};

}  // namespace

std::string step_picture(const StepTimes& times) {
  // Layers are drawn below each other, each from its own begin: they all do the same.
  std::map<int, double> layer_begin, layer_length;
  std::vector<std::string> parts;
  std::map<std::string, double> total;
  for (const StepTimes::Span& span : times.timeline) {
    layer_begin.try_emplace(span.layer, span.begin_us);
    layer_length[span.layer] = span.end_us - layer_begin[span.layer];
    if (std::find(parts.begin(), parts.end(), span.part) == parts.end()) parts.push_back(span.part);
    total[span.part] += span.end_us - span.begin_us;
  }
  double longest = 1;
  for (const auto& [layer, length] : layer_length) longest = std::max(longest, length);
  const double scale = kWidth / longest;
  const auto colour = [&](const std::string& part) {
    return kColours[static_cast<size_t>(std::find(parts.begin(), parts.end(), part) - parts.begin()) %
                    kColours.size()];
  };
  const double height = kTop + kRow * static_cast<double>(layer_begin.size()) + 30;
  std::string svg = strf(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{}\" height=\"{}\" font-family=\"sans-serif\" "
      "font-size=\"10\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n",
      kLeft + kWidth + 20, height);
  double x = kLeft;
  for (const std::string& part : parts) {
    svg += strf("<rect x=\"{:.1f}\" y=\"10\" width=\"10\" height=\"10\" fill=\"{}\"/>\n", x, colour(part));
    svg += strf("<text x=\"{:.1f}\" y=\"19\">{} {:.0f} us</text>\n", x + 13, part, total[part]);
    x += 13 + 6.2 * static_cast<double>(part.size() + 9);
    if (x > kLeft + kWidth - 100) x = kLeft;
  }
  svg += strf("<text x=\"{}\" y=\"45\">one row for each layer; {:.1f} us across</text>\n", kLeft, longest);
  for (const StepTimes::Span& span : times.timeline) {
    const double y =
        kTop + kRow * static_cast<double>(std::distance(layer_begin.begin(), layer_begin.find(span.layer)));
    const double begin = kLeft + scale * (span.begin_us - layer_begin[span.layer]);
    svg += strf(
        "<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.2f}\" height=\"{:.1f}\" fill=\"{}\"><title>{}, layer {}: "
        "{:.1f} us</title></rect>\n",
        begin, y, scale * (span.end_us - span.begin_us), kRow - 2, colour(span.part), span.part, span.layer,
        span.end_us - span.begin_us);
  }
  for (const auto& [layer, begin] : layer_begin) {
    const double y =
        kTop + kRow * static_cast<double>(std::distance(layer_begin.begin(), layer_begin.find(layer)));
    svg +=
        strf("<text x=\"{}\" y=\"{:.1f}\" text-anchor=\"end\">{}</text>\n", kLeft - 6, y + kRow - 4, layer);
  }
  return svg + "</svg>\n";
}

}  // namespace sparrow::cli
