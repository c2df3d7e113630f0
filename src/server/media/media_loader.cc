// SPDX-License-Identifier: Apache-2.0
#include "server/media/media_loader.h"

#include <algorithm>
#include <array>
#include <mutex>
#include <utility>

#include "base/strf.h"
#include "media/frame_list.h"
#include "media/source/data_url.h"

namespace sparrow {
namespace {

constexpr int kVideoThreads = 2;

template <typename T>
std::span<const std::byte> bytes_of(const T& value) {
  return std::as_bytes(std::span(&value, 1));
}

// How a medium is made of its files: two that differ in it are two.
Sha256Digest digest_of(const MediaSource& source, std::span<const Sha256Digest> files) {
  const SizeRule& size = source.is_video ? source.video.frame : source.image;
  const std::array<int64_t, 6> rule{source.is_video, source.is_frame_list,           size.min_pixels,
                                    size.max_pixels, size.max_long_side.value_or(0), source.video.max_frames};
  return sha256({bytes_of(rule), bytes_of(source.video.fps), std::as_bytes(files)});
}

PictureLimits picture_limits(const MediaSettings& settings) {
  return {.pictures = settings.max_images + settings.max_videos * settings.limits.max_frames,
          .all_bytes = settings.max_request_bytes,
          .all_pixels = settings.max_images * settings.limits.max_image_pixels +
                        settings.max_videos * settings.limits.max_video_pixels,
          .decode = settings.limits.decode};
}

}  // namespace

class MediaLoad {
 public:
  struct State {
    MediaFetcher& fetcher;
    WorkQueue& videos;
    ByteBudget& memory;
    const VideoLimits limits;
    const std::string key, salt;
    const std::stop_token server_stops;
    std::vector<MediaSource> sources;
    std::mutex mutex;
    MediaLoader::Done done;
    std::vector<LoadedMedium> media;
    size_t left;  // videos, the pictures as one, and the call that begins it all
    std::vector<uint64_t> fetches, decodes;
    std::shared_ptr<PictureLoad> pictures;
    std::stop_source stop;  // ffmpeg
    std::stop_callback<std::function<void()>> stop_with_server{server_stops, [this] { stop.request_stop(); }};

    void fail(Error error) {
      MediaLoader::Done call;
      {
        const std::lock_guard lock(mutex);
        call = std::exchange(done, nullptr);
      }
      if (call) call(std::move(error));
    }
    void arrived() {
      MediaLoader::Done call;
      {
        const std::lock_guard lock(mutex);
        if (--left == 0) call = std::exchange(done, nullptr);
      }
      if (call) call(std::move(media));
    }
    bool is_wanted() {
      const std::lock_guard lock(mutex);
      return static_cast<bool>(done);
    }
    void cancel_all() {
      std::vector<uint64_t> fetching, decoding;
      std::shared_ptr<PictureLoad> load;
      {
        const std::lock_guard lock(mutex);
        done = nullptr;
        fetching.swap(fetches), decoding.swap(decodes), load.swap(pictures);
      }
      for (const uint64_t id : fetching) fetcher.cancel(id);
      for (const uint64_t id : decoding) videos.remove(id);
      stop.request_stop();
    }
  };

  explicit MediaLoad(std::shared_ptr<State> state) : state_(std::move(state)) {}
  ~MediaLoad() { state_->cancel_all(); }
  MediaLoad(const MediaLoad&) = delete;
  MediaLoad& operator=(const MediaLoad&) = delete;

 private:
  std::shared_ptr<State> state_;
};

namespace {

using State = MediaLoad::State;

// The pictures have come: they are images, or the frames of videos.
Status take_pictures(State& state, std::vector<LoadedPicture> pictures) {
  size_t next = 0;
  for (size_t i = 0; i < state.sources.size(); ++i) {
    const MediaSource& source = state.sources[i];
    if (source.is_video && !source.is_frame_list) continue;
    std::vector<Sha256Digest> files;
    Video& video = state.media[i].video;
    for (const std::string& field : source.fields) {
      LoadedPicture& picture = pictures[next++];
      files.push_back(picture.file);
      if (!video.frames.empty() &&
          (picture.image.width != video.frames[0].width || picture.image.height != video.frames[0].height))
        return Error{Errc::kInvalidArgument, strf("{}: a frame of another shape than the first", field),
                     field};
      video.frames.push_back(std::move(picture.image));
      state.media[i].memory.push_back(std::move(picture.memory));
    }
    const ImageSize size{.height = video.frames[0].height, .width = video.frames[0].width};
    if (source.is_video)
      if (const Status fits = FrameList::check(size, std::ssize(video.frames), source.video); !fits.ok())
        return Error{fits.error().code, strf("{}: {}", source.fields[0], fits.error().message),
                     source.fields[0]};
    video.fps = source.frame_rate;
    video.indices = source.frame_indices;
    state.media[i].digest = digest_of(source, files);
  }
  return Ok{};
}

Status load_pictures(const std::shared_ptr<State>& state, const PictureLoader& loader) {
  std::vector<PictureSource> pictures;
  for (MediaSource& source : state->sources)
    for (size_t i = 0; i < source.urls.size() && (!source.is_video || source.is_frame_list); ++i)
      pictures.push_back({.from = std::move(source.urls[i]),
                          .rule = source.is_video ? source.video.frame : source.image,
                          .field = source.fields[i]});
  if (pictures.empty()) {
    state->arrived();
    return Ok{};
  }
  const auto loaded = [state](Result<std::vector<LoadedPicture>> result) {
    if (!result.ok()) return state->fail(result.error());
    if (const Status taken = take_pictures(*state, std::move(result).value()); !taken.ok())
      return state->fail(taken.error());
    state->arrived();
  };
  auto load = SPARROW_TRY(loader.load(state->key, std::move(pictures), loaded, state->salt));
  const std::lock_guard lock(state->mutex);
  state->pictures = std::move(load);
  return Ok{};
}

// The file is there: ffmpeg reads it, when it is its turn.
void decode_video(const std::shared_ptr<State>& state, size_t place, MediaBytes file) {
  const size_t size = file.size();
  const auto shared = std::make_shared<const MediaBytes>(std::move(file));
  const uint64_t id = state->videos.post(state->key, size, [state, place, shared] {
    if (!state->is_wanted()) return;
    const MediaSource& source = state->sources[place];
    const auto reserve = [&](int64_t bytes) -> Status {
      auto share = state->memory.take(bytes);
      if (!share)
        return Error{Errc::kBusy,
                     strf("there is no room for a video of {} MB now: try again later", bytes >> 20)};
      state->media[place].memory.push_back(std::move(*share));
      return Ok{};
    };
    Result<Video> video = video_of_file(*shared, source.video, state->limits,
                                        {.reserve = reserve, .stop = state->stop.get_token()});
    if (state->server_stops.stop_requested()) return state->fail({Errc::kStopped, "the server is stopping"});
    if (!video.ok())
      return state->fail(
          {video.error().code, strf("{}: {}", source.fields[0], video.error().message), source.fields[0]});
    state->media[place].video = std::move(video).value();
    const Sha256Digest digest = sha256({*shared});
    state->media[place].digest = digest_of(source, {&digest, 1});
    state->arrived();
  });
  const std::lock_guard lock(state->mutex);
  state->decodes.push_back(id);
}

Status load_video(const std::shared_ptr<State>& state, size_t place) {
  MediaSource& source = state->sources[place];
  const std::string url = std::move(source.urls[0]), field = source.fields[0];
  const auto named = [field](const Error& error) {
    return Error{error.code, strf("{}: {}", field, error.message), field};
  };
  if (is_data_url(url)) {
    Result<DataUrl> data = decode_data_url(url, state->limits.max_bytes);
    if (!data.ok()) return named(data.error());
    decode_video(state, place, std::move(data.value().bytes));
    return Ok{};
  }
  const Result<uint64_t> id =
      state->fetcher.submit(state->key, url, [state, place, named](Result<MediaBytes> file) {
        if (!file.ok()) return state->fail(named(file.error()));
        decode_video(state, place, std::move(file).value());
      });
  if (!id.ok()) return named(id.error());
  const std::lock_guard lock(state->mutex);
  state->fetches.push_back(id.value());
  return Ok{};
}

}  // namespace

MediaLoader::MediaLoader(MediaWorkers& workers, MediaFetcher& fetcher, const MediaSettings& settings,
                         int64_t memory)
    : fetcher_(fetcher),
      settings_(settings),
      memory_(memory),
      cache_(settings.cache_bytes),
      pictures_(workers, fetcher, picture_limits(settings), {.cache = &cache_, .memory = &memory_}),
      videos_(kVideoThreads, SIZE_MAX) {}

Result<std::shared_ptr<MediaLoad>> MediaLoader::load(const std::string& key, const std::string& salt,
                                                     std::vector<MediaSource> sources, Done done) {
  const size_t count = sources.size();
  const auto is_file = [](const MediaSource& source) { return source.is_video && !source.is_frame_list; };
  const auto videos = static_cast<size_t>(std::ranges::count_if(sources, is_file));
  const std::shared_ptr<State> state(new State{.fetcher = fetcher_,
                                               .videos = videos_,
                                               .memory = memory_,
                                               .limits = settings_.limits.video,
                                               .key = key,
                                               .salt = salt,
                                               .server_stops = stop_.get_token(),
                                               .sources = std::move(sources),
                                               .done = std::move(done),
                                               .media = std::vector<LoadedMedium>(count),
                                               .left = videos + 2});
  auto load = std::make_shared<MediaLoad>(state);
  for (size_t i = 0; i < count; ++i) state->media[i].is_video = state->sources[i].is_video;
  Status begun = load_pictures(state, pictures_);
  for (size_t i = 0; i < count && begun.ok(); ++i)
    if (is_file(state->sources[i])) begun = load_video(state, i);
  if (!begun.ok()) {
    const std::lock_guard lock(state->mutex);
    if (!state->done) return load;  // another one has failed by now, and said so
    state->done = nullptr;
    return begun.error();
  }
  state->arrived();
  return load;
}

}  // namespace sparrow
