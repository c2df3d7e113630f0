// SPDX-License-Identifier: Apache-2.0
#include "server/fetch/picture_loader.h"

#include <mutex>
#include <optional>
#include <utility>

#include "base/strf.h"
#include "media/source/data_url.h"

namespace sparrow {
namespace {

// Some APIs have no place for the field but the message.
Error named(const Error& error, const std::string& field) {
  return {error.code, field.empty() ? error.message : strf("{}: {}", field, error.message), field};
}

}  // namespace

// What the calls of a load share. Those that come after its end find `done` empty.
class PictureLoad {
 public:
  struct State {
    MediaWorkers& workers;
    MediaFetcher& fetcher;
    const PictureLimits limits;
    const PictureStores stores;
    const std::string key, salt;
    const std::vector<PictureSource> sources;  // without their bytes
    std::mutex mutex;
    PictureLoader::Done done;
    std::vector<LoadedPicture> pictures;
    std::vector<uint64_t> fetches, decodes;  // that have begun
    int64_t pixels = 0;                      // of those that have come, as the model sees them
    size_t left;

    // A picture of that size is about to be made, and later its patches.
    Status reserve(size_t place, int64_t size) {
      // RGB, and floats for two frames of it.
      constexpr int64_t kBytesPerPixel = 3 + 2 * 3 * sizeof(float);
      const std::lock_guard lock(mutex);
      pixels += size;
      if (pixels > limits.all_pixels)
        return Error{Errc::kInvalidArgument,
                     strf("pictures of more than {} pixels in one request", limits.all_pixels)};
      if (!stores.memory) return Ok{};
      ByteBudget& memory = *stores.memory;
      auto share = memory.take(size * kBytesPerPixel);
      // Later there would be no more room: one picture alone is always taken, several are not.
      if (!share && pixels > size && pixels * kBytesPerPixel > memory.limit())
        return Error{Errc::kInvalidArgument,
                     strf("pictures of {} MB in one request, and the server has room for {} MB "
                          "(--media-memory)",
                          pixels * kBytesPerPixel >> 20, memory.limit() >> 20)};
      if (!share)
        return Error{Errc::kBusy,
                     strf("pictures of {} MB are under way, this one would have {} MB, and the "
                          "server has room for {} MB: try again later",
                          memory.used() >> 20, size * kBytesPerPixel >> 20, memory.limit() >> 20)};
      pictures[place].memory = std::move(*share);
      return Ok{};
    }

    // One picture is there, or has failed. The last one, and the first that fails, end the load.
    void take(size_t place, Result<Image> image) {
      PictureLoader::Done call;
      std::optional<Error> error;
      {
        const std::lock_guard lock(mutex);
        if (!done) return;
        if (image.ok())
          pictures[place].image = std::move(image).value();
        else
          error = named(image.error(), sources[place].field);
        if (!error && --left > 0) return;
        call = std::exchange(done, nullptr);
      }
      if (error) {
        cancel_all();
        return call(*error);
      }
      call(std::move(pictures));
    }

    void cancel_all() {
      std::vector<uint64_t> fetching, decoding;
      {
        const std::lock_guard lock(mutex);
        fetching.swap(fetches), decoding.swap(decodes);
      }
      for (const uint64_t id : fetching) fetcher.cancel(id);
      for (const uint64_t id : decoding) workers.cancel(id);
    }
  };

  explicit PictureLoad(std::shared_ptr<State> state) : state_(std::move(state)) {}
  ~PictureLoad() {
    {
      const std::lock_guard lock(state_->mutex);
      state_->done = nullptr;
    }
    state_->cancel_all();
  }
  PictureLoad(const PictureLoad&) = delete;
  PictureLoad& operator=(const PictureLoad&) = delete;

 private:
  std::shared_ptr<State> state_;
};

namespace {

using State = PictureLoad::State;

// The file is there: on to a worker.
Status decode(const std::shared_ptr<State>& state, size_t place, MediaBytes file) {
  const Sha256Digest digest = sha256({file});
  state->pictures[place].file = digest;  // nobody else looks at this place before it is taken
  const SizeRule& rule = state->sources[place].rule;
  const ImageHeader header = SPARROW_TRY(admit_image(file, state->limits.decode));
  SPARROW_TRY(state->reserve(place, SPARROW_TRY(smart_resize(header.height, header.width, rule)).pixels()));
  PictureCache* const cache = state->stores.cache;
  const Sha256Digest cached_as = PictureCache::id_of(state->salt, digest, rule);
  if (cache)
    if (std::optional<Image> known = cache->find(cached_as)) {
      state->take(place, std::move(*known));
      return Ok{};
    }
  const auto decoded = [state, place, cache, cached_as](Result<Image> image) {
    if (image.ok() && cache) cache->add(cached_as, state->key, image.value());
    state->take(place, std::move(image));
  };
  const uint64_t id = SPARROW_TRY(PictureDecoder(state->workers, state->limits.decode)
                                      .submit(state->key, std::move(file), rule, decoded));
  {
    const std::lock_guard lock(state->mutex);
    if (state->done) {
      state->decodes.push_back(id);
      return Ok{};
    }
  }
  state->workers.cancel(id);  // the load has ended meanwhile
  return Ok{};
}

Status fetch(const std::shared_ptr<State>& state, size_t place, const std::string& url) {
  const auto fetched = [state, place](Result<MediaBytes> file) {
    if (!file.ok()) return state->take(place, file.error());
    const Status begun = decode(state, place, std::move(file).value());
    if (!begun.ok()) state->take(place, begun.error());
  };
  const uint64_t id = SPARROW_TRY(state->fetcher.submit(state->key, url, fetched));
  const std::lock_guard lock(state->mutex);
  state->fetches.push_back(id);
  return Ok{};
}

// The bytes that came with the request; nullopt: they are elsewhere.
Result<std::optional<MediaBytes>> own_bytes(PictureSource& source, size_t max_bytes) {
  if (auto* const bytes = std::get_if<MediaBytes>(&source.from)) return std::optional(std::move(*bytes));
  const std::string& url = std::get<std::string>(source.from);
  if (!is_data_url(url)) return std::optional<MediaBytes>();
  return std::optional(SPARROW_TRY(decode_data_url(url, max_bytes)).bytes);
}

}  // namespace

Result<std::shared_ptr<PictureLoad>> PictureLoader::load(const std::string& key,
                                                         std::vector<PictureSource> sources, Done done,
                                                         std::string salt) const {
  if (sources.empty() || std::ssize(sources) > limits_.pictures)
    return Error{Errc::kInvalidArgument,
                 strf("{} pictures; at most {} are allowed", sources.size(), limits_.pictures)};
  std::vector<std::optional<MediaBytes>> files;
  std::vector<std::string> urls;
  size_t bytes = 0;
  for (size_t i = 0; i < sources.size(); ++i) {
    Result<std::optional<MediaBytes>> own = own_bytes(sources[i], limits_.decode.max_bytes);
    if (!own.ok()) return named(own.error(), sources[i].field);
    bytes += own.value() ? own.value()->size() : 0;
    if (bytes > limits_.all_bytes)
      return named(
          {Errc::kInvalidArgument, strf("pictures of more than {} bytes in one request", limits_.all_bytes)},
          sources[i].field);
    urls.push_back(own.value() ? "" : std::get<std::string>(sources[i].from));
    files.push_back(std::move(*own));
    sources[i].from = MediaBytes();
  }
  const size_t count = sources.size();
  const std::shared_ptr<State> state(new State{.workers = workers_,
                                               .fetcher = fetcher_,
                                               .limits = limits_,
                                               .stores = stores_,
                                               .key = key,
                                               .salt = std::move(salt),
                                               .sources = std::move(sources),
                                               .done = std::move(done),
                                               .pictures = std::vector<LoadedPicture>(count),
                                               .left = count});
  auto load = std::make_shared<PictureLoad>(state);
  for (size_t i = 0; i < count; ++i) {
    const Status begun = files[i] ? decode(state, i, std::move(*files[i])) : fetch(state, i, urls[i]);
    if (begun.ok()) continue;
    const std::lock_guard lock(state->mutex);
    if (!state->done) return load;  // an earlier picture has failed by now, and said so
    state->done = nullptr;          // the load goes, and with it what has begun
    return named(begun.error(), state->sources[i].field);
  }
  return load;
}

}  // namespace sparrow
