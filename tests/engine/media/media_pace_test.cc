// SPDX-License-Identifier: Apache-2.0
// Pictures that wait to be encoded hold up nobody who only types.
#include <gtest/gtest.h>

#include "engine/engine_core.h"
#include "support/engine/engine_model.h"
#include "support/variant.h"

namespace sparrow {
namespace {

using test::EngineModel;

struct Client {
  std::shared_ptr<TokenChannel> channel;
  TokenStream stream;
  int num_ids = 0;

  explicit Client(int events) : channel(std::make_shared<TokenChannel>(1, events, [] {})), stream(channel) {}
  void read() {
    while (const auto event = stream.try_next()) num_ids += event->id.has_value();
  }
};

TEST(MediaPace, AStreamGetsATokenInEveryStepWhileAHundredPicturesWait) {
  constexpr int kPictures = 100, kPatches = 16;
  EngineModel model("vision/model", /*top_k_blocks=*/2);
  const auto core = EngineCore::create(model.config(), model.weights(),
                                       {.cache_tokens = 256 * kBlockTokens,
                                        .cpu = {.threads = test::test_threads(), .isa = test::test_isa()},
                                        .max_step_sequences = kPictures + 1,
                                        .max_step_patches = 3 * kPatches + 1,
                                        .bound_steps = false})
                        .value();
  const auto ask = [&](RequestId id, EngineModel::Prompt prompt, int tokens) {
    Request request{.prompts = {prompt.ids}, .media = prompt.media, .max_tokens = tokens, .ignore_eos = true};
    request.sampling.temperature = 0;
    auto client = std::make_unique<Client>(tokens);
    core->add(id, std::move(request), client->channel, {});
    return client;
  };
  const auto typist = ask(0, {model.text(0, 20), {}}, 200);
  ASSERT_TRUE(core->step({}));
  core->deliver();
  typist->read();
  std::vector<std::unique_ptr<Client>> pictures;
  for (int i = 0; i < kPictures; ++i) {
    EngineModel::Prompt prompt{model.text(1, 3), {}};
    model.add_picture(prompt, 0);
    prompt.media[0].digest[1] = static_cast<uint8_t>(i + 1);  // no two alike
    prompt.ids.push_back(7);
    pictures.push_back(ask(static_cast<RequestId>(i + 1), prompt, 1));
  }
  ASSERT_TRUE(core->step({}));  // they start
  core->deliver();
  typist->read();
  int64_t encoded = 0;
  int steps = 0;
  for (; encoded < kPictures; ++steps) {
    const int before = typist->num_ids;
    ASSERT_TRUE(core->step({}));
    core->deliver();
    typist->read();
    ASSERT_EQ(typist->num_ids, before + 1) << "in step " << steps;
    const int64_t now = core->stats().encoded_segments;
    // Neither none nor more than the budget.
    ASSERT_GE(now, std::min<int64_t>(encoded + 1, kPictures));
    ASSERT_LE(now, encoded + 3);
    encoded = now;
  }
  EXPECT_GE(steps, kPictures / 3);
}

}  // namespace
}  // namespace sparrow
