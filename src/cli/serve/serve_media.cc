// SPDX-License-Identifier: Apache-2.0
#include "cli/serve/serve_media.h"

#include <algorithm>

#include "base/json/json.h"
#include "cli/args/byte_size.h"
#include "cli/commands.h"

namespace sparrow::cli {
namespace {

constexpr const char* kLimitFlag = "--limit-mm-per-prompt";
constexpr int64_t kMaxImages = 256, kMaxVideos = 16;

// {"image": 8, "video": 1}, or as vLLM also writes it, {"image": {"count": 8}}.
Status read_counts(const std::string& text, MediaSettings& settings) {
  if (text.empty()) return Ok{};
  const JsonDocument document = SPARROW_TRY(JsonDocument::parse(text, kLimitFlag));
  const Json root = document.root(kLimitFlag);
  SPARROW_TRY(root.expect_object());
  for (size_t i = 0; i < root.size(); ++i) {
    const std::string_view key = root.key(i);
    Json count = root.member(i);
    if (count.is_object()) count = SPARROW_TRY(count.at("count"));
    if (key == "image") {
      settings.max_images = static_cast<int>(SPARROW_TRY(count.as_int(0, kMaxImages)));
    } else if (key == "video") {
      settings.max_videos = static_cast<int>(SPARROW_TRY(count.as_int(0, kMaxVideos)));
    } else if (key != "audio" || SPARROW_TRY(count.as_int(0, 0)) != 0) {
      return count.error("must be image or video");
    }
  }
  return Ok{};
}

// Why there are none; empty: there are.
std::string refusal_of(const MediaFlags& flags, const ModelConfig& config, const Engine& engine) {
  if (!config.vision) return "this model takes text alone";
  if (flags.language_model_only) return "this server runs with --language-model-only";
  if (!engine.limits().media.vision) return "--device sim runs no vision tower";
  return "";
}

Result<std::unique_ptr<MediaWorkers>> start_workers(const MediaFlags& flags, const MediaLimits& limits) {
  MediaWorkersOptions options =
      picture_worker_options(limits.decode, {.max_pixels = limits.max_image_pixels}, flags.workers);
  options.command.arguments = {kMediaWorkerCommand};
  options.of_owner.items = flags.max_per_key;
  options.least_time = std::chrono::seconds(flags.timeout_seconds);
  options.start_time = std::max<std::chrono::milliseconds>(options.start_time, options.least_time);
  auto workers = MediaWorkers::start(options);
  if (!workers.ok())
    return Error{workers.error().code,
                 strf("{}; --language-model-only serves text without them", workers.error().message)};
  return workers;
}

}  // namespace

Result<MediaSettings> media_settings(const MediaFlags& flags) {
  MediaSettings settings;
  MediaLimits& limits = settings.limits;
  limits.decode.max_bytes =
      static_cast<size_t>(SPARROW_TRY(parse_byte_size(flags.max_file_size, "--max-media-size")));
  limits.video.max_bytes =
      static_cast<size_t>(SPARROW_TRY(parse_byte_size(flags.max_video_size, "--max-video-size")));
  limits.decode.max_pixels = flags.max_file_pixels;
  limits.max_image_pixels = flags.max_image_pixels;
  limits.max_video_pixels = flags.max_video_pixels;
  limits.max_frames = std::min(limits.max_frames, flags.max_per_key);  // as a list: one picture each
  SPARROW_TRY(parse_byte_size(flags.memory, "--media-memory"));
  settings.cache_bytes = static_cast<size_t>(flags.cache_gib * 0x1p30);
  SPARROW_TRY(read_counts(flags.limit_per_prompt, settings));
  SPARROW_TRY(AllowedDomains::parse(flags.allowed_domains));
  if (!flags.allowed_local_path.empty()) SPARROW_TRY(LocalMedia::open(flags.allowed_local_path));
  return settings;
}

Result<std::unique_ptr<ServeMedia>> ServeMedia::start(const MediaFlags& flags, const ModelConfig& config,
                                                      const Engine& engine) {
  auto media = std::make_unique<ServeMedia>();
  media->served_.refusal = refusal_of(flags, config, engine);
  if (!media->served_.refusal.empty()) return media;
  MediaSettings settings = SPARROW_TRY(media_settings(flags));
  // Larger ones would be refused by the engine, once they are decoded.
  settings.limits.max_image_pixels = std::min(settings.limits.max_image_pixels,
                                              engine.limits().media.feature_tokens * kTokenSide * kTokenSide);
  media->workers_ = SPARROW_TRY(start_workers(flags, settings.limits));
  MediaFetcherOptions fetcher{
      .local_path = flags.allowed_local_path,
      .max_bytes = std::max(settings.limits.decode.max_bytes, settings.limits.video.max_bytes),
      .max_fetches_of_key = flags.max_per_key};
  fetcher.web.domains = SPARROW_TRY(AllowedDomains::parse(flags.allowed_domains));
  media->fetcher_ = SPARROW_TRY(MediaFetcher::start(std::move(fetcher)));
  media->loader_ =
      std::make_unique<MediaLoader>(*media->workers_, *media->fetcher_, settings,
                                    SPARROW_TRY(parse_byte_size(flags.memory, "--media-memory")));
  media->served_.loader = media->loader_.get();
  media->served_.vision = config.vision;
  return media;
}

}  // namespace sparrow::cli
