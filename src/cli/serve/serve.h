// SPDX-License-Identifier: Apache-2.0
// `sparrow serve`: its options. The flags are vLLM's where vLLM has them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "cli/load_options.h"
#include "cli/rank_flags.h"
#include "cli/serve/media_flags.h"

namespace sparrow::cli {

struct ServeOptions {
  std::filesystem::path model;
  std::vector<std::string> served_model_names;  // default: the model's path as given
  std::string host = "127.0.0.1";
  int port = 8000;

  std::vector<std::string> api_keys;
  std::filesystem::path api_key_file;
  bool allow_unauthenticated = false;
  int max_requests_per_key = 0;  // 0: no limit
  int64_t max_tokens_per_key = 0;
  std::string allowed_priorities;  // LO..HI; empty: 0..0
  std::filesystem::path ssl_certfile, ssl_keyfile;
  std::vector<std::string> allowed_origins;  // or one JSON list of them
  std::vector<std::string> allowed_hosts;    // beside loopback's and the bound one
  std::optional<int> drain_delay_seconds;    // default: 5 off loopback, else 0

  int64_t max_model_len = 0;  // 0, "auto": what the model supports and the cache holds
  int max_step_sequences = 256;
  int max_step_tokens = 0;  // 0: what suits the device
  int max_queued_requests = 1024;
  int queue_timeout_seconds = 0;  // 0: wait for ever
  std::string max_answer_size = "64M", max_answer_memory = "1G";
  std::string response_memory = "256M";  // of stored responses; 0: none are
  int max_stored_responses = 1000;       // of a key
  int response_expiry_seconds = 3600;
  std::string kv_cache_memory;  // "4G"; empty: by the machine's memory
  int block_size = 128;
  bool prefix_caching = true;
  std::string kv_events_config;  // JSON; empty: nobody is told what the cache holds
  int threads = 0;

  LoadOptions load;
  RankFlags ranks;
  bool no_comm = false;  // one rank of the grid runs, alone, with random weights: for measurements

  std::filesystem::path chat_template;
  std::string tool_call_parser = "minimax_m3", reasoning_parser = "minimax_m3";  // "none" turns one off
  MediaFlags media;
  bool enable_auto_tool_choice = true;     // always so; known from other servers
  std::string generation_config = "auto";  // "auto", or "none" (also "vllm")
  std::optional<uint64_t> seed;
  std::string log_format = "human";

  std::string dtype = "auto";  // or "bfloat16", where the model has that

  // Known from other servers, and not here yet.
  bool trust_request_chat_template = false;
};

Result<int> run_serve(ServeOptions options);  // the exit code

}  // namespace sparrow::cli
