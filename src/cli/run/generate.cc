// SPDX-License-Identifier: Apache-2.0
// `sparrow generate`: one prompt, its ids or text printed as they come; or a file of prompts.
#include <algorithm>
#include <chrono>
#include <cstdio>

#include "base/progress.h"
#include "cli/args/token_ids.h"
#include "cli/commands.h"
#include "cli/load_model.h"
#include "cli/ranks/rank_process.h"
#include "cli/run/generate_file.h"
#include "cli/trace/media_chat.h"
#include "model/sharding.h"
#include "text/tokenizer/detokenizer.h"

namespace sparrow::cli {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::chrono::milliseconds kProgressInterval{100};

double seconds(Clock::duration duration) {
  return std::chrono::duration<double>(duration).count();
}

// What the command line says about every prompt.
Request request_defaults(const GenerateOptions& options, const ModelConfig& config) {
  return {.sampling = {.temperature = options.temperature.value_or(config.temperature.value_or(1.0)),
                       .top_p = options.top_p.value_or(config.top_p.value_or(1.0)),
                       .top_k = options.top_k.value_or(config.top_k.value_or(0)),
                       .seed = options.seed},
          .max_tokens = options.max_tokens,
          .ignore_eos = options.ignore_eos};
}

// Prints ids, or the text of a text prompt, as far as it is certain.
class Printer {
 public:
  explicit Printer(const Tokenizer* tokenizer) {
    if (tokenizer) detokenizer_.emplace(*tokenizer);
  }

  void id(int32_t id) {
    if (!detokenizer_) {
      show(strf("{}{}", first_ ? "" : " ", id));
      first_ = false;
      return;
    }
    std::string text;
    SPARROW_CHECK(detokenizer_->push(id, text).ok());  // the tokenizer knows all ids of the model
    show(text);
  }
  void end() {
    std::string text;
    if (detokenizer_) detokenizer_->finish(text);
    show(text + "\n");
  }

 private:
  static void show(const std::string& text) {
    std::fwrite(text.data(), 1, text.size(), stdout);
    std::fflush(stdout);
  }

  std::optional<Detokenizer> detokenizer_;
  bool first_ = true;
};

// The next event; while the prompt runs, a progress bar on a terminal.
std::optional<TokenEvent> next_with_progress(Engine& engine, TokenStream& stream, size_t prompt_tokens) {
  ProgressBar bar("prefill", ProgressBar::Unit::kItems);
  while (!stream.done()) {
    if (std::optional<TokenEvent> event = stream.next(kProgressInterval)) return event;
    bar.update(engine.stats().computed_tokens, prompt_tokens);
  }
  return std::nullopt;
}

Status print_stream(Engine& engine, Request request, Printer printer) {
  const size_t prompt_tokens = request.prompts.front().size();
  const Clock::time_point start = Clock::now();
  const auto stream = SPARROW_TRY(engine.submit(std::move(request)));
  Clock::time_point first = start, last = start;
  int made = 0;
  std::optional<TokenEvent> event = next_with_progress(engine, *stream, prompt_tokens);
  for (; event; event = stream->next()) {
    last = Clock::now();
    if (event->finish == FinishReason::kError) return Error{Errc::kCorrupt, event->error};
    if (!event->id) continue;
    if (made++ == 0) first = last;
    printer.id(*event->id);
  }
  printer.end();
  const double prefill_seconds = seconds(first - start), decode_seconds = seconds(last - first);
  const auto work = [](const char* name, size_t tokens, double time) {
    const auto n = static_cast<double>(tokens);
    const std::string rate = has_rate(n, time) ? strf(", {:.1f} tokens/s", n / time) : "";
    return strf("{} {} tokens in {:.2f} s{}", name, tokens, time, rate);
  };
  std::fputs(strf("{}; {}\n", work("prefill", prompt_tokens, prefill_seconds),
                  work("decode", static_cast<size_t>(std::max(made - 1, 0)), decode_seconds))
                 .c_str(),
             stderr);
  return Ok{};
}

// `ranks`: this process is one of several. What is wrong with the prompt every one of them finds out.
Result<int> generate(const GenerateOptions& options, const EngineOptions& base, RankProcess* ranks) {
  const bool follows = ranks && ranks->grid().rank > 0;
  std::vector<int32_t> prompt;
  if (options.prompt_ids) prompt = SPARROW_TRY(read_prompt_ids(*options.prompt_ids));
  if (options.prompts && !follows) SPARROW_TRY(check_files(options));
  // Weights come last: they take minutes, and what is wrong with a prompt can be said at once.
  const ModelConfig config = SPARROW_TRY(load_config(options.model, options.load.hf_overrides));
  const auto tokenizer = SPARROW_TRY(load_tokenizer(options.model, config));
  Request request = request_defaults(options, config);
  EngineOptions engine_options = base;
  if (options.prompts) {
    SPARROW_TRY(validate(request.sampling, config.vocab_size));
    const Checkpoint checkpoint = SPARROW_TRY(load_checkpoint(options.model, options.load, ranks));
    if (follows) return follow_rank_0(checkpoint, engine_options, options.load, *ranks);
    const auto engine = SPARROW_TRY(start_engine(checkpoint, engine_options, options.load, ranks));
    const EngineWatch watch(ranks, *engine);
    const int code = SPARROW_TRY(generate_file(*engine, options, request, tokenizer.get()));
    return engine->failure() ? lost_rank(*engine->failure()) : code;
  }
  if (options.prompt) {
    if (!tokenizer)
      return Error{Errc::kNotFound,
                   strf("--prompt needs tokenizer.json in {}: give --prompt-ids", options.model.string())};
    if (options.images.empty()) prompt = SPARROW_TRY(tokenizer->encode(*options.prompt));
  }
  RequestMediaLimits media_limits;
  if (!options.images.empty()) {
    MediaChat chat = SPARROW_TRY(ask_about_images(options.images, *options.prompt, options.model, config));
    prompt = std::move(chat.ids);
    request.media = std::move(chat.media);
    media_limits = {.vision = config.vision,
                    .feature_tokens = engine_options.device == Device::kCpu
                                          ? engine_options.cpu.feature_tokens
                                          : engine_options.gpu.feature_tokens};
  }
  request.prompts = {std::move(prompt)};
  const int64_t needed_tokens = static_cast<int64_t>(request.prompts.front().size()) + options.max_tokens;
  if (engine_options.cache_tokens == 0) engine_options.cache_tokens = needed_tokens;
  // Said before the cache is made: what is wrong with the prompt is not the cache's size.
  SPARROW_TRY(validate(request, {.vocab_size = config.vocab_size,
                                 .max_model_tokens = config.max_positions,
                                 .cache_tokens = blocks_for_tokens(needed_tokens) * kBlockTokens,
                                 .media = media_limits}));
  const Checkpoint checkpoint = SPARROW_TRY(load_checkpoint(options.model, options.load, ranks));
  if (follows) return follow_rank_0(checkpoint, engine_options, options.load, *ranks);
  const auto engine = SPARROW_TRY(start_engine(checkpoint, engine_options, options.load, ranks));
  const EngineWatch watch(ranks, *engine);
  const Status printed =
      print_stream(*engine, std::move(request), Printer(options.prompt ? tokenizer.get() : nullptr));
  if (engine->failure()) return lost_rank(*engine->failure());
  SPARROW_TRY(printed);
  return 0;
}

EngineOptions engine_options_of(const GenerateOptions& options) {
  EngineOptions engine_options{.cache_tokens = options.cache_tokens,
                               .cpu = {.threads = options.threads},
                               .max_step_tokens = options.chunk,
                               .max_step_sequences = 1,
                               .prefix_caching = options.prompts.has_value()};
  if (options.prompts) {
    engine_options.max_step_sequences = std::min(options.concurrency, options.chunk);
    engine_options.max_queued_requests = options.concurrency;
  }
  return engine_options;
}

}  // namespace

Result<int> run_generate(GenerateOptions options) {
  options.load.vision = !options.images.empty();
  EngineOptions engine_options = engine_options_of(options);
  if (options.ranks.grid.world() == 1) {
    SPARROW_TRY(options.ranks.check_alone());
    return generate(options, engine_options, nullptr);
  }
  // What is wrong for all ranks is said once.
  SPARROW_TRY(check(options.load));
  SPARROW_TRY(options.ranks.check_device(options.load.device));
  SPARROW_TRY(
      validate(SPARROW_TRY(load_config(options.model, options.load.hf_overrides)), options.ranks.grid));
  const std::optional<RankPlace> place = SPARROW_TRY(own_place(options.ranks));
  if (!place) return start_ranks(options.ranks, "generate");
  if (place->rank > 0) leave_signals_to_rank_0();
  engine_options = rank_options(engine_options, options.ranks, *place);
  const auto ranks = SPARROW_TRY(
      RankProcess::join(options.ranks, *place, config_digest(options.model, options.load, engine_options)));
  return ranks->ended(generate(options, engine_options, ranks.get()));
}

}  // namespace sparrow::cli
