// SPDX-License-Identifier: Apache-2.0
// A random life of an engine: clients that arrive, read slowly, cancel, sample, want several choices, on few
// blocks and in small steps. Whatever happens, a greedy output must be the one of its prompt alone.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <random>

#include "engine/engine_core.h"
#include "support/engine/engine_model.h"

namespace sparrow::test {

// What the scenarios have been through, to know that they were worth something.
struct Coverage {
  int64_t outputs = 0, cancelled = 0, forked = 0, hits = 0, hits_inside_a_block = 0, chunked = 0;
  int64_t preemptions = 0, forced = 0;
  int64_t pictures = 0, hits_inside_pictures = 0;  // that requests had; requests whose prefix ended there
  int64_t encoded = 0;                             // segments
  int64_t mismatches = 0;                          // outputs that differ from their prompt's alone
  // Greedy ids up to an output's first difference, and the differences, where the best logit leads by more
  // than 1%: what kernels that round in another order must still agree on.
  int64_t sure_ids = 0, sure_mismatches = 0;

  void print(int num_seeds) const;
};

class EqualityScenario {
 public:
  static constexpr int kMaxNewTokens = 10;

  // On the ranks of a grid, which have threads of their own. With `pictures`, which the model must
  // take, there are some in most prompts.
  EqualityScenario(EngineModel& model, uint64_t seed, const Grid& grid = {}, bool pictures = false);

  // Called after every step; may change the cache.
  using Hook = std::function<void(EngineCore&)>;
  void run(Coverage& coverage, const Hook& hook = {});

 private:
  struct Client {
    EngineModel::Prompt prompt;
    Request request;
    int arrives = 0;      // step
    int cancels = -1;     // step; -1: never
    int reads_every = 1;  // steps

    std::shared_ptr<TokenChannel> channel;
    std::unique_ptr<TokenStream> stream;
    std::vector<std::vector<int32_t>> ids;           // [choice]
    std::vector<std::optional<FinishReason>> ended;  // [choice]
    int64_t cached_tokens = 0;
  };

  int below(int bound) { return static_cast<int>(random_() % static_cast<uint64_t>(bound)); }
  int pick(std::initializer_list<int> values) {
    return values.begin()[below(static_cast<int>(values.size()))];
  }
  EngineModel::Prompt make_prompt();
  EngineModel::Prompt make_prompt_with_pictures();
  Client make_client();
  void act(EngineCore& core, size_t i, int step, SchedulerTime now);
  static void read(Client& client);
  void compare(const Client& client, Coverage& coverage);

  EngineModel& model_;
  const bool pictures_;
  std::mt19937_64 random_;
  EngineOptions options_;
  std::vector<Client> clients_;
};

}  // namespace sparrow::test
