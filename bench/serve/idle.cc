// SPDX-License-Identifier: Apache-2.0
#include <chrono>

#include "base/strf.h"
#include "client.h"
#include "scenarios.h"

namespace sparrow::load {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::minutes kPatience{2};
constexpr int kFilesOfSmallServer = 600;
constexpr int kReservedFiles = 256;  // as docs/operations.md says: for everything that is not a connection
constexpr int kConnectionsAtOnce = 500;

// Opens connections that ask once and then stay.
class Crowd {
 public:
  explicit Crowd(int port) : loop(port) {}

  void add(int count) {
    for (int i = 0; i < count; ++i) {
      Client& client = loop.connect();
      client.on_answer = [this](const Answer& answer) { answer.status == 200 ? ++served : ++refused; };
      client.on_closed = [this] { ++closed; };
      client.send(get("/health"));
      ++asked;
      if (asked % kConnectionsAtOnce == 0) settle();
    }
    settle();
  }
  void settle() {
    loop.turn_until([this] { return served + refused >= asked; }, kPatience);
  }

  Loop loop;
  int asked = 0, served = 0, refused = 0, closed = 0;
};

double health_p99(int port, int count) {
  std::vector<double> seconds;
  for (int i = 0; i < count; ++i) {
    const auto start = Clock::now();
    if (call(port, get("/health")).status != 200) return -1;
    seconds.push_back(seconds_since(start));
  }
  return quantile(seconds, 0.99);
}

void many_idle(Report& report, const LoadOptions& options, int count) {
  ServerProcess server(flags_for(options, options.tiny_model, 64));
  const int samples = options.brief ? 50 : 1000;
  const double alone = health_p99(server.port(), samples);
  const Memory before = server.memory();
  const int files_before = server.num_files_at_rest();
  {
    Crowd crowd(server.port());
    crowd.add(count);
    report.fact("idle connections", count);
    report.check("served, then idle", crowd.served == count, crowd.served, "", strf("{}", count));
    report.check("closed by the server meanwhile", crowd.closed == 0, crowd.closed, "", "0");
    const double p99 = health_p99(server.port(), samples);
    report.check("/health answers", p99 >= 0, p99 >= 0, "", "1");
    report.fact("/health p99, new connection each, alone", alone * 1e3, "ms");
    report.goal("/health p99, new connection each, among the idle", p99 < 0.1, p99 * 1e3, "ms", "< 100");
    const int status = call(server.port(), post("/v1/chat/completions", chat_body("hello", 4, false))).status;
    report.check("a chat among them", status == 200, status, "", "200");
    report.fact("memory of a connection", (server.memory().other_mb - before.other_mb) * 1e3 / count, "KB");
    const double files = static_cast<double>(server.num_files_at_rest() - files_before) / count;
    report.check("descriptors of a connection", files == 1, files, "", "1");
  }
  leaves_nothing(report, "", server, files_before);
  // The allocator keeps what is free: a second crowd must fit into it.
  const double kept = server.memory().other_mb;
  report.fact("memory that the allocator keeps", kept - before.other_mb, "MB");
  Crowd again(server.port());
  again.add(count);
  const double growth = server.memory().other_mb - kept;
  report.memory("growth of memory by a second crowd", growth, 4 + 0.1 * kept);
  report.check("exit code of the server", server.stop() == 0, server.stop(), "", "0");
}

// A server that the system allows few descriptors.
void beyond_the_limit(Report& report, const LoadOptions& options) {
  ServerFlags flags = flags_for(options, options.tiny_model, 64, {"--max-num-seqs", "1"});
  flags.max_files = kFilesOfSmallServer;
  ServerProcess server(flags);
  const int files_before = server.num_files_at_rest();
  const int limit = kFilesOfSmallServer - kReservedFiles;
  const std::string name = strf("{} descriptors", kFilesOfSmallServer);
  {
    Crowd crowd(server.port());
    crowd.add(limit + 50);
    report.check(name + ", idle: served all the same", crowd.served == limit + 50, crowd.served, "",
                 strf("{}", limit + 50));
    crowd.loop.turn_until([&] { return crowd.closed >= 50; }, kPatience);
    report.check(name + ", idle: the oldest closed", crowd.closed == 50, crowd.closed, "", "50");
  }
  server.wait_until_idle(files_before);
  {
    Loop busy(server.port());
    int answered = 0;
    for (int i = 0; i < limit; ++i) {
      Client& client = busy.connect();
      client.on_answer = [&](const Answer&) { ++answered; };
      client.on_closed = [&] { ++answered; };
      client.send(post("/v1/chat/completions", chat_body("long", 4000, false)));
    }
    busy.turn_until([&] { return server.num_files() >= files_before + limit; }, kPatience);
    // What is refused is a connection past the limit: this one, now that all of those are in.
    Answer refusal;
    for (int i = 0; i < 600 && refusal.status != 503; ++i) {
      busy.turn(std::chrono::milliseconds(50));
      refusal = call(server.port(), get("/health"));
    }
    report.check(name + ", busy: one more gets", refusal.status == 503, refusal.status, "", "503");
    const bool says_when = refusal.field("Retry-After") == "1";
    report.check(name + ", busy: with Retry-After", says_when, says_when, "", "1");
    report.check(name + ", busy: others hurt by it", answered == 0, answered, "", "0");
  }
  leaves_nothing(report, name + ", after: ", server, files_before);
  const int status = call(server.port(), get("/health")).status;
  report.check(name + ", after: /health", status == 200, status, "", "200");
  report.check(name + ": exit code", server.stop() == 0, server.stop(), "", "0");
}

}  // namespace

Report run_idle(const LoadOptions& options) {
  Report report("idle");
  many_idle(report, options, options.count_or(1000, 10'000));
  beyond_the_limit(report, options);
  return report;
}

}  // namespace sparrow::load
