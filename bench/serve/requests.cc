// SPDX-License-Identifier: Apache-2.0
#include <chrono>

#include "base/strf.h"
#include "client.h"
#include "scenarios.h"

namespace sparrow::load {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kConnections = 64;
constexpr const char* kKey = "sk-serve-load";

// Requests of `path` over keep-alive, each as soon as the last is answered.
void measure(Report& report, ServerProcess& server, const std::string& name, const std::string& key,
             double run_seconds) {
  Loop loop(server.port());
  const std::string request = get("/v1/models", key);
  const std::string expected = call(server.port(), request).body;
  int64_t answers = 0, wrong = 0;
  std::vector<double> seconds;
  bool stopping = false;
  for (int i = 0; i < kConnections; ++i) {
    Client& client = loop.connect();
    auto sent = std::make_shared<Clock::time_point>(Clock::now());
    client.on_answer = [&, sent](const Answer& answer) {
      ++answers;
      wrong += answer.status != 200 || answer.body != expected;
      seconds.push_back(seconds_since(*sent));
      *sent = Clock::now();
      if (!stopping) client.send(request);
    };
    client.on_closed = [&] { ++wrong; };
    client.send(request);
  }
  const double cpu = server.cpu_seconds();
  const auto start = Clock::now();
  while (seconds_since(start) < run_seconds) loop.turn(std::chrono::milliseconds(10));
  const double rate = static_cast<double>(answers) / seconds_since(start);
  const double cpu_each = (server.cpu_seconds() - cpu) / static_cast<double>(std::max<int64_t>(answers, 1));
  stopping = true;
  report.check(name + ": wrong answers", wrong == 0 && answers > 0, static_cast<double>(wrong), "", "0");
  report.goal(name + ": /v1/models", rate >= 5000, rate, "/s", ">= 5000");
  report.fact(name + ": server's time for each", cpu_each * 1e6, "us CPU");
  if (!seconds.empty()) report.fact(name + ": p99", quantile(seconds, 0.99) * 1e3, "ms");
}

}  // namespace

Report run_requests(const LoadOptions& options) {
  Report report("requests");
  const double seconds = options.brief ? 0.5 : 5;
  {
    ServerProcess server(flags_for(options, options.tiny_model, 64));
    measure(report, server, "no key", "", seconds);
  }
  ServerProcess server(flags_for(options, options.tiny_model, 64, {"--api-key", kKey}));
  const int idle_files = server.num_files_at_rest();
  const double idle_mb = server.memory().other_mb;
  measure(report, server, "key", kKey, seconds);
  report.memory("key: growth of memory", server.memory().other_mb - idle_mb, 8);
  leaves_nothing(report, "key: ", server, idle_files);
  const int refused = call(server.port(), get("/v1/models", "sk-wrong")).status;
  report.check("status for a wrong key", refused == 401, refused, "", "401");
  return report;
}

}  // namespace sparrow::load
