// SPDX-License-Identifier: Apache-2.0
// `sparrow make-model`: a random checkpoint in the released layout.
#include <cstdio>

#include "base/files/created_files.h"
#include "base/files/mapped_file.h"
#include "base/progress.h"
#include "checkpoint/random/synthetic.h"
#include "cli/commands.h"
#include "cli/run/corpus.h"
#include "config/config.h"
#include "text/synthetic/synthetic_template.h"
#include "text/synthetic/tokenizer_training.h"

namespace sparrow::cli {
namespace {

// Tokenizer and chat template, with the model's added tokens where its configuration expects them.
Status write_text_files(const ModelConfig& config, CreatedFiles& files) {
  const std::string tokenizer =
      SPARROW_TRY(train_tokenizer(tokenizer_corpus(), config.vocab_size, SpareIds::kPhrases));
  SPARROW_TRY(write_text_file(SPARROW_TRY(files.add("tokenizer.json")), tokenizer));
  SPARROW_TRY(write_text_file(SPARROW_TRY(files.add("tokenizer_config.json")), trained_tokenizer_config()));
  return write_text_file(SPARROW_TRY(files.add("chat_template.jinja")), synthetic_chat_template());
}

}  // namespace

Status run_make_model(const MakeModelOptions& options) {
  const bool is_f32 = options.dtype == "f32", is_plain = is_f32 || options.dtype == "bf16";
  CreatedFiles::remove_when_interrupted();
  ProgressBar bar("writing " + folder_name(options.out), ProgressBar::Unit::kBytes);
  SPARROW_TRY(
      write_synthetic_checkpoint({.preset = is_plain ? options.preset : options.preset + "-" + options.dtype,
                                  .seed = options.seed,
                                  .dir = options.out,
                                  .format = is_f32 ? MatrixFormat::kF32 : MatrixFormat::kBF16,
                                  .write_beside = write_text_files},
                                 bar.callback()));
  bar.finish();
  std::printf("%s\n", options.out.c_str());
  return Ok{};
}

}  // namespace sparrow::cli
