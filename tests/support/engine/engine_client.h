// SPDX-License-Identifier: Apache-2.0
// The engine as its tests use it: a small one, greedy requests, and everything a stream has to say.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "kv/block_table.h"
#include "support/engine/engine_model.h"
#include "support/variant.h"

namespace sparrow::test {

inline EngineModel& yarn_model() {
  static EngineModel model("yarn", /*top_k_blocks=*/2);
  return model;
}

inline EngineOptions small_options() {
  return {.cache_tokens = 40 * kBlockTokens,
          .cpu = {.threads = test_threads(), .isa = test_isa()},
          .max_step_tokens = 128,
          .max_step_sequences = 16};
}

inline std::unique_ptr<Engine> start_engine(const EngineOptions& options = small_options()) {
  return Engine::create(yarn_model().config(), yarn_model().weights(), options).value();
}

inline Request greedy(std::vector<int32_t> prompt, int64_t max_tokens) {
  return {.prompts = {std::move(prompt)},
          .sampling = {.temperature = 0},
          .max_tokens = max_tokens,
          .ignore_eos = true};
}

struct Output {
  std::vector<int32_t> ids;
  std::optional<FinishReason> finish;
  std::string error;
  int64_t cached_tokens = 0;
  std::vector<TokenLogprobs> logprobs, prompt_logprobs;
};

// Everything a stream still has to say, by output.
inline std::vector<Output> read_all(TokenStream& stream, int num_outputs = 1) {
  std::vector<Output> outputs(num_outputs);
  while (auto event = stream.next()) {
    Output& output = outputs.at(event->output);
    EXPECT_FALSE(output.finish) << "an event after the last one";
    if (event->id) output.ids.push_back(*event->id);
    output.finish = event->finish;
    output.error += event->error;
    output.cached_tokens = event->cached_tokens;
    if (event->logprobs) output.logprobs.push_back(*event->logprobs);
    for (TokenLogprobs& entry : event->prompt_logprobs) output.prompt_logprobs.push_back(std::move(entry));
  }
  return outputs;
}

inline Output run_one(Engine& engine, Request request) {
  const auto stream = engine.submit(std::move(request)).value();
  return read_all(*stream).front();
}

}  // namespace sparrow::test
