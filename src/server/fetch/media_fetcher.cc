// SPDX-License-Identifier: Apache-2.0
#include "server/fetch/media_fetcher.h"

#include <signal.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "base/utf8.h"

namespace sparrow {
namespace {

Error cancelled_error() {
  return {Errc::kStopped, "cancelled"};
}

}  // namespace

Result<std::unique_ptr<MediaFetcher>> MediaFetcher::start(MediaFetcherOptions options) {
  ::signal(SIGPIPE, SIG_IGN);  // a server that closes early is an error of its own picture
  std::unique_ptr<MediaFetcher> fetcher(new MediaFetcher(options));
  options.web.limits.body_bytes = options.max_bytes;
  if (!options.web.domains.empty()) fetcher->web_ = SPARROW_TRY(WebFetch::create(std::move(options.web)));
  if (!options.local_path.empty()) fetcher->local_ = SPARROW_TRY(LocalMedia::open(options.local_path));
  for (int i = 0; i < std::max(options.threads, 1); ++i)
    fetcher->threads_.emplace_back([f = fetcher.get()] { f->run(); });
  return fetcher;
}

MediaFetcher::MediaFetcher(const MediaFetcherOptions& options)
    : max_bytes_(options.max_bytes),
      queue_({.items = options.max_fetches, .bytes = std::numeric_limits<size_t>::max()},
             {.items = options.max_fetches_of_key, .bytes = std::numeric_limits<size_t>::max()}) {}

MediaFetcher::~MediaFetcher() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    for (const auto& [id, cancelled] : running_) cancelled->store(true, std::memory_order_relaxed);
  }
  changed_.notify_all();
  for (std::thread& thread : threads_) thread.join();
  while (std::optional<Fetch> waiting = queue_.pop()) waiting->done(cancelled_error());
}

Status MediaFetcher::check_kind(const std::string& url) const {
  const auto off = [](const char* what, const char* flag) {
    return Error{Errc::kUnsupported, strf("{} are not fetched: this server runs without {}", what, flag)};
  };
  if (is_web_url(url)) {
    if (!web_) return off("http and https URLs", "--allowed-media-domains");
    return Ok{};
  }
  if (is_file_url(url)) {
    if (!local_) return off("file URLs", "--allowed-local-media-path");
    return Ok{};
  }
  return Error{Errc::kInvalidArgument, strf("URL {}: neither data:, http://, https:// nor file://",
                                            excerpt(replace_invalid_utf8(url), 64))};
}

Result<uint64_t> MediaFetcher::submit(const std::string& key, std::string url, Done done) {
  SPARROW_TRY(check_kind(url));
  uint64_t id = 0;
  {
    const std::lock_guard lock(mutex_);
    if (stopping_) return Error{Errc::kStopped, "the server is shutting down"};
    id = ++last_id_;
    using Queue = FairQueue<Fetch>;
    const Queue::Push pushed =
        queue_.push(key, 0, 1, Fetch{.id = id, .key = key, .url = std::move(url), .done = std::move(done)});
    if (pushed != Queue::Push::kTaken)
      return Error{Errc::kBusy, pushed == Queue::Push::kFull
                                    ? "too many URLs wait to be fetched"
                                    : "too many URLs of this key wait to be fetched"};
  }
  changed_.notify_one();
  return id;
}

void MediaFetcher::cancel(uint64_t id) {
  std::optional<Fetch> waiting;
  {
    const std::lock_guard lock(mutex_);
    waiting = queue_.remove([&](const Fetch& fetch) { return fetch.id == id; });
    for (const auto& [running, cancelled] : running_)
      if (running == id) cancelled->store(true, std::memory_order_relaxed);
  }
  if (waiting) finish(*waiting, cancelled_error());
}

void MediaFetcher::run() {
  for (;;) {
    std::optional<Fetch> fetch;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return stopping_ || queue_.num_waiting() > 0; });
      if (stopping_) return;
      fetch = queue_.pop();
      running_.emplace_back(fetch->id, fetch->cancelled.get());
    }
    Result<MediaBytes> result = get(*fetch);
    {
      const std::lock_guard lock(mutex_);
      std::erase_if(running_, [&](const auto& entry) { return entry.first == fetch->id; });
    }
    finish(*fetch, std::move(result));
  }
}

Result<MediaBytes> MediaFetcher::get(const Fetch& fetch) const {
  if (is_web_url(fetch.url)) return web_->fetch(fetch.url, fetch.cancelled.get());
  return local_->read(SPARROW_TRY(path_of_file_url(fetch.url)), max_bytes_);
}

void MediaFetcher::finish(const Fetch& fetch, Result<MediaBytes> result) {
  {
    const std::lock_guard lock(mutex_);
    queue_.release(fetch.key, 0);
  }
  fetch.done(std::move(result));
}

}  // namespace sparrow
