// SPDX-License-Identifier: Apache-2.0
// The subcommands: what each one takes, and the function that runs it. args.cc fills the structs from the
// command line; every run_* returns an error or the process's work is done.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <variant>

#include "base/result.h"

namespace sparrow::cli {

struct GenerateOptions {
  std::filesystem::path model;
  std::string prompt_ids;  // "1,2,3", or a file with a JSON array of ids
  int max_tokens = 64;
  std::optional<double> temperature, top_p;  // default: generation_config.json of the model
  std::optional<int> top_k;
  uint64_t seed = 0;
  bool ignore_eos = false;
  int chunk = 512;
  int threads = 0;  // 0: all
};
Status run_generate(const GenerateOptions& options);

struct TraceOptions {
  std::filesystem::path model, ids, out;
  std::string positions;  // "0,127,-1"; empty: the last one
  int chunk = 0;          // 0: the whole prompt at once
  int decode = 0;
  int threads = 0;
  std::optional<uint64_t> shuffle_blocks;
  bool round_frequencies = false;  // see RopeConfig
};
Status run_trace(const TraceOptions& options);

struct MakeModelOptions {
  std::string preset;
  uint64_t seed = 0;
  std::filesystem::path out;
  std::string dtype = "bf16";
};
Status run_make_model(const MakeModelOptions& options);

struct TokenizeOptions {
  std::filesystem::path model;       // only its tokenizer is read
  std::optional<std::string> input;  // default: standard input
  bool decode = false;               // ids in, text out
  bool table = false;                // one line for each token
  bool plain = false;                // special tokens in the text are plain text
  bool skip_special = false;         // decode: leave special tokens out
};
Status run_tokenize(const TokenizeOptions& options);

struct DebugTextOptions {
  std::filesystem::path model;          // for its tokenizer and its chat template
  std::filesystem::path chat_template;  // instead of the model's
};
Status run_debug_text(const DebugTextOptions& options);

using Command = std::variant<GenerateOptions, TraceOptions, MakeModelOptions, TokenizeOptions, DebugTextOptions>;

// What the command line asked for, or the code to exit with: --help and --version have been printed, or a
// one-line error has been written to stderr.
std::variant<Command, int> parse_args(int argc, const char* const* argv);

}  // namespace sparrow::cli
