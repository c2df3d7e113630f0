// SPDX-License-Identifier: Apache-2.0
#include "cli/simulate/report.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "base/json/json_writer.h"
#include "base/strf.h"

namespace sparrow::cli {
namespace {

constexpr std::array<double, 3> kShares = {0.5, 0.9, 0.99};

void write_latency(JsonWriter& out, const char* name, const LatencyHistogram& of) {
  out.key(name).begin_object().key("mean").number(of.mean());
  for (const double share : kShares) out.key(strf("p{:.0f}", 100 * share)).number(of.quantile(share));
  out.end_object();
}

std::string escaped(std::string_view text) {
  std::string out;
  for (const char c : text) out += c == '<' ? "&lt;" : c == '&' ? "&amp;" : std::string(1, c);
  return out;
}

// One panel of the picture: times on a logarithmic axis from 1 ms to 1000 s.
class Panel {
 public:
  static constexpr double kWidth = 340, kHeight = 220;

  Panel(std::string& svg, double left, double top, const char* title) : svg_(svg), left_(left), top_(top) {
    svg_ += strf("<text x='{}' y='{}' font-weight='bold'>{}</text>\n", left, top - 12, title);
    for (int exponent = -3; exponent <= 3; ++exponent) {
      const double x = x_of(std::pow(10.0, exponent));
      svg_ +=
          strf("<line x1='{0:.1f}' y1='{1}' x2='{0:.1f}' y2='{2}' stroke='#ddd'/>\n", x, top, top + kHeight);
      const std::string label = exponent < 0 ? strf("{:.0f} ms", std::pow(10.0, exponent + 3))
                                             : strf("{:.0f} s", std::pow(10.0, exponent));
      svg_ += strf("<text x='{:.1f}' y='{}' text-anchor='middle' fill='#555'>{}</text>\n", x,
                   top + kHeight + 16, label);
    }
    for (const double share : {0.0, 0.5, 1.0}) {
      const double y = y_of(share);
      svg_ +=
          strf("<line x1='{}' y1='{:.1f}' x2='{}' y2='{:.1f}' stroke='#ddd'/>\n", left, y, left + kWidth, y);
      svg_ += strf("<text x='{}' y='{:.1f}' text-anchor='end' fill='#555'>{:.0f}%</text>\n", left - 6, y + 4,
                   100 * share);
    }
  }

  void line(const LatencyHistogram& of, const char* colour) {
    std::string points;
    for (int i = 0; i <= 200; ++i) {
      const double share = i / 200.0;
      points += strf("{:.1f},{:.1f} ", x_of(of.quantile(share)), y_of(share));
    }
    svg_ += strf("<polyline fill='none' stroke='{}' stroke-width='2' points='{}'/>\n", colour, points);
  }

 private:
  double x_of(double seconds) const {
    const double place = (std::log10(std::max(seconds, 1e-3)) + 3) / 6;
    return left_ + kWidth * std::min(place, 1.0);
  }
  double y_of(double share) const { return top_ + kHeight * (1 - share); }

  std::string& svg_;
  const double left_, top_;
};

}  // namespace

std::string fleet_table(std::span<const FleetResult> results) {
  // Layouts are named where there are several.
  size_t width = 0;
  for (const FleetResult& r : results)
    if (r.layout != results[0].layout) width = std::max({width, r.layout.size(), results[0].layout.size()});
  const auto layout = [width](std::string_view name) {
    return width == 0 ? std::string() : strf("{:<{}}  ", name, width);
  };
  std::string table =
      layout("layout") + strf("{:<13}{:>5}{:>5}{:>10}{:>8}{:>24}{:>24}{:>7}{:>9}{:>7}{:>12}\n", "router",
                              "inst", "GPUs", "tokens/s", "hits", "first token p50/90/99",
                              "token gap p50/90/99", "busy", "preempt", "hours", "GPU-h/Mtok");
  for (const FleetResult& r : results) {
    const auto three = [](const LatencyHistogram& of, double unit, const char* name) {
      return strf("{:.3g} {:.3g} {:.3g} {}", of.quantile(0.5) * unit, of.quantile(0.9) * unit,
                  of.quantile(0.99) * unit, name);
    };
    table += layout(r.layout) +
             strf("{:<13}{:>5}{:>5}{:>10.0f}{:>7.1f}% {:>23} {:>23}{:>6.0f}%{:>9}{:>7.2f}{:>12.3f}\n",
                  r.routing, r.instances, r.gpus, r.output_tokens_per_second(), 100 * r.hit_share(),
                  three(r.first_token, 1, "s"), three(r.token_gap, 1e3, "ms"), 100 * r.busy, r.preemptions,
                  r.seconds / 3600, r.gpu_hours_per_million_tokens());
  }
  return table;
}

std::string fleet_json(std::span<const FleetResult> results) {
  JsonWriter out(JsonWriter::Style::kIndented);
  out.begin_array();
  for (const FleetResult& r : results) {
    out.begin_object().key("layout").string(r.layout).key("workload").string(r.workload);
    out.key("router").string(r.routing).key("instances").integer(r.instances).key("gpus").integer(r.gpus);
    out.key("seconds")
        .number(r.seconds)
        .key("requests")
        .integer(r.requests)
        .key("refused")
        .integer(r.refused);
    out.key("prompt_tokens").integer(r.prompt_tokens).key("output_tokens").integer(r.output_tokens);
    out.key("output_tokens_per_second").number(r.output_tokens_per_second());
    out.key("prefix_tokens_queried").integer(r.prefix_tokens_queried);
    out.key("prefix_tokens_hit").integer(r.prefix_tokens_hit).key("preemptions").integer(r.preemptions);
    out.key("steps").integer(r.steps).key("busy").number(r.busy);
    out.key("gpu_hours_per_million_tokens").number(r.gpu_hours_per_million_tokens());
    write_latency(out, "first_token_seconds", r.first_token);
    write_latency(out, "token_gap_seconds", r.token_gap);
    write_latency(out, "request_seconds", r.whole);
    out.end_object();
  }
  out.end_array();
  return out.take() + "\n";
}

std::string fleet_svg(std::span<const FleetResult> results) {
  constexpr std::array<const char*, 6> kColours = {"#1f77b4", "#d62728", "#2ca02c",
                                                   "#9467bd", "#ff7f0e", "#8c564b"};
  const double height = 330 + 18.0 * static_cast<double>(results.size());
  std::string svg = strf(
      "<svg xmlns='http://www.w3.org/2000/svg' width='860' height='{0:.0f}' viewBox='0 0 860 {0:.0f}' "
      "font-family='sans-serif' font-size='12'>\n<rect width='860' height='{0:.0f}' fill='white'/>\n",
      height);
  Panel first(svg, 60, 50, "Time to the first token"), gap(svg, 480, 50, "Time between two tokens");
  for (size_t i = 0; i < results.size(); ++i) {
    const FleetResult& r = results[i];
    const char* colour = kColours[i % kColours.size()];
    first.line(r.first_token, colour);
    gap.line(r.token_gap, colour);
    const double y = 320 + 18.0 * static_cast<double>(i);
    svg +=
        strf("<line x1='60' y1='{0:.0f}' x2='84' y2='{0:.0f}' stroke='{1}' stroke-width='2'/>\n", y, colour);
    svg += strf(
        "<text x='92' y='{:.0f}'>{}, {} x {}: {:.0f} tokens/s, {:.0f}% of prompts from the cache</text>\n",
        y + 4, r.routing, r.instances, escaped(r.layout), r.output_tokens_per_second(), 100 * r.hit_share());
  }
  return svg + "</svg>\n";
}

}  // namespace sparrow::cli
