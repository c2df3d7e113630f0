// SPDX-License-Identifier: Apache-2.0
// `sparrow make-model`: a random checkpoint in the released layout.
#include <cstdio>

#include "base/progress.h"
#include "cli/commands.h"
#include "model/synthetic.h"

namespace sparrow::cli {

Status run_make_model(const MakeModelOptions& options) {
  const DType dtype = options.dtype == "f32"     ? DType::kF32
                      : options.dtype == "mxfp8" ? DType::kF8E4M3
                                                 : DType::kBF16;
  ProgressBar bar("writing " + options.out.filename().string(), ProgressBar::Unit::kBytes);
  SPARROW_TRY(write_synthetic_checkpoint(
      {.preset = options.preset, .seed = options.seed, .dir = options.out, .dtype = dtype}, bar.callback()));
  bar.finish();
  std::printf("%s\n", options.out.c_str());
  return Ok{};
}

}  // namespace sparrow::cli
