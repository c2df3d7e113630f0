// SPDX-License-Identifier: Apache-2.0
// The whole server in one process: HTTP, service, engine and a tiny model.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "kv/block_table.h"
#include "server/api/errors.h"
#include "server/service.h"
#include "support/engine/engine_model.h"
#include "support/server/raw_client.h"
#include "support/variant.h"
#include "text/synthetic/synthetic_template.h"
#include "text/synthetic/tokenizer_training.h"

namespace sparrow::test {

inline constexpr int kBlocks = 96;

inline std::string json_post(std::string_view path, std::string_view body, const std::string& fields = "") {
  return post_request(path, body, "Content-Type: application/json\r\n" + fields);
}

// One model for all tests: what they share is read-only.
inline EngineModel& shared_model() {
  static EngineModel model("yarn", 2);
  return model;
}

inline const Tokenizer& shared_tokenizer() {
  static const Tokenizer tokenizer = [] {
    const int vocab = shared_model().config().vocab_size;
    Tokenizer made =
        Tokenizer::parse(train_tokenizer("the quick brown fox jumps over the lazy dog", vocab).value(),
                         trained_tokenizer_config())
            .value();
    made.reserve_ids(vocab);
    return made;
  }();
  return tokenizer;
}

class ServiceTest : public testing::Test {
 protected:
  void start(EngineOptions engine_options = {.cache_tokens = kBlocks * kBlockTokens,
                                             .cpu = {.threads = test_threads(), .isa = test_isa()},
                                             .max_model_tokens = 2048,
                                             .max_step_tokens = 256,
                                             .max_step_sequences = 64}) {
    engine_ = Engine::create(shared_model().config(), shared_model().weights(), engine_options).value();
    const int64_t context = std::min(engine_->limits().max_model_tokens, engine_->limits().cache_tokens);
    service_ = std::make_unique<Service>(
        *engine_,
        openai::ServedModel{
            .names = {"m3"},
            .tokenizer = shared_tokenizer(),
            .encode_cache = cache_,
            .chat_template = &template_,
            .defaults = {.vocab_size = shared_model().config().vocab_size, .max_model_tokens = context},
            .constraints = &constraints_},
        keys_, metrics_,
        ServiceOptions{.seed = 1,
                       .max_queued_requests = engine_options.max_queued_requests,
                       .keep_alive = keep_alive_,
                       .answer_memory = answer_memory_,
                       .stored_responses = stored_responses_,
                       .version = "test",
                       .allowed_hosts = allowed_hosts_});
    HttpServerOptions options{.port = 0, .num_threads = num_io_threads_};
    options.tell_error = error_response_to;
    options.check_head = [this](const HttpRequest& request) {
      if (before_) before_(request);
      return service_->check_head(request);
    };
    server_ = HttpServer::start(std::move(options), [this](Exchange& exchange) {
                return service_->handle(exchange);
              }).value();
  }

  ~ServiceTest() override {
    server_.reset();
    service_.reset();  // with what it makes in the background
    engine_.reset();
  }

  RawResponse ask(const std::string& bytes) const {
    RawClient client(server_->port());
    client.send(bytes);
    return client.read_response();
  }
  RawResponse chat(const std::string& extra, const std::string& fields = "") const {
    return ask(json_post("/v1/chat/completions", chat_body(extra), fields));
  }
  static std::string chat_body(const std::string& extra, const std::string& text = "the fox") {
    return R"({"messages":[{"role":"user","content":")" + text + R"("}],"temperature":0,"ignore_eos":true)" +
           extra + "}";
  }

  // All blocks are free or cached, and nobody runs, within that time.
  bool is_quiet_within(std::chrono::milliseconds patience) const {
    const auto deadline = std::chrono::steady_clock::now() + patience;
    while (std::chrono::steady_clock::now() < deadline) {
      const EngineStats stats = engine_->stats();
      if (stats.live_requests == 0 && stats.blocks_in_use == 0) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    return false;
  }

  EncodeCache cache_{shared_tokenizer()};
  ConstraintStore constraints_{shared_tokenizer(), shared_model().config().vocab_size};
  ChatTemplate template_ = ChatTemplate::parse(synthetic_chat_template()).value();
  ApiKeys keys_;
  std::vector<std::string> allowed_hosts_;
  Metrics metrics_;
  std::chrono::milliseconds keep_alive_{10'000};
  int64_t answer_memory_ = int64_t{1} << 30;
  StoreLimits stored_responses_;
  int num_io_threads_ = 2;
  std::function<void(const HttpRequest&)> before_;  // called on the io thread, before a request is looked at
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<Service> service_;
  std::unique_ptr<HttpServer> server_;
};

}  // namespace sparrow::test
