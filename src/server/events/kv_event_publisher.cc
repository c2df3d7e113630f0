// SPDX-License-Identifier: Apache-2.0
#include "server/events/kv_event_publisher.h"

#include <atomic>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/post.hpp>
#include <deque>
#include <thread>

#include "base/strf.h"
#include "server/events/kv_event_format.h"
#include "server/events/kv_event_stream.h"
#include "server/metrics.h"

namespace sparrow {

struct KvEventPublisher::Core {
  explicit Core(const KvEventOptions& options) : options(options) {}
  ~Core() {
    if (!thread.joinable()) return;
    net::post(io, [this] {
      for (KvEventStream& stream : streams) stream.close();
      work.reset();
    });
    thread.join();
  }

  bool take(int group, std::vector<CacheEvent> events) {
    if (num_queued.fetch_add(1) >= options.max_queue_size) {
      --num_queued;
      counts.dropped += num_kv_events(events);
      return false;
    }
    net::post(io, [this, group, events = std::move(events)] {
      streams[static_cast<size_t>(group)].publish(events);
      --num_queued;
    });
    return true;
  }

  const KvEventOptions options;
  KvEventCounts counts;
  std::atomic<int> num_queued{0};  // batches
  net::io_context io{1};
  net::executor_work_guard<net::io_context::executor_type> work{io.get_executor()};
  std::deque<KvEventStream> streams;  // [group]
  std::thread thread;
};

KvEventPublisher::KvEventPublisher(std::unique_ptr<Core> core) : core_(std::move(core)) {}
KvEventPublisher::~KvEventPublisher() = default;

Result<std::unique_ptr<KvEventPublisher>> KvEventPublisher::start(const KvEventOptions& options, int groups) {
  auto core = std::make_unique<Core>(options);
  for (int group = 0; group < groups; ++group) {
    core->streams.emplace_back(core->io, core->options, group, core->counts);
    SPARROW_TRY(core->streams.back().open());
  }
  core->thread = std::thread([io = &core->io] { io->run(); });
  return std::unique_ptr<KvEventPublisher>(new KvEventPublisher(std::move(core)));
}

CacheEventSink KvEventPublisher::sink() {
  return [core = core_.get()](int group, std::vector<CacheEvent> events) {
    return core->take(group, std::move(events));
  };
}

void KvEventPublisher::add_metrics(Metrics& metrics, const std::string& model_name) const {
  const Metrics::Labels labels = {{"model_name", model_name}};
  const KvEventCounts& counts = core_->counts;
  metrics.counter_from(
      "sparrow:kv_events_total", "Blocks stored and removed that were published.",
      [&counts] { return static_cast<double>(counts.published); }, labels);
  metrics.counter_from(
      "sparrow:kv_events_dropped_total", "Blocks stored and removed that a subscriber was not told.",
      [&counts] { return static_cast<double>(counts.dropped); }, labels);
  metrics.gauge_from(
      "sparrow:kv_event_subscribers", "Subscribers of the prefix cache's events.",
      [&counts] { return static_cast<double>(counts.subscribers); }, labels);
}

std::vector<std::string> KvEventPublisher::endpoints() const {
  std::vector<std::string> lines;
  for (const KvEventStream& stream : core_->streams) {
    const std::string replay = stream.replay_endpoint();
    lines.push_back(replay.empty() ? stream.endpoint() : strf("{}, replay {}", stream.endpoint(), replay));
  }
  return lines;
}

}  // namespace sparrow
