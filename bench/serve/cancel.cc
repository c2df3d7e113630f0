// SPDX-License-Identifier: Apache-2.0
#include <chrono>
#include <iterator>

#include "base/strf.h"
#include "client.h"
#include "scenarios.h"

namespace sparrow::load {
namespace {

constexpr std::chrono::minutes kPatience{10};
constexpr int kPromptWords = 10;  // beyond what the template adds: some are dropped in their prompt
constexpr int kMaxTokens = 4000;  // nobody gets to the end

enum class Drop {
  kAtOnce,   // the request is hardly sent
  kQueued,   // all are in the server, and it has answered some
  kChunks1,  // each after so many chunks
  kChunks3,
};

struct Storm {
  Drop drop;
  const char* name;
};
constexpr Storm kStorms[] = {{Drop::kAtOnce, "dropped at once"},
                             {Drop::kQueued, "dropped when all are in"},
                             {Drop::kChunks1, "dropped after 1 chunk"},
                             {Drop::kChunks3, "dropped after 3 chunks"}};

void run_storm(Report& report, ServerProcess& server, int num_streams, int idle_files, const Storm& storm) {
  Loop loop(server.port());
  int open = num_streams, refused = 0;
  std::vector<Client*> clients;
  const int chunks = storm.drop == Drop::kChunks1 ? 1 : storm.drop == Drop::kChunks3 ? 3 : 0;
  for (int i = 0; i < num_streams; ++i) {
    Client& client = loop.connect();
    clients.push_back(&client);
    client.on_body = [&client, &open, left = chunks, reset = i % 2 == 0](std::string_view) mutable {
      if (--left != 0) return;
      --open;
      client.close(reset);
    };
    client.on_answer = [&refused, &open](const Answer&) { ++refused, --open; };
    client.on_closed = [&refused, &open] { ++refused, --open; };
    client.send(post("/v1/chat/completions",
                     chat_body(words(kPromptWords, static_cast<uint64_t>(i)), kMaxTokens, true)));
  }
  const auto all_in = [&] {
    auto metrics = server.metrics();
    return refused > 0 ||
           metrics["vllm:num_requests_running"] + metrics["vllm:num_requests_waiting"] >= num_streams;
  };
  if (storm.drop == Drop::kQueued) loop.turn_until(all_in, kPatience);
  if (chunks > 0) loop.turn_until([&] { return open == 0; }, kPatience);
  report.check(strf("{}: answered or refused instead", storm.name), refused == 0, refused, "", "0");
  if (chunks > 0) {
    report.check(strf("{}: never came to that", storm.name), open == 0, open, "", "0");
  } else {
    for (size_t i = 0; i < clients.size(); ++i)
      if (clients[i]->open()) clients[i]->close(/*reset=*/i % 2 == 0);
  }
  const double seconds = leaves_nothing(report, strf("{}: ", storm.name), server, idle_files);
  report.goal(strf("{}: all free after", storm.name), seconds >= 0 && seconds < 1, seconds, "s", "< 1");
}

}  // namespace

Report run_cancel(const LoadOptions& options) {
  const int num_streams = options.count_or(60, 1000);
  Report report("cancel");
  ServerProcess server(flags_for(options, options.tiny_model, 256,
                                 {"--max-queued-requests", std::to_string(2 * num_streams)}));
  const std::string question = post("/v1/chat/completions", chat_body("the same as before", 8, false));
  const std::string before = call(server.port(), question).body;
  const int idle_files = server.num_files_at_rest();
  // A first storm makes what every thread keeps for the next one, as its allocator does: what later ones add
  // counts.
  Report warm_up("warm-up");
  run_storm(warm_up, server, num_streams, idle_files, *std::rbegin(kStorms));
  const double idle_mb = server.memory().other_mb;
  report.fact("streams at once", num_streams);
  for (const Storm& storm : kStorms) run_storm(report, server, num_streams, idle_files, storm);
  const double above_mb = server.memory().other_mb - idle_mb;
  if (options.brief)  // sixty streams tell nothing of what a thousand leave behind
    report.fact("memory above that after a first storm", above_mb, "MB");
  else
    report.memory("memory above that after a first storm", above_mb, 64);
  const auto metrics = server.metrics();
  report.fact("requests abandoned", metrics.at("sparrow:requests_rejected_total"));
  report.fact("preemptions", metrics.at("vllm:num_preemptions_total"));
  const std::string after = call(server.port(), question).body;
  const auto choices = [](const std::string& body) {
    return body.substr(std::min(body.find("\"choices\""), body.size()));
  };
  const auto text = [&](const std::string& body) {
    return choices(body).substr(0, choices(body).find("\"usage\""));
  };
  const bool same = !text(before).empty() && text(before) == text(after);
  report.check("an answer before and after: the same", same, same, "", "1");
  report.check("exit code of the server", server.stop() == 0, server.stop(), "", "0");
  return report;
}

}  // namespace sparrow::load
