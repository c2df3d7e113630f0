// SPDX-License-Identifier: Apache-2.0
#include "support/engine/equality_scenario.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>

#include "support/engine/runs_constraint.h"
#include "support/engine/thread_instance.h"
#include "support/variant.h"

namespace sparrow::test {
namespace {

// More steps than any scenario needs by far: past it, somebody starves.
constexpr int kMaxSteps = 20000;
constexpr float kSureMargin = 0.01f;

}  // namespace

void Coverage::print(int num_seeds) const {
  std::printf(
      "%d seeds: %ld of %ld outputs equal; %ld requests chunked, %ld with a prefix hit, %ld of them inside a "
      "block, %ld with n > 1, %ld with forced ids, %ld cancelled; %ld preemptions\n",
      num_seeds, outputs - mismatches, outputs, chunked, hits, hits_inside_a_block, forked, forced, cancelled,
      preemptions);
}

EqualityScenario::EqualityScenario(EngineModel& model, uint64_t seed, const Grid& grid, bool pictures)
    : model_(model), pictures_(pictures), random_(seed) {
  int64_t longest = 0;
  int most_choices = 1;
  const int num_clients = 3 + below(5);
  for (int i = 0; i < num_clients; ++i) {
    clients_.push_back(make_client());
    const Client& client = clients_.back();
    most_choices = std::max(most_choices, client.request.n);
    longest = std::max(longest, static_cast<int64_t>(client.prompt.ids.size()) + client.request.max_tokens);
  }
  options_.grid = grid;
  options_.device = model_.device();
  options_.gpu = model_.gpu();
  options_.cache_tokens = (blocks_for_tokens(longest) + (below(2) ? below(3) : below(20))) * kBlockTokens;
  options_.cpu.threads = test_threads();
  options_.cpu.isa = test_isa();
  options_.bound_steps = false;  // chunks are drawn, not timed
  options_.max_step_sequences = std::max(most_choices, 1 + below(8));
  options_.max_step_tokens =
      std::max(options_.max_step_sequences, pick({5, 33, 64, 127, 128, 129, 200, 512}));
  options_.prefix_caching = below(8) != 0;
  options_.events_per_output = below(3) == 0 ? 1 : 16;
  options_.block_order_seed = random_();
  options_.run_ahead = below(2) == 0;
  if (!pictures_) return;
  // The largest segment, and little more.
  options_.cpu.feature_tokens = options_.gpu.feature_tokens = 160 + below(3) * 100;
  options_.max_step_patches = pick({1, 300, 4096});
}

void EqualityScenario::run(Coverage& coverage, const Hook& hook) {
  std::unique_ptr<ThreadInstance> ranks;
  if (options_.grid.world() > 1)
    ranks = std::make_unique<ThreadInstance>(model_.config(), model_.weights(), options_);
  const auto core = (ranks ? EngineCore::create(model_.config(), ranks->take_runner(), options_)
                           : EngineCore::create(model_.config(), model_.weights(), options_))
                        .value();
  const SchedulerTime start{};
  int step = 0;
  for (bool left = true; left; ++step) {
    ASSERT_LT(step, kMaxSteps) << "somebody starves";
    const SchedulerTime now = start + std::chrono::milliseconds(step);
    for (size_t i = 0; i < clients_.size(); ++i) act(*core, i, step, now);
    const bool ran = core->step(now);
    core->deliver();
    if (hook) hook(*core);
    left = false;
    for (size_t i = 0; i < clients_.size(); ++i) {
      Client& client = clients_[i];
      // Nothing could run: slow readers must catch up for anything to go on.
      if (client.stream && (!ran || step % client.reads_every == 0)) read(client);
      if (client.channel) core->on_signal(i);
      left = left || !client.stream || !client.stream->done();
    }
  }
  // The last step may have started another one.
  while (!core->idle() && core->step(start + std::chrono::milliseconds(step))) core->deliver();
  EXPECT_TRUE(core->idle());
  const EngineStats stats = core->stats();
  EXPECT_EQ(stats.blocks_in_use, 0);
  EXPECT_EQ(stats.blocks_cached + stats.blocks_free, stats.blocks_total);
  coverage.preemptions += stats.preemptions;
  coverage.encoded += stats.encoded_segments;
  for (const Client& client : clients_) compare(client, coverage);
}

// Few texts with few lengths: many prompts share a prefix, and many outputs are known already.
EngineModel::Prompt EqualityScenario::make_prompt() {
  const int length = pick({1, 2, 100, 127, 128, 129, 200, 255, 256, 257, 300, 383, 384, 385, 430});
  std::vector<int32_t> prompt = model_.text(0, length);
  const int shared = pick({0, 128, 200, 256, 1000});
  if (shared < length) {
    const std::vector<int32_t> other = model_.text(1 + below(2), length);
    std::copy(other.begin() + shared, other.end(), prompt.begin() + shared);
  }
  return {prompt, {}};
}

// Few stories, told to some length: many prompts share a prefix, and it ends anywhere in blocks and pictures.
// Now and then another picture of the same shape is there: the ids alone do not tell.
EngineModel::Prompt EqualityScenario::make_prompt_with_pictures() {
  static constexpr int kPictures[3][3] = {{2, 0, 5}, {4, 1, 2}, {0, 5, 3}};
  static constexpr int kTexts[3][4] = {{63, 30, 128, 1}, {1, 62, 64, 126}, {126, 1, 30, 63}};
  const int story = below(3), count = below(4);
  EngineModel::Prompt prompt;
  for (int i = 0; i <= count; ++i) {
    const int length = i == count && below(2) == 0 ? 1 + below(200) : kTexts[story][i];
    const std::vector<int32_t> text = model_.text(i, length);
    prompt.ids.insert(prompt.ids.end(), text.begin(), text.end());
    if (i == count) break;
    const int picture = kPictures[story][i];
    model_.add_picture(prompt, picture < 4 && below(6) == 0 ? picture ^ 1 : picture);
  }
  return prompt;
}

EqualityScenario::Client EqualityScenario::make_client() {
  Client client{.prompt = pictures_ ? make_prompt_with_pictures() : make_prompt()};
  Request& r = client.request;
  r.prompts = {client.prompt.ids};
  r.media = client.prompt.media;
  if (pictures_ && below(4) == 0) r.salt = r.tenant = "another";
  r.max_tokens = 1 + below(kMaxNewTokens);
  r.ignore_eos = true;
  r.sampling.temperature = 0;
  if (below(5) == 0) r.n = 2 + below(2);
  if (below(6) == 0) r.priority = below(3) - 1;
  if (below(6) == 0) r.logprobs = below(3);
  if (below(8) == 0) r.prompt_logprobs = 0;
  if (below(5) == 0) {  // a neighbour whose draws are its own affair
    r.sampling.temperature = 1;
    r.sampling.seed = random_();
    r.sampling.repetition_penalty = 1.2;
  }
  if (r.sampling.temperature == 0 && below(3) == 0) {  // it says what the model would say anyway
    const std::vector<int32_t>& ids = model_.run_alone(client.prompt, kMaxNewTokens).ids;
    const int free = below(4);
    r.constraint = std::make_shared<const RunsConstraint>(free, std::vector(ids.begin() + free, ids.end()), 1,
                                                          /*tells=*/true, NextIds::End::kFree);
  }
  client.arrives = below(3) == 0 ? below(30) : 0;
  if (below(4) == 0) client.cancels = client.arrives + below(12);
  client.reads_every = below(3) == 0 ? 1 + below(6) : 1;
  client.ids.resize(r.n);
  client.ended.resize(r.n);
  return client;
}

void EqualityScenario::act(EngineCore& core, size_t i, int step, SchedulerTime now) {
  Client& client = clients_[i];
  if (client.arrives == step) {
    client.channel = std::make_shared<TokenChannel>(client.request.n, options_.events_per_output, [] {});
    client.stream = std::make_unique<TokenStream>(client.channel);
    core.add(i, client.request, client.channel, now);
  }
  if (client.cancels == step && client.stream) client.stream->cancel();
  if (client.stream) core.on_signal(i);
}

void EqualityScenario::read(Client& client) {
  while (const auto event = client.stream->try_next()) {
    EXPECT_FALSE(client.ended[event->output]) << "an event after the last one";
    if (event->id) client.ids[event->output].push_back(*event->id);
    client.ended[event->output] = event->finish;
    client.cached_tokens = event->cached_tokens;
    EXPECT_EQ(event->error, "");
  }
}

void EqualityScenario::compare(const Client& client, Coverage& coverage) {
  const bool cancelled = client.cancels >= 0;
  coverage.hits += client.cached_tokens > 0;
  coverage.hits_inside_a_block += client.cached_tokens % kBlockTokens != 0;
  coverage.chunked += static_cast<int>(client.prompt.ids.size()) > options_.max_step_tokens;
  coverage.cancelled += client.ended[0] == FinishReason::kCancelled;
  coverage.forked += client.request.n > 1;
  coverage.forced += client.request.constraint != nullptr;
  coverage.pictures += static_cast<int64_t>(client.prompt.media.size());
  for (const RequestMedium& medium : client.prompt.media)
    coverage.hits_inside_pictures +=
        client.cached_tokens > medium.runs.front().begin && client.cached_tokens < medium.runs.back().end;
  if (client.request.sampling.temperature > 0) return;
  const EngineModel::Greedy& alone = model_.run_alone(client.prompt, kMaxNewTokens);
  for (size_t choice = 0; choice < client.ids.size(); ++choice) {
    const std::vector<int32_t>& ids = client.ids[choice];
    ++coverage.outputs;
    if (!cancelled) {
      EXPECT_EQ(client.ended[choice], FinishReason::kLength);
      EXPECT_EQ(static_cast<int64_t>(ids.size()), client.request.max_tokens);
    }
    const auto differs = std::mismatch(ids.begin(), ids.end(), alone.ids.begin()).first;
    coverage.mismatches += differs != ids.end();
    for (auto id = ids.begin(); id != ids.end() && id <= differs; ++id) {
      if (alone.margins[id - ids.begin()] <= kSureMargin) continue;
      ++coverage.sure_ids;
      coverage.sure_mismatches += id == differs;
    }
  }
}

}  // namespace sparrow::test
