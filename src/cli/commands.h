// SPDX-License-Identifier: Apache-2.0
// The subcommands: the options of each, and the function that runs it. args.cc fills the structs from the
// command line; every run_* does the command's work or returns an error.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "base/result.h"
#include "cli/bench/bench_step.h"
#include "cli/chat/chat.h"
#include "cli/load_options.h"
#include "cli/plan/doctor.h"
#include "cli/plan/plan.h"
#include "cli/rank_flags.h"
#include "cli/serve/serve.h"
#include "cli/simulate/simulate.h"

namespace sparrow::cli {

struct GenerateOptions {
  std::filesystem::path model;
  // Exactly one of these.
  std::optional<std::string> prompt_ids;         // "1,2,3", or a file with a JSON array of ids
  std::optional<std::string> prompt;             // text
  std::optional<std::filesystem::path> prompts;  // a file, one prompt per line
  std::vector<std::filesystem::path> images;     // with prompt: then it is a chat's question
  std::filesystem::path out;                     // with prompts
  int concurrency = 16;                          // with prompts
  int max_tokens = 64;
  std::optional<double> temperature, top_p;  // default: generation_config.json of the model
  std::optional<int> top_k;
  uint64_t seed = 0;
  bool ignore_eos = false;
  int chunk = 512;
  int64_t cache_tokens = 0;  // 0: what one prompt needs; with prompts, by the machine's memory
  int threads = 0;           // 0: all
  LoadOptions load;
  RankFlags ranks;
};
Result<int> run_generate(GenerateOptions options);  // the exit code

struct TraceOptions {
  std::filesystem::path model, out;
  std::filesystem::path ids, messages;  // one of them
  std::string positions;                // "0,127,-1"; empty: the last one
  int chunk = 0;                        // 0: the whole prompt at once
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

struct QuantizeOptions {
  std::filesystem::path from, to;
  std::string format;  // a name of QuantFormat
};
Status run_quantize(const QuantizeOptions& options);

struct BenchEngineOptions {
  std::filesystem::path model;
  int num_prompts = 64;
  int input_len = 512, output_len = 64;  // tokens of each prompt, of each output
  int shared_prefix = 0;                 // first tokens that all prompts have in common
  double arrival_rate = 0;               // requests a second, at random times; 0: all at once
  int concurrency = 0;                   // requests under way at most; 0: all
  uint64_t seed = 0;
  bool json = false;
  int max_step_tokens = 512, max_step_sequences = 256;
  int64_t cache_tokens = 0;  // 0: what the requests under way need
  bool prefix_caching = true;
  int threads = 0;
  LoadOptions load;
};
Status run_bench_engine(const BenchEngineOptions& options);

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

// The command that the server starts itself for pictures (media/sandbox/media_workers.h). It is in no help
// text: it reads from a descriptor that nobody else gives it.
inline constexpr const char* kMediaWorkerCommand = "media-worker";
bool is_media_worker(int argc, const char* const* argv);
int run_as_media_worker();

using Command = std::variant<GenerateOptions, TraceOptions, MakeModelOptions, BenchEngineOptions,
                             TokenizeOptions, DebugTextOptions, ServeOptions, ChatOptions, PlanCommandOptions,
                             DoctorOptions, BenchStepOptions, QuantizeOptions, SimulateOptions>;

// What the command line asked for, or the code to exit with: --help and --version have been printed, or a
// one-line error has been written to stderr.
std::variant<Command, int> parse_args(int argc, const char* const* argv);

}  // namespace sparrow::cli
