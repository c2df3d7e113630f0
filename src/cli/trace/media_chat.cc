// SPDX-License-Identifier: Apache-2.0
#include "cli/trace/media_chat.h"

#include <utility>

#include "base/files/mapped_file.h"
#include "base/json/json.h"
#include "base/json/json_writer.h"
#include "cli/load_model.h"
#include "media/prepare.h"
#include "media/video.h"
#include "model/vision/segments.h"
#include "text/chat_template.h"
#include "text/media_prompt.h"

namespace sparrow::cli {
namespace {

constexpr size_t kMaxChatBytes = size_t{16} << 20;
constexpr int64_t kMaxFrames = int64_t{1} << 30;

Result<MediaPatches> read_image(const Json& part, const std::filesystem::path& folder) {
  const std::string path = SPARROW_TRY(SPARROW_TRY(part.at("image")).as_string());
  const MappedFile file = SPARROW_TRY(MappedFile::open(folder / path));
  Result<MediaPatches> patches = prepare_image(file.bytes(), SizeRule{}, DecodeLimits{});
  if (!patches.ok()) return Error{patches.error().code, strf("{}: {}", path, patches.error().message)};
  return patches;
}

// Its frames as they are listed: nobody samples them here.
Result<Video> read_video(const Json& part, const std::filesystem::path& folder) {
  const Json paths = SPARROW_TRY(part.at("video"));
  SPARROW_TRY(paths.expect_array());
  std::vector<MappedFile> files;
  std::vector<std::span<const std::byte>> bytes;
  for (size_t i = 0; i < paths.size(); ++i) {
    files.push_back(SPARROW_TRY(MappedFile::open(folder / SPARROW_TRY(paths.element(i).as_string()))));
    bytes.push_back(files.back().bytes());
  }
  Video video = SPARROW_TRY(video_of_files(bytes, VideoRule{}, DecodeLimits{}));
  const auto indices = part.find("frames_indices");
  if (!indices || !part.find("fps")) return video;
  video.fps = SPARROW_TRY(part.number_or("fps", 0));
  SPARROW_TRY(indices->expect_array());
  if (indices->size() != files.size())
    return indices->error(strf("must have an index for each of the {} frames", files.size()));
  for (size_t i = 0; i < indices->size(); ++i)
    video.indices.push_back(SPARROW_TRY(indices->element(i).as_int(0, kMaxFrames)));
  return video;
}

struct Media {
  std::vector<RequestMedium> numbers;
  std::vector<MediumText> texts;

  void add(MediaPatches patches, MediumText text, const VisionConfig& vision) {
    text.tokens = sparrow::tokens_of(vision, patches.grid) / patches.grid.t;
    text.patches = patches.grid.t;
    texts.push_back(std::move(text));
    RequestMedium medium{.grid = patches.grid};
    medium.patches = std::make_shared<const std::vector<float>>(std::move(patches.rows));
    // Nobody but this chat is there: its number tells a medium from the others.
    const size_t number = numbers.size();
    for (size_t i = 0; i < sizeof number; ++i) medium.digest[i] = static_cast<uint8_t>(number >> (8 * i));
    numbers.push_back(std::move(medium));
  }
};

Status add_part(const Json& part, const std::filesystem::path& folder, const VisionConfig& vision,
                Media& media) {
  const std::string type = SPARROW_TRY(part.string_or("type", "text"));
  if (type == "image") {
    media.add(SPARROW_TRY(read_image(part, folder)), {}, vision);
  } else if (type == "video") {
    const Video video = SPARROW_TRY(read_video(part, folder));
    MediumText text{.is_video = true};
    for (const double seconds : patch_seconds(video)) text.seconds.push_back(seconds_text(seconds));
    media.add(patches_of_frames(video.frames), std::move(text), vision);
  } else if (type != "text") {
    return part.error("must have the type text, image or video");
  }
  return Ok{};
}

Result<MediaChat> make_chat(const Json& messages, const std::filesystem::path& folder,
                            const std::filesystem::path& model, const ModelConfig& config) {
  if (!config.vision)
    return Error{Errc::kUnsupported, strf("{} has no vision_config: it takes no images", quoted(model))};
  SPARROW_TRY(messages.expect_array());
  Media media;
  for (size_t i = 0; i < messages.size(); ++i)
    if (const auto content = messages.element(i).find("content"); content && content->is_array())
      for (size_t part = 0; part < content->size(); ++part)
        SPARROW_TRY(add_part(content->element(part), folder, *config.vision, media));

  const ChatTemplate chat_template = SPARROW_TRY(ChatTemplate::load(model));
  const PromptText rendered =
      SPARROW_TRY(chat_template.render({.messages = messages, .form = ChatInput::Form::kTemplate}));
  const PromptText prompt = SPARROW_TRY(expand_media(rendered, media.texts));
  const auto tokenizer = SPARROW_TRY(load_tokenizer(model, config));
  if (!tokenizer) return Error{Errc::kNotFound, strf("{} has no tokenizer.json", quoted(model))};
  MediaChat chat{.ids = SPARROW_TRY(tokenizer->encode(prompt)), .media = std::move(media.numbers)};
  SPARROW_TRY(place(chat.media, chat.ids, *config.vision));
  return chat;
}

}  // namespace

Result<MediaChat> read_media_chat(const std::filesystem::path& file, const std::filesystem::path& model,
                                  const ModelConfig& config) {
  const std::string text = SPARROW_TRY(read_text_file(file, kMaxChatBytes));
  const JsonDocument document =
      SPARROW_TRY(JsonDocument::parse(text, quoted(file), {.max_bytes = kMaxChatBytes}));
  return make_chat(document.root("messages"), file.parent_path(), model, config);
}

Result<MediaChat> ask_about_images(std::span<const std::filesystem::path> images, std::string_view text,
                                   const std::filesystem::path& model, const ModelConfig& config) {
  JsonWriter json;
  json.begin_array().begin_object().key("role").string("user").key("content").begin_array();
  for (const std::filesystem::path& image : images)
    json.begin_object().key("type").string("image").key("image").string(image.string()).end_object();
  json.begin_object().key("type").string("text").key("text").string(text).end_object();
  json.end_array().end_object().end_array();
  const JsonDocument document = SPARROW_TRY(JsonDocument::parse(json.take(), "the message"));
  return make_chat(document.root("messages"), "", model, config);
}

}  // namespace sparrow::cli
