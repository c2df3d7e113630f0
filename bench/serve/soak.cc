// SPDX-License-Identifier: Apache-2.0
#include <chrono>
#include <memory>
#include <random>
#include <span>
#include <thread>

#include "base/strf.h"
#include "client.h"
#include "scenarios.h"

namespace sparrow::load {
namespace {

constexpr int kConnections = 64;
constexpr const char* kKey = "sk-serve-load";
constexpr std::chrono::minutes kPatience{30};
// Texts past 2 KB are remembered by the server, up to a budget: these few fill it at once.
constexpr int kLongTexts = 16;

struct Ask {
  std::string request;
  int status;      // the right answer's; 0: the client leaves
  int chunks = 0;  // that it waits for before
};

// The n-th request: the same in every run.
Ask nth_request(int64_t n) {
  std::mt19937_64 random(static_cast<uint64_t>(n));
  const auto below = [&](uint64_t limit) { return static_cast<int>(random() % limit); };
  const int kind = below(100);
  const std::string text = words(1 + below(8), random());
  const int max_tokens = 1 + below(4);
  const auto completion = [&](const std::string& prompt, int tokens, bool stream) {
    return post(
        "/v1/completions",
        strf(R"({{"prompt":"{}","max_tokens":{},"stream":{},"ignore_eos":true}})", prompt, tokens, stream),
        kKey);
  };
  const auto chat = [&](int tokens, bool stream) {
    return post("/v1/chat/completions", chat_body(text, tokens, stream), kKey);
  };
  if (kind < 12) return {chat(max_tokens, kind < 6), 200};
  if (kind < 37) return {completion(text, max_tokens, kind < 24), 200};
  if (kind < 38) return {completion(words(500, static_cast<uint64_t>(below(kLongTexts))), 1, false), 200};
  if (kind < 58) return {get("/v1/models", kKey), 200};
  if (kind < 78) return {post("/tokenize", strf(R"({{"prompt":"{}"}})", text), kKey), 200};
  if (kind < 81) return {post("/v1/completions", R"({"prompt":)", kKey), 400};
  if (kind < 84) return {post("/v1/completions", R"({"prompt":"a","best_of_all":3})", kKey), 400};
  if (kind < 86) return {post("/v1/completions", R"({"prompt":"a","model":"other"})", kKey), 404};
  if (kind < 88) return {get("/v1/models", "sk-wrong"), 401};
  if (kind < 90) return {get("/nothing", kKey), 404};
  return {kind < 93 ? chat(64, true) : completion(text, 64, true), 0, below(3)};
}

class Soak {
 public:
  Soak(ServerProcess& server, int64_t total) : loop_(server.port()), server_(server), total_(total) {}

  void run() {
    for (int i = 0; i < kConnections; ++i) next(loop_.connect());
    const auto start = std::chrono::steady_clock::now();
    while (ended_ < total_ && std::chrono::steady_clock::now() - start < kPatience) {
      loop_.turn(std::chrono::milliseconds(100));
      if (ended_ < static_cast<int64_t>(done.size()) * total_ / 100) continue;
      const Memory memory = server_.memory();
      done.push_back(static_cast<double>(ended_));
      other_mb.push_back(memory.other_mb);
      cache_mb.push_back(memory.cache_mb);
    }
  }
  int64_t ended() const { return ended_; }

  std::vector<double> done, other_mb, cache_mb;  // about a hundred samples
  int64_t wrong = 0;
  std::string first_wrong;

 private:
  // Sends the next request on this connection.
  void next(Client& client) {
    if (sent_ == total_) return client.close();
    const Ask ask = nth_request(sent_++);
    client.on_closed = [this] { judge(-1, {}); };
    client.on_answer = [this, &client, status = ask.status](const Answer& answer) {
      // One that leaves may have its answer first.
      judge(status == 0 ? 200 : status, answer);
      answer.field("Connection") == "close" ? replace(client) : next(client);
    };
    client.on_body = nullptr;
    client.send(ask.request);
    if (ask.status != 0) return;
    if (ask.chunks == 0) return leave(client);
    client.on_body = [this, &client, left = ask.chunks](std::string_view) mutable {
      if (--left == 0) leave(client);
    };
  }
  void leave(Client& client) {
    ++ended_;
    replace(client);
  }
  void replace(Client& client) {
    client.close();
    next(loop_.connect());
  }
  void judge(int wanted, const Answer& answer) {
    ++ended_;
    if (answer.status == wanted) return;
    ++wrong;
    if (first_wrong.empty()) first_wrong = strf("wanted {}, got {} {}", wanted, answer.status, answer.body);
    if (wanted < 0) next(loop_.connect());
  }

  Loop loop_;
  ServerProcess& server_;
  int64_t total_, sent_ = 0, ended_ = 0;
};

}  // namespace

Report run_soak(const LoadOptions& options) {
  const int64_t total = options.count_or(1000, 200'000);
  Report report("soak");
  ServerProcess server(flags_for(options, options.tiny_model, 64, {"--api-key", kKey}));
  const int idle_files = server.num_files_at_rest();
  const auto start = std::chrono::steady_clock::now();
  auto owned = std::make_unique<Soak>(server, total);
  Soak& soak = *owned;
  soak.run();
  const double seconds = seconds_since(start);
  if (!soak.first_wrong.empty()) std::fprintf(stderr, "soak: %s\n", soak.first_wrong.c_str());

  report.check("requests", soak.ended() == total, static_cast<double>(soak.ended()), "", strf("{}", total));
  report.check("answers with another status than they must have", soak.wrong == 0,
               static_cast<double>(soak.wrong), "", "0");
  report.fact("rate", static_cast<double>(soak.ended()) / seconds, "/s");
  const size_t last = soak.done.size() - 1;
  for (const size_t percent : {10, 50, 100}) {
    const size_t at = last * percent / 100;
    report.fact(strf("memory at {}%, without weights and cache", percent), soak.other_mb[at], "MB");
  }
  const double growth = soak.other_mb[last] - soak.other_mb[last / 2];
  // A thousand requests are the beginning, where caches fill and buffers grow to their size: no verdict
  // there.
  if (options.brief)
    report.fact("growth of memory in the second half", growth, "MB");
  else
    report.memory("growth of memory in the second half", growth, 16);
  const std::span x = std::span(soak.done).subspan(last / 5), y = std::span(soak.other_mb).subspan(last / 5);
  const double bytes = slope(x, y) * 1e6;
  report.goal("slope of memory after 20%", bytes < 32, bytes, "B/request", "< 32");
  report.fact("cache pages at the end", soak.cache_mb[last], "MB");
  owned.reset();  // closes its connections
  leaves_nothing(report, "", server, idle_files);
  report.check("exit code of the server", server.stop() == 0, server.stop(), "", "0");
  return report;
}

}  // namespace sparrow::load
