// SPDX-License-Identifier: Apache-2.0
#include "cli/serve/serve_checks.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "base/files/mapped_file.h"
#include "base/json/json.h"
#include "base/utf8.h"
#include "checkpoint/checkpoint.h"
#include "cli/args/byte_size.h"
#include "cli/load_model.h"
#include "cli/serve/serve_media.h"
#include "engine/sim/cost_model.h"
#include "kv/block_table.h"
#include "model/sharding.h"

namespace sparrow::cli {
namespace {

// What a step waits for at most: some tens of milliseconds on a GPU; one picture of middling size on a CPU.
constexpr int64_t kCpuStepPatches = 1024, kGpuStepPatches = 4096;

constexpr size_t kMaxNameBytes = 256;

Error unsupported(std::string message) {
  return Error{Errc::kUnsupported, std::move(message)};
}

// Names appear in answers, logs and metrics.
Status check_name(const std::string& name) {
  const auto is_control = [](unsigned char c) { return c < 0x20 || c == 0x7f; };
  if (!name.empty() && name.size() <= kMaxNameBytes && valid_utf8_prefix(name) == name.size() &&
      std::none_of(name.begin(), name.end(), is_control))
    return Ok{};
  return Error{Errc::kInvalidArgument,
               strf("--served-model-name {}: must be 1 to {} bytes of text without control characters",
                    json_quoted(name.substr(0, kMaxNameBytes)), kMaxNameBytes)};
}

}  // namespace

Status check_flags(const ServeOptions& o) {
  if (o.block_size != 128)
    return unsupported(
        strf("--block-size {}: only 128, because M3 selects blocks of 128 tokens and a block is "
             "one page of the cache",
             o.block_size));
  SPARROW_TRY(check(o.load));
  SPARROW_TRY(o.ranks.check_device(o.load.device));
  if (o.no_comm && (o.load.load_format != "dummy" || o.load.device != "cuda" || o.ranks.grid.dp > 1))
    return unsupported(
        "--no-comm: a GPU's part of a model with random weights (--load-format dummy), in one group");
  if (o.load.device == "sim" && o.ranks.grid.world() > 1)
    return unsupported("--device sim: one process stands for all ranks; the cost model is that of a grid");
  if (o.trust_request_chat_template)
    return unsupported(
        "--trust-request-chat-template: templates come from the model or --chat-template only");
  for (const auto& [flag, parser] :
       {std::pair("--tool-call-parser", &o.tool_call_parser), {"--reasoning-parser", &o.reasoning_parser}})
    if (*parser != "minimax_m3" && *parser != "none")
      return unsupported(strf("{} {}: minimax_m3 or none", flag, *parser));
  if (!o.kv_cache_memory.empty()) SPARROW_TRY(parse_byte_size(o.kv_cache_memory, "--kv-cache-memory"));
  SPARROW_TRY(parse_byte_size(o.max_answer_size, "--max-answer-size"));
  SPARROW_TRY(parse_byte_size(o.max_answer_memory, "--max-answer-memory"));
  SPARROW_TRY(response_bytes(o));
  SPARROW_TRY(media_settings(o.media));
  if (o.ssl_certfile.empty() != o.ssl_keyfile.empty())
    return Error{Errc::kInvalidArgument, "--ssl-certfile and --ssl-keyfile belong together"};
  for (const std::string& name : o.served_model_names) SPARROW_TRY(check_name(name));
  SPARROW_TRY(allowed_origins(o));
  if (SPARROW_TRY(event_options(o)).enabled && !o.prefix_caching)
    return Error{Errc::kInvalidArgument,
                 "--kv-events-config: there are no events without --enable-prefix-caching"};
  return Ok{};
}

Result<std::vector<std::string>> allowed_origins(const ServeOptions& o) {
  std::vector<std::string> origins = o.allowed_origins;
  // A list in brackets has been taken apart with the other flags, but for the quotes of JSON.
  for (std::string& origin : origins)
    if (origin.size() > 1 && origin.starts_with('"') && origin.ends_with('"'))
      origin = origin.substr(1, origin.size() - 2);
  for (const std::string& origin : origins) {
    const size_t host = origin.find("://");
    const bool is_origin = host != origin.npos && host > 0 && host + 3 < origin.size() &&
                           origin.find('/', host + 3) == origin.npos;
    if (origin != "*" && !is_origin)
      return Error{Errc::kInvalidArgument,
                   strf("--allowed-origins must be *, or origins such as https://app.example, got {}",
                        json_quoted(excerpt(origin)))};
  }
  return origins;
}

Result<int64_t> response_bytes(const ServeOptions& o) {
  if (o.response_memory == "0") return int64_t{0};
  return parse_byte_size(o.response_memory, "--response-memory");
}

Result<ModelConfig> read_config(const ServeOptions& o) {
  const ModelConfig config = SPARROW_TRY(load_config(o.model, o.load.hf_overrides));
  std::error_code ec;
  if (!std::filesystem::exists(o.model / "tokenizer.json", ec))
    return Error{Errc::kNotFound, strf("{} has no tokenizer.json: a server needs the model's tokenizer files",
                                       quoted(o.model))};
  SPARROW_TRY(validate(config, o.ranks.grid));
  if (o.dtype == "bfloat16" && config.dtype != DType::kBF16)
    return unsupported("--dtype bfloat16: this model computes in float32; leave the flag out");
  if (o.max_model_len > config.max_positions)
    return Error{Errc::kInvalidArgument,
                 strf("--max-model-len {} exceeds the model's {} positions (--hf-overrides can change them)",
                      o.max_model_len, config.max_positions)};
  return config;
}

Result<KvEventOptions> event_options(const ServeOptions& o) {
  return o.kv_events_config.empty() ? KvEventOptions() : parse_kv_event_options(o.kv_events_config);
}

bool is_loopback(const std::string& host) {
  const bool is_name = host.find_first_not_of("0123456789.") != std::string::npos;
  return host == "localhost" || host == "::1" || (host.starts_with("127.") && !is_name);
}

Result<std::unique_ptr<ApiKeys>> read_keys(const ServeOptions& o) {
  auto keys = std::make_unique<ApiKeys>();
  KeyLimits limits{.max_requests = o.max_requests_per_key, .max_tokens = o.max_tokens_per_key};
  if (!o.allowed_priorities.empty()) {
    const auto range = PriorityRange::parse(o.allowed_priorities);
    if (!range)
      return Error{
          Errc::kInvalidArgument,
          strf("--allowed-priorities must be LO..HI, such as -10..10, got {}", o.allowed_priorities)};
    limits.priorities = *range;
  }
  keys->set_anonymous_limits({.priorities = limits.priorities});
  for (const std::string& key : o.api_keys)
    if (const Status added = keys->add(key, "", limits); !added.ok())
      return Error{added.error().code, strf("--api-key: {}", added.error().message)};
  if (!o.api_key_file.empty()) SPARROW_TRY(keys->add_file(o.api_key_file, limits));
  if (const char* list = std::getenv("SPARROW_API_KEY"))
    SPARROW_TRY(keys->add_list(list, "SPARROW_API_KEY", limits));
  if (keys->empty() && !is_loopback(o.host) && !o.allow_unauthenticated)
    return Error{
        Errc::kInvalidArgument,
        strf("--host {} can be reached from other machines: give --api-key, or --allow-unauthenticated",
             o.host)};
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
  std::fputs("sparrow: the model has no chat template: /v1/chat/completions will refuse requests\n", stderr);
  return std::optional<ChatTemplate>();
}

Result<EngineOptions> engine_options(const ServeOptions& o, const ModelConfig& config) {
  const bool on_cpu = o.load.device == "cpu";
  const int batch_tokens = o.max_step_tokens > 0 ? o.max_step_tokens
                           : on_cpu              ? kCpuStepTokens
                                                 : kGpuStepTokens;
  EngineOptions options{.cpu = {.threads = o.threads},
                        .max_model_tokens = o.max_model_len,
                        .max_step_tokens = std::max(batch_tokens, o.max_step_sequences),
                        .max_step_sequences = o.max_step_sequences,
                        .max_step_patches = on_cpu ? kCpuStepPatches : kGpuStepPatches,
                        .prefix_caching = o.prefix_caching,
                        .max_queued_requests = o.max_queued_requests};
  options.grid = o.ranks.grid;
  if (o.load.device == "sim") options.grid.dp = SPARROW_TRY(CostModel::read(o.load.cost_model)).groups;
  if (o.media.max_step_patches > 0) options.max_step_patches = o.media.max_step_patches;
  const int64_t block = SPARROW_TRY(cache_block_bytes(config, o.load, o.ranks.grid));
  if (!o.kv_cache_memory.empty()) {
    const int64_t bytes = SPARROW_TRY(parse_byte_size(o.kv_cache_memory, "--kv-cache-memory"));
    if (bytes < block)
      return Error{Errc::kInvalidArgument,
                   strf("--kv-cache-memory {} is less than one block of {} bytes", o.kv_cache_memory, block)};
    if (on_cpu && bytes > machine_bytes())
      return Error{Errc::kInvalidArgument,
                   strf("--kv-cache-memory {} is more than this machine's {:.1f} GiB", o.kv_cache_memory,
                        static_cast<double>(machine_bytes()) / 0x1p30)};
    options.cache_tokens = bytes / block * kBlockTokens;
  } else if (o.load.device == "cpu") {
    options.cache_tokens = default_cache_tokens(block, machine_bytes() / o.ranks.grid.world());
  }
  // How much fits on a GPU is known when the weights are there, and of one that is simulated its model knows.
  if (options.cache_tokens > 0) SPARROW_TRY(check_context(o, config, options.cache_tokens));
  return options;
}

Status check_context(const ServeOptions& o, const ModelConfig& config, int64_t cache_tokens) {
  if (o.max_model_len <= cache_tokens) return Ok{};
  const int64_t block = SPARROW_TRY(cache_block_bytes(config, o.load, o.ranks.grid));
  const int64_t megabytes = (blocks_for_tokens(o.max_model_len) * block + (1 << 20) - 1) >> 20;
  return Error{Errc::kInvalidArgument,
               strf("--max-model-len {}: the cache holds {} tokens; give --kv-cache-memory {}M, "
                    "or --max-model-len auto for what fits",
                    o.max_model_len, cache_tokens, megabytes)};
}

std::vector<std::string> allowed_hosts(const ServeOptions& o, bool has_keys) {
  const bool exposed = is_loopback(o.host) && !has_keys;
  if (!exposed && o.allowed_hosts.empty()) return {};
  std::vector<std::string> names = {"localhost", "127.0.0.1", "[::1]"};
  const std::string bound = o.host.find(':') == std::string::npos ? o.host : strf("[{}]", o.host);
  if (std::find(names.begin(), names.end(), bound) == names.end()) names.push_back(bound);
  names.insert(names.end(), o.allowed_hosts.begin(), o.allowed_hosts.end());
  return names;
}

}  // namespace sparrow::cli
