// SPDX-License-Identifier: Apache-2.0
// `sparrow serve`: checkpoint, engine, service and HTTP server, put together; runs until it is told to stop.
#include "cli/serve/serve.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <thread>

#include "cli/args/byte_size.h"
#include "cli/load_model.h"
#include "cli/ranks/rank_process.h"
#include "cli/serve/serve_checks.h"
#include "cli/serve/serve_media.h"
#include "cli/serve/signals.h"
#include "server/access_log.h"
#include "server/api/errors.h"
#include "server/auth.h"
#include "server/events/kv_event_publisher.h"
#include "server/http/http.h"
#include "server/metrics.h"
#include "server/service.h"
#include "text/chat_template.h"
#include "text/tokenizer/encode_cache.h"

namespace sparrow::cli {
namespace {

constexpr std::chrono::seconds kDrainTime{60};
constexpr int kIoThreads = 2;
// Balancers look every few seconds; where only this machine can connect, there is none.
constexpr int kDrainDelaySeconds = 5;

openai::Defaults defaults_of(const ServeOptions& o, const ModelConfig& config, const Engine& engine) {
  openai::Defaults defaults{
      .vocab_size = config.vocab_size,
      .max_model_tokens = std::min(engine.limits().max_model_tokens, engine.limits().cache_tokens)};
  if (o.generation_config != "auto") return defaults;
  defaults.temperature = config.temperature.value_or(1.0);
  defaults.top_p = config.top_p.value_or(1.0);
  defaults.top_k = config.top_k.value_or(0);
  return defaults;
}

void greet(const HttpServer& server, const std::string& name, const openai::Defaults& defaults,
           int64_t model_tokens, bool has_keys, bool asked) {
  if (defaults.max_model_tokens < model_tokens && !asked)
    std::fputs(strf("the model takes {} tokens a request, the cache holds {}: --kv-cache-memory makes it "
                    "larger\n",
                    model_tokens, defaults.max_model_tokens)
                   .c_str(),
               stderr);
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

// Holds the port from here on, so that nobody else takes it while the model is loaded, and tells who asks.
Result<std::unique_ptr<HttpServer>> listen(const ServeOptions& o, const AccessLog& log,
                                           const std::atomic<Service*>& service) {
  std::vector<std::string> origins = SPARROW_TRY(allowed_origins(o));
  HttpServerOptions http{.host = o.host,
                         .port = o.port,
                         .num_threads = kIoThreads,
                         .tls_cert_file = o.ssl_certfile,
                         .tls_key_file = o.ssl_keyfile,
                         .allowed_origins = std::move(origins)};
  http.check_head = [&service](const HttpRequest& request) -> std::optional<HttpResponse> {
    if (const Service* loaded = service) return loaded->check_head(request);
    HttpResponse response =
        error_response_to(request, {.status = 503, .message = "the model is being loaded"});
    response.headers.add("Retry-After", "5");
    return response;
  };
  http.tell_error = error_response_to;
  http.on_done = [&log](const AccessRecord& record) { log.write(record); };
  return HttpServer::start(std::move(http),
                           [&service](Exchange& exchange) { return service.load()->handle(exchange); });
}

// What is of no use is told, and leaves everything as it was.
void reload_files(const ServeOptions& o, ApiKeys& keys, HttpServer& server, const AccessLog& log) {
  const auto tell = [&log](const char* what, const Status& status) {
    log.write_line(status.ok()
                       ? strf("{} read again\n", what)
                       : strf("{} not read again, the old ones stay: {}\n", what, status.error().message));
  };
  if (!o.api_key_file.empty()) {
    const auto fresh = read_keys(o);
    if (fresh.ok()) keys.replace_with(*fresh.value());
    tell("keys", fresh.ok() ? Status(Ok{}) : Status(fresh.error()));
  }
  if (!o.ssl_certfile.empty()) tell("certificate and key", server.reload_tls());
}

// Balancers get time to see that /ready says no; then what has begun is finished.
void end_serving(const ServeOptions& o, int signal, HttpServer& server, ServeMedia& media,
                 const AccessLog& log) {
  const int default_delay = is_loopback(o.host) ? 0 : kDrainDelaySeconds;
  const int delay = signal == SIGTERM ? o.drain_delay_seconds.value_or(default_delay) : 0;
  server.announce_drain();
  if (delay > 0) {
    log.write_line(strf("stopping in {} seconds: /ready says no, requests are still answered\n", delay));
    std::this_thread::sleep_for(std::chrono::seconds(delay));
  }
  log.write_line("stopping: answers that have begun are finished; Ctrl-C again ends them\n");
  media.stop();
  server.drain(std::chrono::steady_clock::now() + kDrainTime);
  server.stop();
}

// Null: nobody wants to know what the cache holds.
Result<std::unique_ptr<KvEventPublisher>> publish_events(const ServeOptions& o, EngineOptions& for_engine) {
  const KvEventOptions options = SPARROW_TRY(event_options(o));
  if (!options.enabled) return std::unique_ptr<KvEventPublisher>();
  auto publisher = SPARROW_TRY(KvEventPublisher::start(options, for_engine.grid.dp));
  for_engine.cache_events = publisher->sink();
  for (const std::string& line : publisher->endpoints())
    std::fputs(strf("events of the prefix cache, with its token ids, at {}\n", line).c_str(), stderr);
  return publisher;
}

EngineOptions options_of_rank(const EngineOptions& options, const ServeOptions& o,
                              const std::optional<RankPlace>& place) {
  return place ? rank_options(options, o.ranks, *place) : options;
}

Result<std::unique_ptr<RankProcess>> join(const ServeOptions& o, const RankPlace& place,
                                          const EngineOptions& for_engine) {
  return RankProcess::join(o.ranks, place, config_digest(o.model, o.load, for_engine));
}

Result<int> follow(ServeOptions options, const RankPlace& place, std::unique_ptr<RankProcess>& ranks) {
  leave_signals_to_rank_0();
  resolve_device(options.load);
  SPARROW_TRY(check_flags(options));
  const ModelConfig config = SPARROW_TRY(read_config(options));
  options.load.vision = !options.media.language_model_only;
  const EngineOptions for_engine =
      options_of_rank(SPARROW_TRY(engine_options(options, config)), options, place);
  ranks = SPARROW_TRY(join(options, place, for_engine));
  const Checkpoint checkpoint = SPARROW_TRY(load_checkpoint(options.model, options.load, ranks.get()));
  return follow_rank_0(checkpoint, for_engine, options.load, *ranks);
}

// `place`: this is rank 0 of several.
Result<int> serve(ServeOptions options, const std::optional<RankPlace>& place,
                  std::unique_ptr<RankProcess>& ranks) {
  // Before any other thread: a driver's, which would not hold signals back, would die of the first.
  Signals signals(/*with_hangup=*/!options.api_key_file.empty() || !options.ssl_certfile.empty());
  resolve_device(options.load);
  SPARROW_TRY(check_flags(options));
  const auto keys = SPARROW_TRY(read_keys(options));
  const ModelConfig config = SPARROW_TRY(read_config(options));
  options.load.vision = !options.media.language_model_only;
  const auto tokenizer = SPARROW_TRY(load_tokenizer(options.model, config));
  const std::optional<ChatTemplate> chat_template = SPARROW_TRY(read_template(options));
  EngineOptions for_engine = options_of_rank(SPARROW_TRY(engine_options(options, config)), options, place);
  const AccessLog log(STDERR_FILENO, options.log_format == "json" ? LogFormat::kJson : LogFormat::kHuman);
  std::atomic<Service*> loaded{nullptr};
  const auto server = SPARROW_TRY(listen(options, log, loaded));

  if (place) ranks = SPARROW_TRY(join(options, *place, for_engine));
  const Checkpoint checkpoint = SPARROW_TRY(load_checkpoint(options.model, options.load, ranks.get()));
  const auto publisher = SPARROW_TRY(publish_events(options, for_engine));
  const auto engine = SPARROW_TRY(start_engine(checkpoint, for_engine, options.load, ranks.get()));
  const EngineWatch watch(ranks.get(), *engine, [&log](const Error& failure) {
    log.write_line(strf("stopping: {}\n", failure.message));
  });
  SPARROW_TRY(check_context(options, config, engine->limits().cache_tokens));

  const auto media = SPARROW_TRY(ServeMedia::start(options.media, config, *engine));
  EncodeCache encode_cache(*tokenizer);
  ConstraintStore constraints(*tokenizer, checkpoint.config().vocab_size);
  Metrics metrics;
  std::vector<std::string> names = options.served_model_names;
  if (names.empty()) names.push_back(options.model.string());
  openai::Defaults defaults = defaults_of(options, checkpoint.config(), *engine);
  defaults.max_answer_bytes = SPARROW_TRY(parse_byte_size(options.max_answer_size, "--max-answer-size"));
  const openai::ServedModel model{.names = names,
                                  .root = options.model.string(),
                                  .tokenizer = *tokenizer,
                                  .encode_cache = encode_cache,
                                  .chat_template = chat_template ? &*chat_template : nullptr,
                                  .defaults = defaults,
                                  .parse_reasoning = options.reasoning_parser != "none",
                                  .parse_tools = options.tool_call_parser != "none",
                                  .constraints = &constraints,
                                  .media = media->served()};
  ServiceOptions service_options{.seed = options.seed,
                                 .max_queued_requests = options.max_queued_requests,
                                 .version = SPARROW_VERSION,
                                 .allowed_hosts = allowed_hosts(options, !keys->empty())};
  if (options.queue_timeout_seconds > 0)
    service_options.queue_timeout = std::chrono::seconds(options.queue_timeout_seconds);
  service_options.answer_memory =
      SPARROW_TRY(parse_byte_size(options.max_answer_memory, "--max-answer-memory"));
  service_options.stored_responses = {.max_bytes = SPARROW_TRY(response_bytes(options)),
                                      .max_responses = options.max_stored_responses,
                                      .expiry = std::chrono::seconds(options.response_expiry_seconds)};
  Service service(*engine, model, *keys, metrics, service_options);
  if (publisher) publisher->add_metrics(metrics, names[0]);
  loaded = &service;
  greet(*server, names[0], defaults, config.max_positions, !keys->empty(), options.max_model_len > 0);

  const int signal = signals.wait([&] { reload_files(options, *keys, *server, log); });
  end_serving(options, signal, *server, *media, log);
  engine->stop();
  return 0;
}

}  // namespace

Result<int> run_serve(ServeOptions options) {
  std::unique_ptr<RankProcess> ranks;
  if (options.ranks.grid.world() == 1 || options.no_comm) {
    if (!options.no_comm) SPARROW_TRY(options.ranks.check_alone());
    return serve(std::move(options), std::nullopt, ranks);
  }
  // What is wrong for all ranks is said once.
  SPARROW_TRY(check_flags(options));
  SPARROW_TRY(read_keys(options));
  SPARROW_TRY(read_config(options));
  const std::optional<RankPlace> place = SPARROW_TRY(own_place(options.ranks));
  if (!place) return start_ranks(options.ranks, "serve");
  Result<int> code =
      place->rank > 0 ? follow(std::move(options), *place, ranks) : serve(std::move(options), place, ranks);
  return ranks ? ranks->ended(std::move(code)) : code;
}

}  // namespace sparrow::cli
