// SPDX-License-Identifier: Apache-2.0
// A scheduler and its prefix caches under random load, which publish their events like a server: what
// kv_events.py compares its picture with. Reads one JSON object from its command line; see Options.
//
//   -> endpoints   one line for each group
//   <- go          somebody listens
//   -> checkpoint GROUP SEQUENCE BLOCKS, then a line "HASH PARENT SHA256_OF_IDS SALT MEDIA" for each block
//   <- go          that was compared
//   -> end REQUESTS STEPS PREEMPTIONS EVENTS_DROPPED BATCHES_REFUSED
#include <gtest/gtest.h>
#include <openssl/sha.h>

#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <map>
#include <set>
#include <span>
#include <string>

#include "base/check.h"
#include "base/json/json.h"
#include "server/events/kv_event_format.h"
#include "server/events/kv_event_publisher.h"
#include "server/metrics.h"
#include "support/engine/scheduler_simulation.h"

namespace sparrow {
namespace {

void say(const std::string& line) {
  std::fputs((line + "\n").c_str(), stdout);
}

// False: nobody is there any more.
bool wait_for_go() {
  std::fflush(stdout);
  std::string line;
  return static_cast<bool>(std::getline(std::cin, line));
}

std::string hex_of(std::span<const uint8_t> bytes) {
  std::string hex;
  for (const uint8_t byte : bytes) hex += strf("{:02x}", byte);
  return hex;
}

std::string line_of(const CacheEvent& event, size_t block) {
  unsigned char sum[SHA256_DIGEST_LENGTH];
  SHA256(reinterpret_cast<const unsigned char*>(event.ids.data() + block * kBlockTokens),
         kBlockTokens * sizeof(int32_t), sum);
  const std::optional<Digest> parent = block == 0 ? event.parent : event.digests[block - 1];
  const CacheEvent::Extra& extra = event.extras[block];
  std::string media;
  for (const MediaSpan& span : extra.media)
    media += strf("{}{}@{}", media.empty() ? "" : ",", hex_of(span.digest), span.begin);
  return strf("{} {} {} {} {}", block_hash(event.digests[block]),
              parent ? std::to_string(block_hash(*parent)) : "-", hex_of(sum),
              extra.salt.empty() ? "-" : extra.salt, media.empty() ? "-" : media);
}

// A counter of the publisher, as a router would read it.
int64_t counted(const Metrics& metrics, const std::string& name) {
  const std::string text = metrics.exposition();
  const size_t at = text.find("\n" + name + "{");
  SPARROW_CHECK(at != text.npos);
  return std::atoll(text.c_str() + text.find("} ", at) + 2);
}

bool tell_state(const Scheduler& scheduler, const std::map<int, int64_t>& num_batches) {
  for (int group = 0; group < scheduler.num_groups(); ++group) {
    std::vector<CacheEvent> all;
    scheduler.cache(group).list(all);
    say(strf("checkpoint {} {} {}", group, num_batches.at(group) - 1, scheduler.cache(group).num_known()));
    for (const CacheEvent& event : all)
      for (size_t block = 0; block < event.digests.size(); ++block) say(line_of(event, block));
    if (!wait_for_go()) return false;
  }
  return true;
}

Result<int> run(const std::string& text) {
  const JsonDocument document = SPARROW_TRY(JsonDocument::parse(text, "options"));
  const Json root = document.root();
  const int64_t every = SPARROW_TRY(root.int_or("checkpoint_steps", 100, 1, INT64_MAX));
  test::SimulationOptions options;
  options.seed = static_cast<uint64_t>(SPARROW_TRY(root.int_or("seed", 1, 0, INT64_MAX)));
  options.num_requests = SPARROW_TRY(root.int_or("requests", 1000, 1, INT64_MAX));
  options.limits.groups = static_cast<int>(SPARROW_TRY(root.int_or("groups", 1, 1, 8)));
  options.pictures = 0.3;
  const auto publisher = SPARROW_TRY(KvEventPublisher::start(
      SPARROW_TRY(parse_kv_event_options(SPARROW_TRY(root.string_or("events", "")))), options.limits.groups));
  Metrics metrics;
  publisher->add_metrics(metrics, "m3");
  for (const std::string& line : publisher->endpoints()) say(line);
  if (!wait_for_go()) return 1;
  std::map<int, int64_t> num_batches;
  std::set<int> behind;  // groups whose latest batch the publisher did not take: it gets everything anew
  int64_t refused = 0;
  options.cache_events = [&, sink = publisher->sink()](int group, std::vector<CacheEvent> events) {
    const bool taken = sink(group, std::move(events));
    num_batches[group] += taken;
    refused += !taken;
    if (taken)
      behind.erase(group);
    else
      behind.insert(group);
    return taken;
  };
  bool due = false;
  options.after_step = [&](const Scheduler& scheduler, int64_t step) {
    due = due || step % every == 0 || scheduler.idle();
    if (!due || !behind.empty()) return;
    due = false;
    if (!tell_state(scheduler, num_batches)) std::exit(1);
  };
  const test::SimulationOutcome outcome = simulate_scheduler(options);
  say(strf("end {} {} {} {} {}", options.num_requests, outcome.steps, outcome.stats.preemptions,
           counted(metrics, "sparrow:kv_events_dropped_total"), refused));
  return testing::Test::HasFailure() ? 1 : 0;
}

}  // namespace
}  // namespace sparrow

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  const sparrow::Result<int> code = sparrow::run(argv[1]);
  if (!code.ok()) std::fputs((code.error().message + "\n").c_str(), stderr);
  return code.ok() ? code.value() : 2;
}
