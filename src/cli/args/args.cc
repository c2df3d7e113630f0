// SPDX-License-Identifier: Apache-2.0
// The command line, declared in one place: the only file that compiles CLI11.
#include <CLI/CLI.hpp>
#include <cstdio>

#include "base/dtype.h"
#include "base/text/suggest.h"
#include "base/threads/thread_pool.h"
#include "checkpoint/random/synthetic.h"
#include "cli/args/args_parts.h"
#include "cli/commands.h"
#include "cli/load_model.h"

namespace sparrow::cli {
namespace {

constexpr int kExitUsage = 2;

std::string examples(std::initializer_list<const char*> lines) {
  std::string text = "Examples:\n";
  for (const char* line : lines) text += strf("  {}\n", line);
  return text;
}

void add_threads(CLI::App* command, int& threads) {
  command->add_option("--threads", threads, "CPU threads (default: all that may be used)")
      ->check(CLI::Range(1, ThreadPool::kMaxThreads))
      ->type_name("N");
}

void add_seed(CLI::App* command, const char* flag, uint64_t& seed, const char* help) {
  command->add_option(flag, seed, help)->check(CLI::Range(uint64_t{0}, kMaxSeed))->type_name("S");
}

void add_cache_tokens(CLI::App* command, int64_t& tokens, const char* fallback) {
  command->add_option("--cache-tokens", tokens, strf("Tokens the cache can hold (default: {})", fallback))
      ->check(CLI::Range(1, 1 << 30))
      ->type_name("N");
}

// Where a prompt comes from: one of three flags.
void add_prompt(CLI::App* command, GenerateOptions& o) {
  CLI::Option_group* source = command->add_option_group("Prompt", "Exactly one of these");
  source->add_option("--prompt-ids", o.prompt_ids, "Token ids: 1,2,3, or a file with a JSON array")
      ->type_name("IDS|FILE");
  CLI::Option* text = source->add_option("--prompt", o.prompt, "Text; the output is then text too");
  text->type_name("TEXT");
  CLI::Option* prompts =
      source->add_option("--prompts", o.prompts, "File with one prompt per line, see below");
  prompts->type_name("FILE");
  source->require_option(1);
  command
      ->add_option("--image", o.images,
                   "With --prompt: images that the text is about, as a user's message; may be repeated")
      ->type_name("FILE")
      ->needs(text);
  CLI::Option* out =
      command->add_option("--out", o.out, "With --prompts: file for the answers, one per line");
  out->type_name("FILE")->needs(prompts);
  prompts->needs(out);
  command->add_option("--concurrency", o.concurrency, "With --prompts: how many to run at once (default 16)")
      ->check(CLI::Range(1, 4096))
      ->type_name("N")
      ->needs(prompts);
}

CLI::App* add_generate(CLI::App& app, GenerateOptions& o) {
  CLI::App* command = app.add_subcommand(
      "generate", "Generate from one prompt, printed as it comes, or from a file of prompts");
  command->add_option("--model", o.model, "Folder of the checkpoint")->required()->type_name("DIR");
  add_prompt(command, o);
  command->add_option("--max-tokens", o.max_tokens, "Stop after this many tokens (default 64)")
      ->check(CLI::Range(1, 1 << 24))
      ->type_name("N");
  command
      ->add_option("--temperature", o.temperature,
                   "0 is greedy (default: the model's generation_config.json, or 1)")
      ->type_name("T");
  command
      ->add_option("--top-p", o.top_p,
                   "Sample from the smallest set of ids with this total probability, in (0, 1]")
      ->type_name("P");
  command->add_option("--top-k", o.top_k, "Sample from the K most probable ids; 0 for all")->type_name("K");
  add_seed(command, "--seed", o.seed, "Seed for sampling: same seed, same tokens (default 0)");
  command->add_flag("--ignore-eos", o.ignore_eos, "Continue after an end-of-sequence token");
  command
      ->add_option("--chunk", o.chunk,
                   "Prompt tokens in one step; changes speed and memory, never the result (default 512)")
      ->check(CLI::Range(1, 1 << 20))
      ->type_name("N");
  add_cache_tokens(command, o.cache_tokens, "what the prompt needs; with --prompts: as memory allows");
  add_threads(command, o.threads);
  add_load(command, o.load);
  add_ranks(command, o.ranks);
  command->footer(
      examples({"sparrow make-model --preset tiny --out /tmp/tiny",
                "sparrow generate --model /tmp/tiny --prompt-ids 1,2,3 --max-tokens 16 --temperature 0",
                "sparrow generate --model /tmp/tiny --prompt 'Sparse attention' --top-p 0.95 --seed 7",
                "sparrow generate --model /tmp/tiny --prompt 'What is on it?' --image screen.png",
                "sparrow generate --model /tmp/tiny --prompts in.jsonl --concurrency 16 --out out.jsonl"}) +
      "\nA line of --prompts: {\"id\": 1, \"prompt_ids\": [1, 2, 3], \"max_tokens\": 16}. Other fields: "
      "prompt (text),\n"
      "min_tokens, temperature, top_p, top_k, min_p, repetition_penalty, presence_penalty, "
      "frequency_penalty,\n"
      "logit_bias, allowed_token_ids, banned_token_ids, stop_token_ids, ignore_eos, seed, priority. The "
      "flags give\n"
      "the defaults. A line of --out: id, output_ids, text, finish_reason, cached_tokens; or id, line, "
      "error.\n"
      "Exit code 1: a prompt failed.\n");
  return command;
}

CLI::App* add_bench_engine(CLI::App& app, BenchEngineOptions& o) {
  CLI::App* bench = app.add_subcommand("bench", "Measure one layer of the program");
  bench->require_subcommand(1);
  bench->footer(examples({"sparrow bench engine --model /tmp/small --num-prompts 16",
                          "sparrow bench step --preset m3 --tensor-parallel-size 8 --batch 1,8,64"}));
  CLI::App* command =
      bench->add_subcommand("engine", "Run many requests at once: tokens/s, latency, batch sizes");
  const auto number = [&](const char* flag, auto& value, int least, const char* help) {
    command->add_option(flag, value, help)->check(CLI::Range(least, 1 << 24))->type_name("N");
  };
  command->add_option("--model", o.model, "Folder of the checkpoint")->required()->type_name("DIR");
  number("--num-prompts", o.num_prompts, 1, "Number of requests (default 64)");
  number("--input-len", o.input_len, 1, "Tokens in each prompt (default 512)");
  number("--output-len", o.output_len, 1, "Tokens in each output (default 64)");
  number("--shared-prefix", o.shared_prefix, 0, "Leading tokens that all prompts share (default 0)");
  command
      ->add_option("--arrival-rate", o.arrival_rate,
                   "Requests per second, at random times (default: all at once)")
      ->check(number_in(0, 1e9))
      ->type_name("R");
  number("--concurrency", o.concurrency, 0, "Most requests under way at once (default: all)");
  add_seed(command, "--seed", o.seed, "Seed for prompts and arrivals (default 0)");
  number("--max-batch-tokens", o.max_step_tokens, 1, "Most tokens in one step (default 512)");
  number("--max-sequences", o.max_step_sequences, 1, "Most sequences in one step (default 256)");
  command->add_flag("!--no-prefix-caching", o.prefix_caching, "Compute every prompt from its first token");
  command->add_flag("--json", o.json, "One line of JSON instead of a table");
  add_cache_tokens(command, o.cache_tokens, "what the requests need");
  add_threads(command, o.threads);
  add_load(command, o.load);
  command->footer(examples(
      {"sparrow bench engine --model /tmp/small --num-prompts 16 --input-len 128 --output-len 64",
       "sparrow bench engine --model /tmp/small --num-prompts 64 --input-len 8320 --shared-prefix 8192",
       "sparrow bench engine --model /tmp/small --arrival-rate 2.5 --json"}));
  return command;
}

CLI::App* add_trace(CLI::App& app, TraceOptions& o) {
  CLI::App* command = app.add_subcommand(
      "trace", "Run a prompt and write logits, hidden states and selected blocks to a file");
  command->add_option("--model", o.model, "Folder of the checkpoint")->required()->type_name("DIR");
  CLI::Option_group* prompt = command->add_option_group("Prompt", "Exactly one of these");
  prompt->add_option("--ids", o.ids, "Prompt: file with a JSON array of token ids")->type_name("FILE");
  prompt
      ->add_option("--messages", o.messages,
                   "Prompt: file with a JSON array of messages, whose images and clips are files")
      ->type_name("FILE");
  prompt->require_option(1);
  command
      ->add_option(
          "--positions", o.positions,
          "Positions to record, such as 0,127,-1; negative ones count from the end (default: the last)")
      ->type_name("LIST");
  command->add_option("--out", o.out, "File to write (safetensors)")->required()->type_name("FILE");
  command->add_option("--chunk", o.chunk, "Prompt tokens in one step (default: all)")
      ->check(CLI::Range(1, 1 << 20))
      ->type_name("N");
  command->add_option("--decode", o.decode, "Greedy steps after the prompt (default 0)")
      ->check(CLI::Range(0, 1 << 24))
      ->type_name("N");
  command
      ->add_option("--shuffle-blocks", o.shuffle_blocks, "Shuffle the order of cache blocks with this seed")
      ->type_name("S");
  command->add_flag("--round-frequencies", o.round_frequencies,
                    "Round the rotary frequencies to bf16, as transformers does after model.to(bfloat16)");
  add_threads(command, o.threads);
  command->footer(
      examples(
          {"echo '[1, 2, 3, 4]' > prompt.json",
           "sparrow trace --model /tmp/tiny --ids prompt.json --positions 0,2,-1 --out run.safetensors",
           "sparrow trace --model /tmp/tiny --ids prompt.json --chunk 2 --decode 48 --out run.safetensors",
           "sparrow trace --model /tmp/tiny --messages chat.json --out run.safetensors"}) +
      "\nTensors written: input_ids, logit_positions, logits, hidden.N (input of layer N; the last one after "
      "the\n"
      "final norm), selected_blocks.L [index heads, positions, top-k], greedy_ids, greedy_logits; of a chat\n"
      "also media.N.grid_thw, media.N.pixel_values, media.N.tower, media.N.features.\n");
  return command;
}

CLI::App* add_make_model(CLI::App& app, MakeModelOptions& o) {
  CLI::App* command =
      app.add_subcommand("make-model", "Write a random checkpoint in the layout of the released model");
  std::vector<std::string> names;
  std::string presets = "\nPresets:\n";
  for (const SyntheticPreset& preset : synthetic_presets()) {
    if (!preset.is_writable) continue;
    names.emplace_back(preset.name);
    presets += strf("  {:<10} {}\n", preset.name, preset.summary);
  }
  command->add_option("--preset", o.preset, "Size of the model, see below")
      ->required()
      ->check(CLI::IsMember(names))
      ->type_name("NAME");
  command->add_option("--out", o.out, "Folder to write; must not hold a model already")
      ->required()
      ->type_name("DIR");
  add_seed(command, "--seed", o.seed, "Same preset, seed and type give the same bytes (default 0)");
  command
      ->add_option("--dtype", o.dtype,
                   "bf16 (default), f32, mxfp8 (all linear layers), mxfp4 (experts) or mxfp4-mxfp8 (both)")
      ->check(CLI::IsMember({"bf16", "f32", "mxfp8", "mxfp4", "mxfp4-mxfp8"}))
      ->type_name("TYPE");
  command->footer(
      examples({"sparrow make-model --preset tiny --out /tmp/tiny",
                "sparrow make-model --preset small --dtype mxfp8 --seed 7 --out /tmp/small-mxfp8"}) +
      presets);
  return command;
}

CLI::App* add_quantize(CLI::App& app, QuantizeOptions& o) {
  CLI::App* command = app.add_subcommand(
      "quantize", "Write a checkpoint again in MXFP8, MXFP4 or both, and show what that costs");
  command->add_option("source", o.from, "Folder of the checkpoint: bf16, f32, or quantized otherwise")
      ->required()
      ->type_name("SRC");
  command->add_option("target", o.to, "Folder to write; must be new or empty")->required()->type_name("DST");
  command->add_option("--format", o.format, "mxfp8, mxfp4 or mxfp4-mxfp8, see below")
      ->required()
      ->check(CLI::IsMember({"mxfp8", "mxfp4", "mxfp4-mxfp8"}))
      ->type_name("FORMAT");
  command->footer(
      examples({"sparrow quantize /models/m3 /models/m3-mxfp8 --format mxfp8",
                "sparrow quantize /models/m3 /models/m3-mxfp4 --format mxfp4"}) +
      "\nFormats (32 inputs of a row share a scale, a power of two):\n"
      "  mxfp8        8 bits (e4m3) for all linear layers but the router, as MiniMax publishes M3: half the "
      "bytes\n"
      "  mxfp4        4 bits (e2m1) for the experts, the rest as it is, as AMD does with Quark: their bytes "
      "to "
      "a quarter\n"
      "  mxfp4-mxfp8  the experts as mxfp4, all other linear layers as mxfp8; no other program reads it\n"
      "\nFiles keep their names; tokenizer, template and all else small are copied. config.json comes last: "
      "a\n"
      "folder without it is left of a run that was killed. Memory stays the same for any model. At the end, "
      "for each part\n"
      "of the model: bytes, error of its weights (root mean square, relative), of its worst matrix, and the\n"
      "largest change of a weight. What has the format already is copied; no value changes.\n");
  return command;
}

CLI::App* add_tokenize(CLI::App& app, TokenizeOptions& o) {
  CLI::App* command = app.add_subcommand("tokenize", "Turn text into token ids, and back");
  command->add_option("--model", o.model, "Folder with tokenizer.json")->required()->type_name("DIR");
  command->add_option("input", o.input, "Text, or with --decode ids (default: standard input)")
      ->type_name("TEXT");
  command->add_flag("--decode", o.decode, "Ids in, text out");
  command->add_flag("--table", o.table, "Print one line per token: position, id, bytes");
  command->add_flag("--plain", o.plain, "Treat special tokens in the text as plain text");
  command->add_flag("--skip-special", o.skip_special, "With --decode: leave special tokens out");
  command->footer(examples({"sparrow tokenize --model /tmp/tiny 'Hello, world'",
                            "sparrow tokenize --model /tmp/tiny --table < prompt.txt",
                            "sparrow tokenize --model /tmp/tiny --decode 72,101,108"}));
  return command;
}

CLI::App* add_debug_text(CLI::App& app, DebugTextOptions& o) {
  CLI::App* debug = app.add_subcommand("debug", "Look into one layer of the program");
  debug->require_subcommand(1);
  debug->footer(
      examples({R"(echo '{"op":"tokenize","text":"Hello"}' | sparrow debug text --model /tmp/tiny)"}));
  CLI::App* command =
      debug->add_subcommand("text", "Answer lines of JSON: templates, tokens, reasoning and tool calls");
  command->add_option("--model", o.model, "Folder with tokenizer and chat template")->type_name("DIR");
  command
      ->add_option("--chat-template", o.chat_template,
                   "Template instead of the model's; --model is then optional")
      ->type_name("FILE");
  command->footer(
      examples(
          {R"(echo '{"op":"tokenize","text":"Hello"}' | sparrow debug text --model /tmp/tiny)",
           R"(echo '{"op":"parse_output","chunks":["<mm:think>a</mm:think>b"]}' | sparrow debug text --model /tmp/tiny)"}) +
      "\nOperations: render_chat, parse_tools, parse_reasoning, parse_output, tokenize, detokenize. One "
      "answer per line,\n"
      "in order; a line that makes no sense gets {\"error\": ...}. render_chat with \"return_spans\": true\n"
      "shows which parts of the prompt the template wrote: only those become control tokens. With\n"
      "\"return_ids\": true it shows the ids.\n");
  return command;
}

int usage_error(std::string_view message, const CLI::App& command) {
  if (message.starts_with(": ")) message.remove_prefix(2);  // of a flag that is not shown
  std::string name;
  for (const CLI::App* app = &command; app != nullptr; app = app->get_parent())
    name = name.empty() ? app->get_name() : strf("{} {}", app->get_name(), name);
  std::fputs(strf("sparrow: {} (see {} --help)\n", message, name).c_str(), stderr);
  return kExitUsage;
}

// The subcommand on the command line, or the program itself.
const CLI::App& chosen(const CLI::App& app) {
  const auto subcommands = app.get_subcommands();
  return subcommands.empty() ? app : chosen(*subcommands.front());
}

// Names what CLI11 did not recognise, and the nearest thing that was perhaps meant.
int unknown_argument(const CLI::App& app) {
  const CLI::App& command = chosen(app);
  std::vector<std::string> known;
  const auto add_flags = [&known](const CLI::App& group) {
    for (const CLI::Option* option : group.get_options())
      // Hidden ones have no name to show.
      if (const std::string name = option->get_name(); name.starts_with("--")) known.push_back(name);
  };
  add_flags(command);
  for (const CLI::App* group : command.get_subcommands({}))
    if (group->get_name().empty()) add_flags(*group);  // how CLI11 marks an option group
  if (&command == &app)
    for (const CLI::App* sub : app.get_subcommands({})) known.push_back(sub->get_name());
  const std::vector<std::string> extras = app.remaining(true);
  const std::string wrong = extras.empty() ? "?" : extras.front().substr(0, extras.front().find('='));
  const std::string nearest = nearest_word(wrong, known);
  const char* kind = wrong.starts_with("-") ? "flag" : &command == &app ? "command" : "argument";
  return usage_error(
      strf("unknown {} {}{}", kind, wrong, nearest.empty() ? "" : ", did you mean " + nearest + "?"),
      command);
}

}  // namespace

std::variant<Command, int> parse_args(int argc, const char* const* argv) {
  CLI::App app("Sparrow serves MiniMax-M3 with its native block-sparse attention.", "sparrow");
  app.set_version_flag("--version", "sparrow " SPARROW_VERSION);
  app.footer(
      examples({"sparrow make-model --preset tiny --out /tmp/tiny", "sparrow serve /tmp/tiny", "sparrow chat",
                "sparrow doctor", "sparrow generate --model /tmp/tiny --prompt-ids 1,2,3 --max-tokens 16"}) +
      "\nEach command explains itself: sparrow generate --help\n");
  ServeOptions serve;
  ChatOptions chat;
  PlanCommandOptions plan;
  DoctorOptions doctor;
  GenerateOptions generate;
  TraceOptions trace;
  MakeModelOptions make_model;
  QuantizeOptions quantize;
  BenchEngineOptions bench_engine;
  TokenizeOptions tokenize;
  const CLI::App* serve_command = add_serve(app, serve);
  const CLI::App* chat_command = add_chat(app, chat);
  const CLI::App* plan_command = add_plan(app, plan);
  const CLI::App* doctor_command = add_doctor(app, doctor);
  const CLI::App* generate_command = add_generate(app, generate);
  const CLI::App* trace_command = add_trace(app, trace);
  const CLI::App* make_model_command = add_make_model(app, make_model);
  const CLI::App* quantize_command = add_quantize(app, quantize);
  const CLI::App* bench_engine_command = add_bench_engine(app, bench_engine);
  BenchStepOptions bench_step;
  const CLI::App* bench_step_command = add_bench_step(app, bench_step);
  SimulateOptions simulate;
  const CLI::App* simulate_command = add_simulate(app, simulate);
  add_tokenize(app, tokenize);
  DebugTextOptions debug_text;
  const CLI::App* debug_text_command = add_debug_text(app, debug_text);
  app.require_subcommand(1);
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& e) {  // --help, --version
    return app.exit(e);
  } catch (const CLI::ExtrasError&) {
    return unknown_argument(app);
  } catch (const CLI::RequiredError& e) {
    // A misspelt flag also leaves the right one missing: the misspelling is what to report.
    if (!app.remaining(true).empty()) return unknown_argument(app);
    return usage_error(e.what(), chosen(app));
  } catch (const CLI::ParseError& e) {
    return usage_error(e.what(), chosen(app));
  }
  if (*serve_command) return Command(std::move(serve));
  if (*chat_command) return Command(std::move(chat));
  if (*plan_command) return Command(std::move(plan));
  if (*doctor_command) return Command(std::move(doctor));
  if (*generate_command) {
    resolve_device(generate.load);
    return Command(std::move(generate));
  }
  if (*trace_command) return Command(std::move(trace));
  if (*make_model_command) return Command(std::move(make_model));
  if (*quantize_command) return Command(std::move(quantize));
  if (*bench_step_command) return Command(std::move(bench_step));
  if (*simulate_command) return Command(std::move(simulate));
  if (*bench_engine_command) {
    resolve_device(bench_engine.load);
    return Command(std::move(bench_engine));
  }
  if (*debug_text_command) return Command(std::move(debug_text));
  return Command(std::move(tokenize));
}

}  // namespace sparrow::cli
