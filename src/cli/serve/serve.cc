// SPDX-License-Identifier: Apache-2.0
// `sparrow serve`: checkpoint, engine, service and HTTP server, put together; runs until it is told to stop.
#include "cli/serve/serve.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <thread>

#include "base/mapped_file.h"
#include "cli/args/byte_size.h"
#include "cli/load_model.h"
#include "server/access_log.h"
#include "server/auth.h"
#include "server/http/http.h"
#include "server/metrics.h"
#include "server/service.h"
#include "text/chat_template.h"
#include "text/tokenizer/encode_cache.h"

namespace sparrow::cli {
namespace {

constexpr std::chrono::seconds kDrainTime{60};
constexpr int kIoThreads = 2;

Error unsupported(std::string message) {
  return Error{Errc::kUnsupported, std::move(message)};
}

// Flags that make no sense or ask for something that is not there fail at once, before anything is loaded.
Status check_flags(const ServeOptions& o) {
  if (o.block_size != 128)
    return unsupported(
        strf("--block-size {}: only 128, because M3 selects blocks of 128 tokens and a block is "
             "one page of the cache",
             o.block_size));
  if (o.tensor_parallel_size != 1)
    return unsupported(strf("--tensor-parallel-size {}: only 1 yet", o.tensor_parallel_size));
  if (o.data_parallel_size != 1)
    return unsupported(strf("--data-parallel-size {}: only 1 yet", o.data_parallel_size));
  if (o.enable_expert_parallel) return unsupported("--enable-expert-parallel: not there yet");
  SPARROW_TRY(check(o.load));
  if (o.trust_request_chat_template)
    return unsupported(
        "--trust-request-chat-template: templates come from the model or --chat-template only");
  for (const std::string* parser : {&o.tool_call_parser, &o.reasoning_parser})
    if (*parser != "minimax_m3" && *parser != "none")
      return unsupported(strf("parser {}: minimax_m3 or none", *parser));
  if (!o.kv_cache_memory.empty()) SPARROW_TRY(parse_byte_size(o.kv_cache_memory, "--kv-cache-memory"));
  if (o.ssl_certfile.empty() != o.ssl_keyfile.empty())
    return Error{Errc::kInvalidArgument, "--ssl-certfile and --ssl-keyfile belong together"};
  return Ok{};
}

// What is wrong with flags and folder together is said before minutes of loading.
Status check_model(const ServeOptions& o) {
  const ModelConfig config = SPARROW_TRY(load_config(o.model, o.load.hf_overrides));
  std::error_code ec;
  if (!std::filesystem::exists(o.model / "tokenizer.json", ec))
    return Error{Errc::kNotFound, strf("{} has no tokenizer.json: a server needs the model's tokenizer files",
                                       quoted(o.model))};
  if (o.max_model_len > config.max_positions)
    return Error{Errc::kInvalidArgument,
                 strf("--max-model-len {} exceeds the model's {} positions (--hf-overrides can change them)",
                      o.max_model_len, config.max_positions)};
  return Ok{};
}

bool is_loopback(const std::string& host) {
  return host == "localhost" || host == "::1" || host.starts_with("127.");
}

Result<std::unique_ptr<ApiKeys>> read_keys(const ServeOptions& o) {
  auto keys = std::make_unique<ApiKeys>();
  const KeyLimits limits{.max_requests = o.max_requests_per_key, .max_tokens = o.max_tokens_per_key};
  for (const std::string& key : o.api_keys) SPARROW_TRY(keys->add(key, "", limits));
  if (!o.api_key_file.empty()) SPARROW_TRY(keys->add_file(o.api_key_file, limits));
  if (const char* list = std::getenv("SPARROW_API_KEY"))
    SPARROW_TRY(keys->add_list(list, "SPARROW_API_KEY", limits));
  if (keys->empty() && !is_loopback(o.host) && !o.allow_unauthenticated)
    return Error{
        Errc::kInvalidArgument,
        strf("--host {} is reachable by others: give --api-key, or --allow-unauthenticated", o.host)};
  return keys;
}

Result<std::optional<ChatTemplate>> read_template(const ServeOptions& o) {
  if (!o.chat_template.empty()) {
    const MappedFile file = SPARROW_TRY(MappedFile::open(o.chat_template));
    const auto bytes = file.bytes();
    return std::optional(
        SPARROW_TRY(ChatTemplate::parse({reinterpret_cast<const char*>(bytes.data()), bytes.size()})));
  }
  auto loaded = ChatTemplate::load(o.model);
  if (loaded.ok()) return std::optional(std::move(loaded).value());
  if (loaded.error().code != Errc::kNotFound) return loaded.error();
  std::fputs("sparrow: the model has no chat template: /v1/chat/completions will refuse\n", stderr);
  return std::optional<ChatTemplate>();
}

Result<EngineOptions> engine_options(const ServeOptions& o, const Checkpoint& checkpoint) {
  const int batch_tokens = o.max_num_batched_tokens > 0 ? o.max_num_batched_tokens
                           : o.load.device == "cuda"    ? kGpuBatchTokens
                                                        : kCpuBatchTokens;
  EngineOptions options{.threads = o.threads,
                        .max_model_tokens = o.max_model_len,
                        .max_batch_tokens = std::max(batch_tokens, o.max_num_seqs),
                        .max_sequences = o.max_num_seqs,
                        .prefix_caching = o.prefix_caching,
                        .max_queued_requests = o.max_queued_requests};
  if (!o.kv_cache_memory.empty()) {
    const int64_t bytes = SPARROW_TRY(parse_byte_size(o.kv_cache_memory, "--kv-cache-memory"));
    const int64_t block = SPARROW_TRY(cache_block_bytes(checkpoint.config(), o.load));
    if (bytes < block)
      return Error{Errc::kInvalidArgument,
                   strf("--kv-cache-memory {} is less than one block of {} bytes", o.kv_cache_memory, block)};
    options.cache_tokens = bytes / block * kBlockTokens;
  }
  return options;
}

openai::Defaults defaults_of(const ServeOptions& o, const ModelConfig& config, const Engine& engine) {
  openai::Defaults defaults{
      .vocab_size = config.vocab_size,
      .max_model_tokens = std::min(engine.limits().max_tokens, engine.limits().cache_tokens)};
  if (o.generation_config != "auto") return defaults;
  defaults.temperature = config.temperature.value_or(1.0);
  defaults.top_p = config.top_p.value_or(1.0);
  defaults.top_k = config.top_k.value_or(0);
  return defaults;
}

void greet(const HttpServer& server, const std::string& name, const openai::Defaults& defaults,
           bool has_keys) {
  std::fputs(strf("serving {} at {}, up to {} tokens a request\n\n"
                  "  curl {}/v1/chat/completions{} -H 'Content-Type: application/json' \\\n"
                  "    -d '{{\"messages\": [{{\"role\": \"user\", \"content\": \"Hello\"}}], \"max_tokens\": "
                  "32}}'\n\n"
                  "Ctrl-C stops.\n",
                  name, server.url(), defaults.max_model_tokens, server.url(),
                  has_keys ? " -H \"Authorization: Bearer $SPARROW_API_KEY\"" : "")
                 .c_str(),
             stderr);
}

// Blocks the signals that end the program in all threads that are started from now on.
sigset_t block_signals() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGINT);
  sigaddset(&signals, SIGTERM);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  return signals;
}

}  // namespace

Status run_serve(const ServeOptions& options) {
  SPARROW_TRY(check_flags(options));
  const auto keys = SPARROW_TRY(read_keys(options));
  const sigset_t signals = block_signals();
  SPARROW_TRY(check_model(options));
  const Checkpoint checkpoint = SPARROW_TRY(load_checkpoint(options.model, options.load));
  const auto tokenizer = SPARROW_TRY(load_tokenizer(options.model, checkpoint.config()));
  const std::optional<ChatTemplate> chat_template = SPARROW_TRY(read_template(options));
  const auto engine =
      SPARROW_TRY(start_engine(checkpoint, SPARROW_TRY(engine_options(options, checkpoint)), options.load));

  EncodeCache encode_cache(*tokenizer);
  Metrics metrics;
  std::vector<std::string> names = options.served_model_names;
  if (names.empty()) names.push_back(options.model.string());
  const openai::Defaults defaults = defaults_of(options, checkpoint.config(), *engine);
  const openai::ServedModel model{.names = names,
                                  .tokenizer = *tokenizer,
                                  .encode_cache = encode_cache,
                                  .chat_template = chat_template ? &*chat_template : nullptr,
                                  .defaults = defaults,
                                  .parse_reasoning = options.reasoning_parser != "none",
                                  .parse_tools = options.tool_call_parser != "none"};
  ServiceOptions service_options{.seed = options.seed, .version = SPARROW_VERSION};
  if (options.queue_timeout_seconds > 0)
    service_options.queue_timeout = std::chrono::seconds(options.queue_timeout_seconds);
  Service service(*engine, model, *keys, metrics, service_options);

  const AccessLog log(STDERR_FILENO, options.log_format == "json" ? LogFormat::kJson : LogFormat::kHuman);
  HttpServerOptions http{.host = options.host,
                         .port = options.port,
                         .num_threads = kIoThreads,
                         .tls_cert_file = options.ssl_certfile,
                         .tls_key_file = options.ssl_keyfile,
                         .allowed_origins = options.allowed_origins};
  http.check_head = [&service](const HttpRequest& request) { return service.check_head(request); };
  http.on_done = [&log](const AccessRecord& record) { log.write(record); };
  const auto server = SPARROW_TRY(
      HttpServer::start(http, [&service](Exchange& exchange) { return service.handle(exchange); }));
  greet(*server, names[0], defaults, !keys->empty());

  int signal = 0;
  sigwait(&signals, &signal);
  log.write_line("stopping: answers that have begun are finished; Ctrl-C again ends them\n");
  // A second signal must end the wait.
  std::thread([signals] {
    int again = 0;
    sigwait(&signals, &again);
    std::_Exit(130);
  }).detach();
  server->drain(std::chrono::steady_clock::now() + kDrainTime);
  server->stop();
  engine->stop();
  return Ok{};
}

}  // namespace sparrow::cli
