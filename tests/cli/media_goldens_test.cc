// SPDX-License-Identifier: Apache-2.0
// Images, clips and whole chats with them, from their files to the logits, against transformers.
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>

#include "base/files/mapped_file.h"
#include "base/json/json.h"
#include "base/json/json_writer.h"
#include "checkpoint/checkpoint.h"
#include "cli/trace/media_chat.h"
#include "engine/cpu/cpu_runner.h"
#include "engine/engine.h"
#include "engine/sequence_runner.h"
#include "media/prepare.h"
#include "media/video.h"
#include "model/vision/segments.h"
#include "model/vision/tower.h"
#include "support/golden.h"
#include "support/temp_dir.h"
#include "support/variant.h"

namespace sparrow::cli {
namespace {

using test::TensorFile;

constexpr double kTolerance = 1e-4;

std::filesystem::path vision_dir() {
  return test::golden_dir() / "vision";
}

class MediaGoldens : public testing::Test {
 protected:
  MediaGoldens()
      : checkpoint_(Checkpoint::open(vision_dir() / "model").value()),
        manifest_text_(read_text_file(vision_dir() / "manifest.json", 1 << 20).value()),
        manifest_(JsonDocument::parse(manifest_text_, "manifest").value()),
        pool_(test::test_threads()),
        exec_{pool_, scratch_, test::test_isa()} {}

  const ModelConfig& config() const { return checkpoint_.config(); }
  const VisionConfig& vision() const { return *config().vision; }
  Json part(const char* name) const { return manifest_.root().at(name).value(); }

  struct Encoded {
    std::vector<float> tower, features;
  };
  Encoded encode(const MediaPatches& patches) {
    Encoded out;
    out.features.resize(
        static_cast<size_t>(sparrow::tokens_of(vision(), patches.grid) * config().hidden_size));
    const auto hidden = static_cast<int64_t>(config().hidden_size);
    const Tensor rows(const_cast<float*>(patches.rows.data()), DType::kF32,
                      {patches.grid.patches(), patch_numbers(vision())});
    const Tensor features(out.features.data(), DType::kF32,
                          {static_cast<int64_t>(out.features.size()) / hidden, hidden});
    VisionTower(config(), *checkpoint_.weights().vision)
        .encode(exec_, rows, {&patches.grid, 1}, features, [&](TowerStage stage, int layer, const Tensor& x) {
          if (stage == TowerStage::kLayer && layer == vision().num_layers - 1)
            out.tower.insert(out.tower.end(), x.as<float>(), x.as<float>() + x.numel());
        });
    return out;
  }
  static std::vector<float> some_rows(const std::vector<float>& all, std::span<const int32_t> rows,
                                      size_t columns) {
    std::vector<float> some;
    for (const int32_t row : rows)
      some.insert(some.end(), all.begin() + static_cast<int64_t>(row * columns),
                  all.begin() + static_cast<int64_t>((row + 1) * columns));
    return some;
  }

  Checkpoint checkpoint_;
  const std::string manifest_text_;
  const JsonDocument manifest_;
  ThreadPool pool_;
  Scratch scratch_;
  Exec exec_;
};

TEST_F(MediaGoldens, EveryImageFromItsFileToItsFeatures) {
  const TensorFile images(vision_dir() / "images.golden.safetensors"),
      features(vision_dir() / "features.golden.safetensors");
  const Json all = part("images");
  for (size_t i = 0; i < all.size(); ++i) {
    const std::string name(all.key(i));
    SCOPED_TRACE(name);
    const MappedFile file =
        MappedFile::open(vision_dir() / all.member(i).at("file")->as_string().value()).value();
    const auto prepared = prepare_image(file.bytes(), SizeRule{}, DecodeLimits{});
    ASSERT_TRUE(prepared.ok()) << prepared.error().message;
    const MediaPatches& patches = prepared.value();
    const Encoded own = encode(patches);
    // Both clamps of the size rule, where they make a difference.
    const bool clamped = features.has(name + ".clamped.features");
    const std::string golden = clamped ? name + ".clamped" : name;
    EXPECT_EQ(images.ints(golden + ".grid_thw"),
              (std::vector<int32_t>{patches.grid.t, patches.grid.h, patches.grid.w}));
    std::vector<float> own_features = own.features;
    if (!clamped && features.has(name + ".feature_index"))
      own_features = some_rows(own.features, features.ints(name + ".feature_index"),
                               static_cast<size_t>(config().hidden_size));
    EXPECT_LE(test::relative_error(own_features, features.floats(golden + ".features")), kTolerance);
    if (clamped) continue;
    EXPECT_LE(test::relative_error(some_rows(own.tower, images.ints(name + ".patch_index"),
                                             static_cast<size_t>(vision().hidden_size)),
                                   features.floats(name + ".tower")),
              kTolerance);
  }
}

TEST_F(MediaGoldens, EveryClipFromItsFramesToItsFeatures) {
  const TensorFile clips(vision_dir() / "clips.golden.safetensors");
  const Json all = part("clips");
  for (size_t i = 0; i < all.size(); ++i) {
    const std::string name(all.key(i));
    SCOPED_TRACE(name);
    const Json frames = all.member(i).at("frames").value();
    std::vector<MappedFile> files;
    std::vector<std::span<const std::byte>> bytes;
    for (size_t f = 0; f < frames.size(); ++f) {
      files.push_back(MappedFile::open(vision_dir() / frames.element(f).as_string().value()).value());
      bytes.push_back(files.back().bytes());
    }
    const auto video = video_of_files(bytes, VideoRule{}, DecodeLimits{});
    ASSERT_TRUE(video.ok()) << video.error().message;
    const MediaPatches patches = patches_of_frames(video->frames);
    EXPECT_EQ(clips.ints(name + ".grid_thw"),
              (std::vector<int32_t>{patches.grid.t, patches.grid.h, patches.grid.w}));
    const Encoded own = encode(patches);
    EXPECT_LE(test::relative_error(own.features, clips.floats(name + ".features")), kTolerance);
    EXPECT_LE(test::relative_error(some_rows(own.tower, clips.ints(name + ".patch_index"),
                                             static_cast<size_t>(vision().hidden_size)),
                                   clips.floats(name + ".tower")),
              kTolerance);
  }
}

// The chat of a manifest's prompt, with the files of its media.
std::string chat_json(const Json& manifest, const Json& prompt) {
  size_t next_image = 0, next_clip = 0;
  const auto file_of = [](const std::string& path) { return (vision_dir() / path).string(); };
  JsonWriter out;
  const auto write_part = [&](const Json& part) {
    const std::string type = part.at("type")->as_string().value();
    out.begin_object().key("type").string(type);
    if (type == "text") out.key("text").string(part.at("text")->as_string().value());
    if (type == "image") {
      const std::string name = prompt.at("images")->element(next_image++).as_string().value();
      out.key("image").string(file_of(manifest.at("images")->at(name)->at("file")->as_string().value()));
    }
    if (type == "video") {
      const Json clip =
          manifest.at("clips")->at(prompt.at("clips")->element(next_clip++).as_string().value()).value();
      out.key("video").begin_array();
      for (size_t f = 0; f < clip.at("frames")->size(); ++f)
        out.string(file_of(clip.at("frames")->element(f).as_string().value()));
      out.end_array();
      if (const auto fps = clip.find("fps")) out.key("fps").number(fps->as_number().value());
      if (const auto indices = clip.find("frames_indices")) {
        out.key("frames_indices").begin_array();
        for (size_t f = 0; f < indices->size(); ++f)
          out.integer(indices->element(f).as_int(0, 1 << 30).value());
        out.end_array();
      }
    }
    out.end_object();
  };
  const Json messages = prompt.at("messages").value();
  out.begin_array();
  for (size_t m = 0; m < messages.size(); ++m) {
    out.begin_object().key("role").string(messages.element(m).at("role")->as_string().value()).key("content");
    const Json content = messages.element(m).at("content").value();
    if (content.is_string()) {
      out.string(content.as_string().value());
    } else {
      out.begin_array();
      for (size_t p = 0; p < content.size(); ++p) write_part(content.element(p));
      out.end_array();
    }
    out.end_object();
  }
  out.end_array();
  return out.take();
}

struct ChatRun {
  std::vector<float> logits, greedy_logits;
  std::vector<int32_t> greedy_ids;
  Capture capture;
};

ChatRun run_chat(const ModelConfig& config, const Weights& weights, const MediaChat& chat,
                 const std::vector<int32_t>& positions, int decode, int chunk) {
  SequenceRunner runner(CpuRunner::create(config, weights,
                                          static_cast<int64_t>(chat.ids.size()) + decode + 128,
                                          {.threads = test::test_threads(), .isa = test::test_isa()})
                            .value());
  Sequence sequence = runner.new_sequence();
  sequence.ids = chat.ids;
  sequence.segments = media_of(chat.media, 0, config.vision, "").segments;
  ChatRun run;
  const int total = static_cast<int>(chat.ids.size());
  const auto best_of = [&] {
    const Tensor logits = runner.logits();
    return argmax({logits.row<float>(logits.rows() - 1), static_cast<size_t>(logits.cols())}).value();
  };
  for (int begin = 0; begin < total; begin += chunk) {
    const int end = std::min(begin + chunk, total);
    std::vector<int32_t> rows;
    for (const int32_t position : positions)
      if (position >= begin && position < end) rows.push_back(position - begin);
    EXPECT_TRUE(runner.run(sequence, end - begin, rows, &run.capture).ok());
    const Tensor logits = runner.logits();
    run.logits.insert(run.logits.end(), logits.as<float>(), logits.as<float>() + logits.numel());
  }
  EXPECT_EQ(positions.back(), total - 1);
  run.greedy_ids.push_back(best_of());
  for (int step = 0; step < decode; ++step) {
    sequence.ids.push_back(run.greedy_ids.back());
    constexpr int32_t kOnlyRow = 0;
    EXPECT_TRUE(runner.run(sequence, 1, {&kOnlyRow, 1}).ok());
    const Tensor logits = runner.logits();
    run.greedy_logits.insert(run.greedy_logits.end(), logits.as<float>(),
                             logits.as<float>() + logits.numel());
    run.greedy_ids.push_back(best_of());
  }
  return run;
}

TEST_F(MediaGoldens, EveryChatFromItsFilesToItsLogits) {
  const TensorFile golden(vision_dir() / "chat.golden.safetensors");
  const Json prompts = part("prompts");
  test::TempDir folder;
  for (size_t i = 0; i < prompts.size(); ++i) {
    const std::string name(prompts.key(i));
    SCOPED_TRACE(name);
    const std::filesystem::path file = folder.path() / (name + ".json");
    ASSERT_TRUE(write_text_file(file, chat_json(manifest_.root(), prompts.member(i))).ok());
    const auto read = read_media_chat(file, vision_dir() / "model", config());
    ASSERT_TRUE(read.ok()) << read.error().message;
    const MediaChat& chat = read.value();
    ASSERT_EQ(chat.ids, golden.ints(name + ".input_ids"));

    const std::vector<int32_t> positions = golden.ints(name + ".logit_positions");
    const std::vector<int32_t> greedy = golden.ints(name + ".greedy_ids");
    const int decode = static_cast<int>(greedy.size()) - 1;
    const ChatRun run = run_chat(config(), checkpoint_.weights(), chat, positions, decode, 1 << 20);
    EXPECT_LE(test::relative_error(run.logits, golden.floats(name + ".logits")), kTolerance);
    for (size_t layer = 0; layer < run.capture.hidden.size(); ++layer)
      EXPECT_LE(
          test::relative_error(run.capture.hidden[layer], golden.floats(strf("{}.hidden.{}", name, layer))),
          kTolerance);
    EXPECT_EQ(run.greedy_ids, greedy);
    EXPECT_LE(test::relative_error(run.greedy_logits, golden.floats(name + ".greedy_logits")), kTolerance);

    // Chunks that end inside pictures and beside them: the same bits.
    for (const int chunk : {7, 64, 128, 500}) {
      const ChatRun cut = run_chat(config(), checkpoint_.weights(), chat, positions, 2, chunk);
      EXPECT_EQ(cut.logits, run.logits) << chunk;
    }

    auto engine =
        Engine::create(
            config(), checkpoint_.weights(),
            {.cache_tokens = 4096, .cpu = {.threads = 1, .isa = test::test_isa()}, .max_step_tokens = 256})
            .value();
    Request request{.prompts = {chat.ids}, .media = chat.media, .max_tokens = decode + 1, .ignore_eos = true};
    request.sampling.temperature = 0;
    for (const char* when : {"cold", "cached"}) {
      auto stream = engine->submit(request);
      ASSERT_TRUE(stream.ok()) << stream.error().message;
      std::vector<int32_t> ids;
      while (const auto event = stream.value()->next())
        if (event->id) ids.push_back(*event->id);
      EXPECT_EQ(ids, greedy) << when;
    }
  }
}

TEST_F(MediaGoldens, SelectionsOfALongChatAreTransformers) {
  const TensorFile golden(vision_dir() / "chat.golden.safetensors");
  test::TempDir folder;
  const std::filesystem::path file = folder.path() / "chat.json";
  ASSERT_TRUE(write_text_file(file, chat_json(manifest_.root(), part("prompts").at("three").value())).ok());
  const MediaChat chat = read_media_chat(file, vision_dir() / "model", config()).value();
  const ChatRun run =
      run_chat(config(), checkpoint_.weights(), chat, golden.ints("three.logit_positions"), 0, 1 << 20);
  const auto match = test::compare_selections(run.capture.selected_blocks[1],
                                              golden.ints("three.selected_blocks.1"), config().top_k_blocks);
  EXPECT_GT(match.rows, 30);
  EXPECT_EQ(match.equal, match.rows);
}

}  // namespace
}  // namespace sparrow::cli
