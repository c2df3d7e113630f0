// SPDX-License-Identifier: Apache-2.0
// `sparrow quantize`: a checkpoint in MXFP8 or MXFP4, and what that did to its weights.
#include <cmath>
#include <cstdio>

#include "base/files/created_files.h"
#include "base/files/mapped_file.h"
#include "base/progress.h"
#include "checkpoint/mx/quantise.h"
#include "cli/args/byte_size.h"
#include "cli/commands.h"
#include "model/ledger.h"

namespace sparrow::cli {
namespace {

std::string_view label_of(QuantFormat format) {
  return format == QuantFormat::kMxfp8   ? "MXFP8"
         : format == QuantFormat::kMxfp4 ? "MXFP4"
                                         : "MXFP4 and MXFP8";
}

void print_row(std::string_view part, std::string_view matrices, std::string_view before,
               std::string_view after, std::string_view error, std::string_view worst,
               std::string_view largest) {
  std::fputs(strf("{:<20}{:>9}{:>12}{:>12}{:>11}{:>14}{:>15}\n", part, matrices, before, after, error, worst,
                  largest)
                 .c_str(),
             stdout);
}

std::string percent(double part) {
  return strf("{:.3f}%", 100 * part);
}

void print_part(std::string_view name, const QuantisedPart& part) {
  const bool rounded = part.matrices > 0;
  const auto shown = [&](std::string text) { return rounded ? std::move(text) : std::string("-"); };
  print_row(name, shown(strf("{}", part.matrices)), byte_string(static_cast<int64_t>(part.bytes_before)),
            byte_string(static_cast<int64_t>(part.bytes_after)), shown(percent(part.error.relative())),
            shown(percent(part.worst)), shown(strf("{:.3g}", part.error.largest)));
}

void print(const QuantiseReport& report) {
  print_row("part", "matrices", "before", "after", "RMS error", "worst matrix", "largest error");
  QuantisedPart all;
  for (const QuantisedPart& part : report.parts) {
    print_part(name_of(part.part), part);
    all.matrices += part.matrices;
    all.bytes_before += part.bytes_before;
    all.bytes_after += part.bytes_after;
    all.error.add(part.error);
    if (part.worst < all.worst || part.matrices == 0) continue;
    all.worst = part.worst;
    all.worst_matrix = part.worst_matrix;
  }
  print_part("all", all);
  if (!all.worst_matrix.empty()) std::printf("\nworst matrix: %s\n", all.worst_matrix.c_str());
}

}  // namespace

Status run_quantize(const QuantizeOptions& options) {
  QuantFormat format = QuantFormat::kMxfp8;
  for (const QuantFormat other : {QuantFormat::kMxfp4, QuantFormat::kMxfp4Mxfp8})
    if (options.format == sparrow::name_of(other)) format = other;
  CreatedFiles::remove_when_interrupted();
  ProgressBar bar("quantizing to " + folder_name(options.to), ProgressBar::Unit::kBytes);
  const QuantiseReport report = SPARROW_TRY(
      quantise_checkpoint({.from = options.from, .to = options.to, .format = format}, bar.callback()));
  bar.finish();
  print(report);
  for (const std::string& name : report.left_out) std::fprintf(stderr, "left out: %s\n", name.c_str());
  if (report.from == format)
    std::fprintf(stderr, "the source is %s already: copied as it is\n",
                 std::string(label_of(format)).c_str());
  else if (report.from != QuantFormat::kNone)
    std::fprintf(stderr,
                 "the source is %s: its weights were rounded before, and the errors above come on top of "
                 "that; quantize the bf16 checkpoint if you have it\n",
                 std::string(label_of(report.from)).c_str());
  return Ok{};
}

}  // namespace sparrow::cli
