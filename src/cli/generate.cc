// SPDX-License-Identifier: Apache-2.0
// `sparrow generate`: one prompt, ids printed as they come.
#include <algorithm>
#include <chrono>
#include <cstdio>

#include "cli/commands.h"
#include "cli/load_model.h"
#include "cli/token_ids.h"
#include "engine/sampler.h"

namespace sparrow::cli {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

SamplingParams sampling_params(const GenerateOptions& options, const ModelConfig& config) {
  return {.temperature = options.temperature.value_or(config.temperature.value_or(1.0)),
          .top_p = options.top_p.value_or(config.top_p.value_or(1.0)),
          .top_k = options.top_k.value_or(config.top_k.value_or(0)),
          .seed = options.seed};
}

bool ends(const GenerateOptions& options, const ModelConfig& config, int32_t id) {
  const auto& eos = config.eos_token_ids;
  return !options.ignore_eos && std::find(eos.begin(), eos.end(), id) != eos.end();
}

}  // namespace

Status run_generate(const GenerateOptions& options) {
  std::vector<int32_t> prompt = SPARROW_TRY(read_prompt_ids(options.prompt_ids));
  const Checkpoint checkpoint = SPARROW_TRY(load_checkpoint(options.model));
  const ModelConfig& config = checkpoint.config();
  const SamplingParams params = sampling_params(options, config);
  SPARROW_TRY(validate(params));
  SPARROW_TRY(check_prompt(prompt, config.vocab_size, options.max_tokens, config.max_positions));

  const int64_t capacity = static_cast<int64_t>(prompt.size()) + options.max_tokens;
  const auto runner = SPARROW_TRY(start_runner(config, checkpoint, capacity, options.threads));
  Sequence sequence = runner->new_sequence();
  sequence.ids = std::move(prompt);
  const size_t prompt_tokens = sequence.ids.size();

  const Clock::time_point start = Clock::now();
  Tensor logits = SPARROW_TRY(prefill_with_progress(*runner, sequence, options.chunk));
  const double prefill_seconds = seconds_since(start);

  Sampler sampler;
  int made = 0;
  double decode_seconds = 0;
  while (made < options.max_tokens) {
    const auto id =
        sampler.sample({logits.row<float>(0), static_cast<size_t>(config.vocab_size)}, params, made);
    if (!id) return Error{Errc::kCorrupt, strf("the logits of output token {} are not finite numbers", made)};
    std::printf("%s%d", made == 0 ? "" : " ", *id);
    std::fflush(stdout);
    ++made;
    if (made == options.max_tokens || ends(options, config, *id)) break;
    sequence.ids.push_back(*id);
    const Clock::time_point step = Clock::now();
    const SequenceSlice slice{.sequence = &sequence, .num_tokens = 1, .logit_offsets = {0}};
    logits = SPARROW_TRY(runner->run({&slice, 1}));
    decode_seconds += seconds_since(step);
  }
  std::printf("\n");
  std::fflush(stdout);
  std::fputs(
      strf("prefill {} tokens in {:.2f} s, {:.1f} tokens/s; decode {} tokens in {:.2f} s, {:.1f} tokens/s\n",
           prompt_tokens, prefill_seconds, static_cast<double>(prompt_tokens) / prefill_seconds,
           std::max(made - 1, 0), decode_seconds, made > 1 ? (made - 1) / decode_seconds : 0.0)
          .c_str(),
      stderr);
  return Ok{};
}

}  // namespace sparrow::cli
