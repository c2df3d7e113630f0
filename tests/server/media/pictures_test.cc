// SPDX-License-Identifier: Apache-2.0
// Pictures through the whole server: HTTP, workers, tower, model of the vision goldens.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <thread>

#include "base/text/base64.h"
#include "checkpoint/checkpoint.h"
#include "server/api/chat_body.h"
#include "support/golden.h"
#include "support/server/service_fixture.h"

namespace sparrow {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;
using test::json_post;
using test::RawResponse;
using testing::HasSubstr;

const fs::path kVision = test::golden_dir() / "vision";

std::string file_text(const fs::path& path) {
  std::ifstream file(kVision / path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}
std::string data_url(std::string_view bytes) {
  return "data:image/png;base64," + to_base64(bytes);
}
std::string image(std::string_view url, const std::string& more = "") {
  return strf(R"({{"type":"image_url","image_url":{{"url":"{}"{}}}}})", url, more);
}
std::string text(std::string_view words) {
  return strf(R"({{"type":"text","text":{}}})", json_quoted(words));
}

// What all tests share, which is read-only.
struct VisionModel {
  Checkpoint checkpoint = Checkpoint::open(kVision / "model", {.vision = true}).value();
  Tokenizer tokenizer = Tokenizer::load(kVision / "model").value();
  ChatTemplate chat_template = ChatTemplate::load(kVision / "model").value();
  JsonDocument manifest = JsonDocument::parse(file_text("manifest.json"), "manifest").value();

  std::string file_of(const std::string& name) const {
    return manifest.root().find("images")->find(name)->find("file")->as_string().value();
  }
  std::string image_of(const std::string& name) const { return image(data_url(file_text(file_of(name)))); }
};
const VisionModel& vision_model() {
  static const VisionModel model;
  return model;
}

// Programs with a sanitizer in them cannot start under the rules of foreign ones.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kVideosStart = false;
#else
constexpr bool kVideosStart = true;
#endif

class PicturesTest : public testing::Test {
 protected:
  void SetUp() override {
    const VisionModel& model = vision_model();
    engine_ = Engine::create(
                  model.checkpoint.config(), model.checkpoint.weights(),
                  {.cache_tokens = 64 * kBlockTokens,
                   .cpu = {.threads = test::test_threads(), .isa = test::test_isa(), .feature_tokens = 2048},
                   .max_step_tokens = 256})
                  .value();
    MediaSettings settings;
    settings.limits.max_image_pixels = 2048 * 28 * 28;
    settings.limits.video.ffmpeg = SPARROW_MEDIA_TEST_WORKER;  // never ends
    settings.limits.video.time = 1h;
    MediaWorkersOptions workers =
        picture_worker_options(settings.limits.decode, {.max_pixels = settings.limits.max_image_pixels}, 2);
    workers.command = {.program = SPARROW_MEDIA_TEST_WORKER, .arguments = {"pictures"}};
    workers.start_time = workers.least_time = 600s;
    workers_ = MediaWorkers::start(workers).value();
    fetcher_ = MediaFetcher::start({}).value();
    loader_ = std::make_unique<MediaLoader>(*workers_, *fetcher_, settings, memory_);
    for (const char* key : {"key-of-a", "key-of-b"}) ASSERT_TRUE(keys_.add(key).ok());
    const openai::ServedModel served{
        .names = {"m3"},
        .tokenizer = model.tokenizer,
        .encode_cache = cache_,
        .chat_template = &model.chat_template,
        .defaults = {.vocab_size = model.checkpoint.config().vocab_size, .max_model_tokens = 4096},
        .media = {.loader = loader_.get(), .refusal = "", .vision = model.checkpoint.config().vision}};
    service_ = std::make_unique<Service>(*engine_, served, keys_, metrics_,
                                         ServiceOptions{.seed = 1, .version = "test"});
    HttpServerOptions options{.port = 0, .num_threads = 2};
    options.tell_error = error_response_to;
    options.check_head = [this](const HttpRequest& request) { return service_->check_head(request); };
    server_ = HttpServer::start(std::move(options), [this](Exchange& exchange) {
                return service_->handle(exchange);
              }).value();
  }
  void TearDown() override {
    server_.reset();
    service_.reset();
    fetcher_.reset();  // its threads may still tell the loader
    workers_.reset();
    loader_.reset();
    engine_.reset();
  }

  RawResponse ask(std::string_view path, const std::string& body, const std::string& key = "key-of-a") const {
    test::RawClient client(server_->port());
    client.send(json_post(path, body, "Authorization: Bearer " + key + "\r\n"));
    return client.read_response();
  }
  static std::string user(const std::string& parts, int tokens = 1) {
    return strf(R"({{"messages":[{{"role":"user","content":[{}]}}],"temperature":0,"ignore_eos":true,)"
                R"("return_token_ids":true,"max_tokens":{}}})",
                parts, tokens);
  }
  RawResponse chat(const std::string& parts, const std::string& key = "key-of-a") const {
    return ask("/v1/chat/completions", user(parts), key);
  }
  static int64_t number(const RawResponse& response, std::initializer_list<const char*> path) {
    EXPECT_EQ(response.status, 200) << response.body;
    const JsonDocument body = JsonDocument::parse(response.body, "answer").value();
    Json at = body.root();
    for (const char* key : path) at = at.at(key).value();
    return at.as_int(0, 1 << 30).value();
  }

  // Whether a child of this process reads a video; waits until that is so.
  static void wait_for_video(bool wanted) {
    const auto is_read = [] {
      for (const auto& entry : fs::directory_iterator("/proc/self/task")) {
        std::ifstream children(entry.path() / "children");
        for (int pid = 0; children >> pid;) {
          std::ifstream file(strf("/proc/{}/cmdline", pid));
          const std::string words{std::istreambuf_iterator<char>(file), {}};
          if (words.find("-nostdin") != words.npos) return true;
        }
      }
      return false;
    };
    while (is_read() != wanted) std::this_thread::sleep_for(1ms);
  }
  static std::string video() {
    return R"({"type":"video_url","video_url":"data:video/x-matroska;base64,)" +
           to_base64("\x1a\x45\xdf\xa3 and so on") + R"("})";
  }

  int64_t memory_ = int64_t{1} << 30;
  EncodeCache cache_{vision_model().tokenizer};
  ApiKeys keys_;
  Metrics metrics_;
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<MediaWorkers> workers_;
  std::unique_ptr<MediaFetcher> fetcher_;
  std::unique_ptr<MediaLoader> loader_;
  std::unique_ptr<Service> service_;
  std::unique_ptr<HttpServer> server_;
};

// A prompt of the goldens as a chat with its media in place.
std::string golden_parts(const Json& prompt) {
  const VisionModel& model = vision_model();
  size_t images = 0, clips = 0;
  const auto name = [&](const char* kind, size_t index) {
    return prompt.find(kind)->element(index).as_string().value();
  };
  std::string parts;
  const Json content = *prompt.find("messages")->element(0).find("content");
  for (size_t i = 0; i < content.size(); ++i) {
    const Json part = content.element(i);
    const std::string_view type = part.find("type")->string_view();
    if (i > 0) parts += ",";
    if (type == "text") parts += text(part.find("text")->string_view());
    if (type == "image") parts += model.image_of(name("images", images++));
    if (type != "video") continue;
    const std::string clip = name("clips", clips++);
    const Json said = *model.manifest.root().find("clips")->find(clip);
    std::vector<fs::path> files;
    for (const auto& entry : fs::directory_iterator(kVision / "clips" / clip)) files.push_back(entry.path());
    std::ranges::sort(files);
    std::string frames;
    for (const fs::path& file : files)
      frames += (frames.empty() ? "\"" : ",\"") + data_url(file_text(file)) + "\"";
    parts += strf(R"({{"type":"video","video":[{}])", frames);
    if (const auto fps = said.find("fps"))
      parts +=
          strf(R"(,"fps":{},"frames_indices":{})", json_text(*fps), json_text(*said.find("frames_indices")));
    parts += "}";
  }
  return parts;
}

TEST_F(PicturesTest, AnswersAreThoseOfTheGoldens) {
  const test::TensorFile tensors(kVision / "chat.golden.safetensors");
  for (const std::string name : {"one", "three", "clip"}) {
    const std::vector<int32_t> wanted = tensors.ints(name + ".greedy_ids");
    const Json prompt = *vision_model().manifest.root().find("prompts")->find(name);
    const RawResponse response =
        ask("/v1/chat/completions", user(golden_parts(prompt), static_cast<int>(wanted.size())));
    ASSERT_EQ(response.status, 200) << response.body;
    const JsonDocument body = JsonDocument::parse(response.body, "answer").value();
    const auto ids = [](const Json& list) {
      std::vector<int32_t> values;
      for (size_t i = 0; i < list.size(); ++i)
        values.push_back(static_cast<int32_t>(list.element(i).as_int(0, 1 << 30).value()));
      return values;
    };
    EXPECT_EQ(ids(*body.root().find("prompt_token_ids")), tensors.ints(name + ".input_ids")) << name;
    EXPECT_EQ(ids(*body.root().find("choices")->element(0).find("token_ids")), wanted) << name;
    EXPECT_EQ(number(response, {"usage", "prompt_tokens_details", "image_tokens"}),
              prompt.find("media_tokens")->as_int(0, 1 << 20).value());
  }
}

// Neither by what is encoded nor by what is cached.
TEST_F(PicturesTest, AKeyFindsItsOwnPictureAndNobodyElses) {
  const std::string parts = text(std::string(200, 'z')) + "," + vision_model().image_of("photo") + "," +
                            text(std::string(200, 'y'));
  const auto cached = [&](const std::string& key) {
    return number(chat(parts, key), {"usage", "prompt_tokens_details", "cached_tokens"});
  };
  const auto expect_done = [&](int64_t times) {
    EXPECT_EQ(engine_->stats().encoded_segments, times);
    EXPECT_EQ(workers_->counts().accepted, times);
  };
  EXPECT_EQ(cached("key-of-a"), 0);
  expect_done(1);
  EXPECT_EQ(cached("key-of-b"), 0);
  expect_done(2);
  EXPECT_GE(cached("key-of-a"), 384);
  expect_done(2);
  // A prompt that the cache does not know: what was encoded is still there.
  EXPECT_EQ(
      number(chat(vision_model().image_of("photo")), {"usage", "prompt_tokens_details", "cached_tokens"}), 0);
  expect_done(2);
  // In another size it is another picture.
  chat(image(data_url(file_text(vision_model().file_of("photo"))), R"(,"max_pixels":50000)"));
  expect_done(3);
  // Nor does one who asks with a salt of its own find what it sent without.
  std::string salted = user(parts);
  salted.insert(1, R"("cache_salt":"mine",)");
  EXPECT_EQ(number(ask("/v1/chat/completions", salted), {"usage", "prompt_tokens_details", "cached_tokens"}),
            0);
  expect_done(4);
}

// The same as it is counted: nothing of it depends on who else asked.
TEST_F(PicturesTest, CountingFindsNobodyElsesPicture) {
  const auto count = [&](const std::string& key) {
    const std::string part = vision_model().image_of("photo");
    EXPECT_EQ(
        ask("/tokenize", strf(R"({{"messages":[{{"role":"user","content":[{}]}}]}})", part), key).status,
        200);
    return workers_->counts().accepted.load();
  };
  EXPECT_EQ(count("key-of-a"), 1);
  EXPECT_EQ(count("key-of-b"), 2);
  EXPECT_EQ(count("key-of-a"), 2);
}

TEST_F(PicturesTest, AVideoEndsWithItsClient) {
  if (!kVideosStart) GTEST_SKIP() << "the program in the place of ffmpeg does not start";
  test::RawClient client(server_->port());
  client.send(json_post("/v1/chat/completions", user(video()), "Authorization: Bearer key-of-a\r\n"));
  wait_for_video(true);
  client.close();
  wait_for_video(false);
}

TEST_F(PicturesTest, AServerThatStopsWaitsForNoVideo) {
  if (!kVideosStart) GTEST_SKIP() << "the program in the place of ffmpeg does not start";
  test::RawClient client(server_->port());
  client.send(json_post("/v1/chat/completions", user(video()), "Authorization: Bearer key-of-a\r\n"));
  wait_for_video(true);
  loader_->stop();
  const RawResponse response = client.read_response();
  EXPECT_EQ(response.status, 503) << response.body;
  EXPECT_THAT(response.body, HasSubstr("the server is stopping"));
  wait_for_video(false);
  EXPECT_EQ(chat(video()).status, 503);
}

TEST_F(PicturesTest, WhatIsNoPictureIsRefusedByItsField) {
  const std::string photo = file_text(vision_model().file_of("photo"));
  std::string bomb = file_text(vision_model().file_of("alpha"));
  bomb.replace(16, 8, std::string("\0\0\xc3\x50\0\0\xc3\x50", 8));  // 50,000 x 50,000
  const std::pair<std::string, const char*> cases[] = {
      {data_url(photo.substr(0, photo.size() / 2)), ""},
      {data_url(bomb), "50000"},
      {data_url("no picture at all"), ""},
      {"data:image/png;base64,%%", "base64"},
      {"http://example.com/a.png", "--allowed-media-domains"},
      {"file:///etc/passwd", "--allowed-local-media-path"},
      {"a.png", "neither"}};
  for (const auto& [url, reason] : cases) {
    const RawResponse response = chat(text("x") + "," + image(url));
    EXPECT_EQ(response.status, 400) << response.body;
    EXPECT_THAT(response.body, HasSubstr(R"("param":"messages[0].content[1].image_url.url")"));
    EXPECT_THAT(response.body, HasSubstr(reason));
  }
  EXPECT_EQ(chat(vision_model().image_of("alpha")).status, 200);
  EXPECT_EQ(engine_->stats().failed, 0);
}

TEST_F(PicturesTest, OptionsAndNumbersAreHeldAgainstTheLimits) {
  const std::string url = data_url(file_text(vision_model().file_of("photo")));
  const auto refusal = [&](const std::string& parts, const std::string& more = "") {
    std::string body = user(parts);
    body.insert(1, more);
    const RawResponse response = ask("/v1/chat/completions", body);
    EXPECT_EQ(response.status, 400);
    return response.body;
  };
  EXPECT_THAT(refusal(image(url, R"(,"max_pixels":99999999)")),
              HasSubstr(R"("param":"messages[0].content[0].image_url.max_pixels")"));
  EXPECT_THAT(refusal(image(url), R"("mm_processor_kwargs":{"max_pixels":1},)"),
              HasSubstr(R"("param":"mm_processor_kwargs.max_pixels")"));
  EXPECT_THAT(refusal(image(url), R"("mm_processor_kwargs":{"size":1},)"), HasSubstr("max_long_side_pixel"));
  EXPECT_THAT(refusal(image(url, R"(,"detail":"x")")), HasSubstr("must be auto, low, high or original"));
  EXPECT_THAT(refusal(image(url, R"(,"quality":9)")), HasSubstr("is not a field"));
  std::string many = image(url);
  for (int i = 1; i < 9; ++i) many += "," + image(url);
  EXPECT_THAT(refusal(many), HasSubstr("at most 8 images"));
  EXPECT_THAT(refusal(R"({"type":"video","video":[]})"), HasSubstr("1 to 768 frames"));
  EXPECT_THAT(refusal(R"({"type":"video","video":["x","y"],"fps":1,"frames_indices":[3]})"),
              HasSubstr("an index for each of the 2 frames"));
  EXPECT_THAT(refusal(R"({"type":"input_audio","input_audio":{}})"),
              HasSubstr("must be text, image_url or video_url"));
  EXPECT_THAT(refusal(image(url), R"("truncate_prompt_tokens":5,)"),
              HasSubstr("cannot be combined with images"));
}

// As every API spells it, and counted without an answer.
TEST_F(PicturesTest, OnePictureIsTheSameInEveryApi) {
  const std::string file = file_text(vision_model().file_of("small444"));
  const std::string url = data_url(file);
  const auto tokenized = [&](const std::string& part) {
    return number(ask("/tokenize", strf(R"({{"messages":[{{"role":"user","content":[{}]}}]}})", part)),
                  {"count"});
  };
  const int64_t count = tokenized(image(url));
  EXPECT_GT(count, 77);
  EXPECT_EQ(number(chat(image(url)), {"usage", "prompt_tokens"}), count);
  for (const char* form :
       {R"({{"type":"image_url","image_url":"{}"}})", R"({{"type":"input_image","image_url":"{}"}})",
        R"({{"type":"image","image":"{}"}})", R"({{"type":"image","image_url":{{"url":"{}"}}}})"})
    EXPECT_EQ(tokenized(fmt::format(fmt::runtime(form), url)), count) << form;
  const std::string input =
      strf(R"({{"input":[{{"role":"user","content":[{{"type":"input_image","image_url":"{}"}}]}}]}})", url);
  EXPECT_EQ(number(ask("/v1/responses/input_tokens", input), {"input_tokens"}), count);
  const auto message = [](std::string_view source) {
    return strf(
        R"({{"max_tokens":1,"messages":[{{"role":"user","content":[{{"type":"image","source":{}}}]}}]}})",
        source);
  };
  const std::string base64 =
      strf(R"({{"type":"base64","media_type":"image/jpeg","data":"{}"}})", to_base64(file));
  EXPECT_EQ(number(ask("/v1/messages/count_tokens", message(base64)), {"input_tokens"}), count);
  EXPECT_EQ(number(ask("/v1/messages", message(base64)), {"usage", "input_tokens"}), count);
  const RawResponse bad =
      ask("/v1/messages", message(R"({"type":"base64","media_type":"image/png","data":"AAAA"})"));
  EXPECT_EQ(bad.status, 400);
  EXPECT_THAT(bad.body, HasSubstr("messages[0].content[0].source.data"));
}

TEST_F(PicturesTest, MemoryIsBoundedAndComesBack) {
  const std::string body = user(vision_model().image_of("photo"));
  {
    const auto taken = loader_->memory().take(memory_);
    const RawResponse response = ask("/v1/chat/completions", body);
    EXPECT_EQ(response.status, 429) << response.body;
    EXPECT_THAT(response.body, HasSubstr("are under way"));
  }
  EXPECT_EQ(ask("/v1/chat/completions", body).status, 200);
}

// A client that goes away while its picture is fetched or decoded leaves nothing behind.
TEST_F(PicturesTest, WhoIsGoneWaitsForNothing) {
  for (int i = 0; i < 4; ++i) {
    test::RawClient client(server_->port());
    client.send(json_post("/v1/chat/completions", user(vision_model().image_of("big"), 100),
                          "Authorization: Bearer key-of-a\r\n"));
    client.close();
  }
  EXPECT_EQ(chat(vision_model().image_of("alpha"), "key-of-b").status, 200);
}

}  // namespace
}  // namespace sparrow
