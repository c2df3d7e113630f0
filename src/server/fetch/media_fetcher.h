// SPDX-License-Identifier: Apache-2.0
// MediaFetcher: media that a request only names, fetched on a few threads. Keys share them fairly, and a key
// that asks for more than its part is told so.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/result.h"
#include "media/fair_queue.h"
#include "media/media_bytes.h"
#include "media/source/local_media.h"
#include "server/fetch/web_fetch.h"

namespace sparrow {

struct MediaFetcherOptions {
  WebFetchOptions web;                  // without domains: no http and https
  std::string local_path;               // of file URLs; empty: none
  size_t max_bytes = size_t{32} << 20;  // of one picture, wherever it is
  int threads = 8;
  // Waiting and running.
  int max_fetches = 1024, max_fetches_of_key = 128;
};

class MediaFetcher {
 public:
  using Done = std::function<void(Result<MediaBytes>)>;

  static Result<std::unique_ptr<MediaFetcher>> start(MediaFetcherOptions options);
  // Fetches that are not done end with an error of kind kStopped.
  ~MediaFetcher();
  MediaFetcher(const MediaFetcher&) = delete;
  MediaFetcher& operator=(const MediaFetcher&) = delete;

  // Any thread. Errors at once: a URL of a kind that is off, kBusy. Else `done` is called once, on a thread
  // of the fetcher; it must not wait, nor throw. The number is for cancel().
  Result<uint64_t> submit(const std::string& key, std::string url, Done done);
  // Any thread. It ends soon, with an error of kind kStopped where it was not done.
  void cancel(uint64_t id);

 private:
  struct Fetch {
    uint64_t id;
    std::string key, url;
    Done done;
    std::unique_ptr<std::atomic<bool>> cancelled = std::make_unique<std::atomic<bool>>(false);
  };

  explicit MediaFetcher(const MediaFetcherOptions& options);
  Status check_kind(const std::string& url) const;
  void run();
  Result<MediaBytes> get(const Fetch& fetch) const;
  void finish(const Fetch& fetch, Result<MediaBytes> result);

  const size_t max_bytes_;
  std::unique_ptr<WebFetch> web_;    // nullptr: off
  std::optional<LocalMedia> local_;  // nullopt: off
  std::mutex mutex_;
  std::condition_variable changed_;
  FairQueue<Fetch> queue_;
  std::vector<std::pair<uint64_t, std::atomic<bool>*>> running_;
  uint64_t last_id_ = 0;
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace sparrow
