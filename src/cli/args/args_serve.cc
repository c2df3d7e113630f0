// SPDX-License-Identifier: Apache-2.0
// The command lines of `sparrow serve` and of its client, `sparrow chat`.
#include <CLI/CLI.hpp>

#include "base/threads/thread_pool.h"
#include "cli/args/args_parts.h"
#include "cli/args/byte_size.h"

namespace sparrow::cli {
namespace {

// 64k -> 64000; auto -> 0, where that is a number of the flag's.
CLI::Validator count_with_unit(bool has_auto) {
  return CLI::Validator(
      [has_auto](std::string& text) -> std::string {
        if (has_auto && (text == "auto" || text == "-1")) return text = "0", "";
        const auto count = parse_count(text, "it");
        if (!count.ok()) return count.error().message;
        if (has_auto && count.value() == 0) return "it must be at least 1, or auto; got " + text;
        text = std::to_string(count.value());
        return "";
      },
      "");
}

void add_network(CLI::App* command, ServeOptions& o) {
  const char* group = "Network";
  command->add_option("--host", o.host, "Address to listen on (default 127.0.0.1)")
      ->check([](const std::string& host) { return host.empty() ? "Must not be empty" : ""; })
      ->transform([](const std::string& host) {  // as URLs have them: [::1]
        const bool in_brackets = host.starts_with('[') && host.ends_with(']');
        return in_brackets ? host.substr(1, host.size() - 2) : host;
      })
      ->type_name("ADDR")
      ->group(group);
  command->add_option("--port", o.port, "Port to listen on (default 8000; 0: any free one)")
      ->check(CLI::Range(0, 65535))
      ->type_name("N")
      ->group(group);
  command->add_option("--ssl-certfile", o.ssl_certfile, "Certificate (PEM); turns on https")
      ->type_name("FILE")
      ->group(group);
  command->add_option("--ssl-keyfile", o.ssl_keyfile, "Its private key (PEM)")
      ->type_name("FILE")
      ->group(group);
  command
      ->add_option("--allowed-origins", o.allowed_origins,
                   "Origins of web pages that may call this server (CORS; default: none), also as a\n"
                   "JSON list; *: all")
      ->type_name("ORIGIN")
      ->group(group);
  command
      ->add_option("--allowed-hosts", o.allowed_hosts,
                   "Names, beside localhost, that a Host field may have (*: any)")
      ->type_name("NAME")
      ->group(group);
  command
      ->add_option("--drain-delay", o.drain_delay_seconds,
                   "Seconds after SIGTERM while /ready says no but requests are still\n"
                   "taken (default 5; on loopback 0; Ctrl-C does not wait)")
      ->check(CLI::Range(0, 86400))
      ->type_name("N")
      ->group(group);
  command->add_option("--log-format", o.log_format, "Format of the log: human (default) or json")
      ->check(CLI::IsMember({"human", "json"}))
      ->type_name("FORMAT")
      ->group(group);
}

void add_keys(CLI::App* command, ServeOptions& o) {
  const char* group = "Keys";
  command->add_option("--api-key", o.api_keys, "Keys that clients may use; also from SPARROW_API_KEY")
      ->type_name("KEY")
      ->group(group);
  command
      ->add_option("--api-key-file", o.api_key_file,
                   "One key per line, then optionally name=, requests=, tokens=, priority=LO..HI")
      ->type_name("FILE")
      ->group(group);
  command
      ->add_flag("--allow-unauthenticated", o.allow_unauthenticated,
                 "Serve other machines without keys: anybody who can connect can use it")
      ->group(group);
  command
      ->add_option("--max-requests-per-key", o.max_requests_per_key,
                   "Most requests of one key at a time (default: no limit)")
      ->check(CLI::NonNegativeNumber)
      ->type_name("N")
      ->group(group);
  command
      ->add_option("--allowed-priorities", o.allowed_priorities,
                   "Priorities that requests may ask for; smaller runs first (default 0..0: all are equal)")
      ->type_name("LO..HI")
      ->group(group);
  command
      ->add_option("--max-tokens-per-key", o.max_tokens_per_key,
                   "Most tokens of one key's requests at a time (default: no limit)")
      ->check(CLI::NonNegativeNumber)
      ->type_name("N")
      ->group(group);
}

void add_engine(CLI::App* command, ServeOptions& o) {
  const char* group = "Engine";
  const auto number = [&](const char* flag, auto& value, int64_t least, const char* help,
                          int64_t most = int64_t{1} << 30) {
    command->add_option(flag, value, help)
        ->transform(count_with_unit(/*has_auto=*/false))
        ->check(CLI::Range(least, most))
        ->type_name("N")
        ->group(group);
  };
  command
      ->add_option("--max-model-len", o.max_model_len,
                   "Most tokens of a prompt and its answer, such as 131072 or 128K; auto (default): what "
                   "the\nmodel supports and the cache holds")
      ->transform(count_with_unit(/*has_auto=*/true))
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 30))
      ->type_name("N")
      ->group(group);
  number("--max-num-seqs", o.max_step_sequences, 1, "Most sequences in one step (default 256)",
         kMostStepSequences);
  number("--max-num-batched-tokens", o.max_step_tokens, 1,
         "Most tokens in one step (default 512; on a GPU 8192)");
  number("--max-queued-requests", o.max_queued_requests, 1,
         "Most waiting requests; more get 429 (default 1024)");
  number("--queue-timeout", o.queue_timeout_seconds, 0,
         "Seconds a request may wait to start (default: no limit)");
  command
      ->add_option("--max-answer-size", o.max_answer_size,
                   "Limit for echo and log-probabilities of one answer; more gets 400 (default 64M)")
      ->type_name("SIZE")
      ->group(group);
  command
      ->add_option("--max-answer-memory", o.max_answer_memory,
                   "The same for all answers together; more gets 429 (default 1G)")
      ->type_name("SIZE")
      ->group(group);
  command
      ->add_option("--response-memory", o.response_memory,
                   "Responses that are stored for /v1/responses, all together; 0: none (default 256M)")
      ->type_name("SIZE")
      ->group(group);
  number("--max-stored-responses", o.max_stored_responses, 1,
         "The same for one key; the oldest make room (default 1000)");
  number("--response-expiry", o.response_expiry_seconds, 1,
         "Seconds after which a stored response is forgotten (default 3600)");
  command
      ->add_option("--kv-cache-memory,--kv-cache-memory-bytes", o.kv_cache_memory,
                   "Size of the cache, such as 4G (default: as memory allows)")
      ->type_name("SIZE")
      ->group(group);
  command
      ->add_flag("--enable-prefix-caching,!--no-enable-prefix-caching", o.prefix_caching,
                 "Keep prefixes for later requests (default: on)")
      ->group(group);
  command
      ->add_option(
          "--kv-events-config", o.kv_events_config,
          "Tell routers what the prefix cache holds, over ZeroMQ: as vLLM's flag of that name, such as\n"
          "'{\"enable_kv_cache_events\": true}' (see docs/fleet.md)")
      ->type_name("JSON")
      ->group(group);
  command->add_option("--seed", o.seed, "Seed for requests that bring none, so that they can be repeated")
      ->check(CLI::Range(uint64_t{0}, kMaxSeed))
      ->type_name("S")
      ->group(group);
  command->add_option("--threads", o.threads, "CPU threads (default: all that may be used)")
      ->check(CLI::Range(1, ThreadPool::kMaxThreads))
      ->type_name("N")
      ->group(group);
}

void add_text(CLI::App* command, ServeOptions& o) {
  const char* group = "Text";
  command
      ->add_option("--served-model-name", o.served_model_names,
                   "Names that requests may use for the model (default: MODEL)")
      ->type_name("NAME")
      ->group(group);
  command->add_option("--chat-template", o.chat_template, "Template to use instead of the model's")
      ->type_name("FILE")
      ->group(group);
  command->add_option("--tool-call-parser", o.tool_call_parser, "minimax_m3 (default) or none")
      ->type_name("NAME")
      ->group(group);
  command->add_option("--reasoning-parser", o.reasoning_parser, "minimax_m3 (default) or none")
      ->type_name("NAME")
      ->group(group);
  command
      ->add_flag("--enable-auto-tool-choice", o.enable_auto_tool_choice,
                 "Accepted for scripts that set it; always on")
      ->group(group);
  command
      ->add_option("--generation-config", o.generation_config,
                   "Sampling defaults: auto (the model's, default), none or vllm (1.0)")
      ->check(CLI::IsMember({"auto", "none", "vllm"}))
      ->type_name("FROM")
      ->group(group);
}

void add_media(CLI::App* command, MediaFlags& o) {
  const char* group = "Images and video";
  const auto text = [&](const char* flag, auto& value, const char* type, const char* help) {
    command->add_option(flag, value, help)->type_name(type)->group(group);
  };
  const auto number = [&](const char* flag, auto& value, int64_t most, const char* help, int64_t least = 1) {
    command->add_option(flag, value, help)
        ->transform(count_with_unit(/*has_auto=*/false))
        ->check(CLI::Range(least, most))
        ->type_name("N")
        ->group(group);
  };
  command
      ->add_flag("--language-model-only", o.language_model_only,
                 "Text alone: the vision tower is not read, images are refused")
      ->group(group);
  text("--limit-mm-per-prompt", o.limit_per_prompt, "JSON",
       "Most images and videos of a request (default '{\"image\": 8, \"video\": 1}')");
  text("--allowed-media-domains", o.allowed_domains, "NAME",
       "Hosts that images may be fetched from, such as example.com or *.example.com\n"
       "(default: none; images come with the request)");
  text("--allowed-local-media-path", o.allowed_local_path, "DIR",
       "Folder below which file:// URLs are read (default: none)");
  number("--media-workers", o.workers, 256, "Processes that decode images (default 4)");
  number("--media-timeout", o.timeout_seconds, 86400,
         "Seconds that an image may take at least; large ones may take longer (default 1)");
  text("--max-media-size", o.max_file_size, "SIZE", "Largest file of an image (default 32M)");
  text("--max-video-size", o.max_video_size, "SIZE", "Largest file of a video (default 64M)");
  number("--max-media-pixels", o.max_file_pixels, int64_t{1} << 30,
         "Most pixels of an image as it comes (default 64M, of 1024 x 1024)");
  number("--max-image-pixels", o.max_image_pixels, 12'845'056,
         "Most pixels that a request's max_pixels may ask for (default 12845056: 16384 tokens)", 784);
  number("--max-video-pixels", o.max_video_pixels, 301'056'000,
         "Most pixels of a video as the model sees it, all frames (default 77070336)", 784);
  number("--max-media-per-key", o.max_per_key, 1 << 20,
         "Most images of one key that wait to be decoded; more get 429 (default 1024)");
  command
      ->add_option("--mm-processor-cache-gb", o.cache_gib,
                   "GiB of decoded images that are kept for when they come again; 0: none (default 0.25)")
      ->check(number_in(0, 1024))
      ->type_name("N")
      ->group(group);
  number("--max-num-batched-patches", o.max_step_patches, int64_t{1} << 30,
         "Most patches of images that a rank encodes before a step, one image at least\n"
         "(default 1024; on a GPU 4096)");
  text("--media-memory", o.memory, "SIZE",
       "Memory for the images of all requests under way; more get 429 (default 4G)");
}

// They exist so that a script that sets them gets a clear answer.
void add_not_yet(CLI::App* command, ServeOptions& o) {
  const char* group = "";  // not shown
  command->add_option("--block-size", o.block_size)->group(group);
  command->add_flag("--trust-request-chat-template", o.trust_request_chat_template)->group(group);
}

// CLI11 does not name a flag that it does not show.
std::function<std::string(const std::string&)> named(const char* flag, const CLI::Validator& check) {
  return [=](std::string value) {
    const std::string error = check(value);
    return error.empty() ? "" : strf("{}: {}", flag, error);
  };
}

// What scripts for other servers set, and what is so here anyway, or has no counterpart that could change.
void add_without_effect(CLI::App* command, ServeOptions& o) {
  const char* group = "";  // not shown
  for (const char* flag : {"--trust-remote-code", "--disable-log-requests", "--no-enable-log-requests",
                           "--disable-log-stats", "--async-scheduling", "--no-async-scheduling",
                           "--enable-chunked-prefill", "--enforce-eager", "--disable-custom-all-reduce",
                           "--disable-frontend-multiprocessing", "--enable-prompt-tokens-details"})
    command->add_flag(flag)->group(group);
  for (const char* option : {"--mm-encoder-tp-mode", "--mm-encoder-attn-backend", "--mm-processor-cache-type",
                             "--attention-backend", "--moe-backend", "--compilation-config", "-O",
                             "--distributed-executor-backend", "--swap-space", "--uvicorn-log-level",
                             "--safetensors-load-strategy"})
    command->add_option_function<std::string>(option, [](const std::string&) {})->group(group);
  for (const char* option : {"--tokenizer-mode", "--config-format"})
    command->add_option_function<std::string>(option, [](const std::string&) {})
        ->check(named(option, CLI::IsMember({"auto"})))
        ->group(group);
  command->add_option("--dtype", o.dtype)
      ->check(named("--dtype", CLI::IsMember({"auto", "bfloat16"})))
      ->group(group);
}

}  // namespace

CLI::App* add_serve(CLI::App& app, ServeOptions& o) {
  CLI::App* command = app.add_subcommand("serve", "Serve a model over the OpenAI API");
  command->add_option("model,--model", o.model, "Folder of the checkpoint")->required()->type_name("MODEL");
  add_network(command, o);
  add_keys(command, o);
  add_engine(command, o);
  add_text(command, o);
  add_media(command, o.media);
  add_load(command, o.load);
  add_ranks(command, o.ranks);
  command
      ->add_flag(
          "--no-comm", o.no_comm,
          "Rank 0 runs alone, with --load-format dummy: what a GPU of so many takes. Answers mean nothing")
      ->group("Several GPUs");
  add_not_yet(command, o);
  add_without_effect(command, o);
  command->footer(
      "Examples:\n"
      "  sparrow serve /tmp/small\n"
      "  sparrow serve /models/m3 --served-model-name m3 --host 0.0.0.0 --api-key $KEY --max-model-len "
      "131072\n"
      "  sparrow serve /models/m3 --tensor-parallel-size 8\n"
      "  sparrow serve /models/m3 --ssl-certfile cert.pem --ssl-keyfile key.pem --api-key-file keys.txt\n"
      "  sparrow serve /models/m3 --hf-overrides '{\"text_config\": {\"rope_scaling\": {\"rope_type\": "
      "\"yarn\", \"factor\": 2,\n"
      "      \"original_max_position_embeddings\": 524288}, \"max_position_embeddings\": 1048576}}'\n"
      "  sparrow serve /models/m3 --allowed-media-domains images.example.com --limit-mm-per-prompt "
      "'{\"image\": 16}'\n"
      "\nEndpoints: /v1/chat/completions, /v1/completions, /v1/responses (and /v1/responses/ID), "
      "/v1/messages, "
      "/v1/messages/count_tokens,\n"
      "/v1/models, /tokenize, /detokenize, /health, /ready, /version, /metrics (Prometheus).\n");
  return command;
}

CLI::App* add_chat(CLI::App& app, ChatOptions& o) {
  CLI::App* command = app.add_subcommand("chat", "Talk to a server in the terminal, or through a pipe");
  command->add_option("--url", o.url, "The server, http or https (default http://127.0.0.1:8000)")
      ->type_name("URL");
  command->add_option("--api-key", o.api_key, "Key to send (default: SPARROW_API_KEY)")->type_name("KEY");
  CLI::Option* cacert = command->add_option(
      "--cacert", o.cacert, "https: trust the certificates in FILE (PEM) instead of the system's");
  cacert->type_name("FILE");
  command->add_flag("--insecure", o.insecure, "https: do not check the certificate")->excludes(cacert);
  command->add_option("--model", o.model, "Model to ask for (default: the server's first)")
      ->type_name("NAME");
  command->add_option("--system", o.system, "System message: what the model is told before the conversation")
      ->type_name("TEXT");
  command->add_option("--tools", o.tools, "Tools the model may call: a JSON list in OpenAI's format")
      ->type_name("FILE");
  command->add_option("--temperature", o.temperature, "0 is greedy (default: the server's)")
      ->check(number_in(0, 2))
      ->type_name("T");
  command
      ->add_option("--max-tokens", o.max_tokens,
                   "Most tokens in an answer (default: what the context leaves)")
      ->check(CLI::Range(1, 1 << 24))
      ->type_name("N");
  command->add_option("--thinking", o.thinking, "enabled, disabled or adaptive (default: the model's)")
      ->check(CLI::IsMember({"enabled", "disabled", "adaptive"}))
      ->type_name("MODE");
  command->add_flag("--one-turn", o.one_turn, "Take all of standard input as one question");
  command->add_flag("--raw", o.raw, "Print control characters as the server sent them");
  command->footer(
      "Examples:\n"
      "  sparrow chat\n"
      "  sparrow chat --url https://gpu-box:8000 --cacert box.pem --system 'Be terse.' --thinking disabled\n"
      "  echo 'What is sparse attention?' | sparrow chat --max-tokens 200\n"
      "  git diff | sparrow chat --one-turn --system 'Review this change.' > review.txt\n"
      "\nIn the terminal /help lists commands and keys. What you type is kept in\n"
      "~/.local/state/sparrow/chat_history.\n"
      "\nFrom a pipe each line is a turn of one conversation. A line that ends with \\ continues on the\n"
      "next one; --one-turn takes all lines as one turn. Answers go to stdout, thinking and errors to\n"
      "stderr. Exit code 2: an answer failed. Control characters in answers are shown as text, such as\n"
      "\\x1b, so that no server can control the terminal; --raw turns that off.\n");
  return command;
}

}  // namespace sparrow::cli
