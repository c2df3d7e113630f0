// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <chrono>
#include <cstdlib>

#include "base/strf.h"
#include "client.h"
#include "scenarios.h"

namespace sparrow::load {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kSamePromptEvery = 10;  // these streams must read alike
constexpr std::chrono::milliseconds kSampleEvery{200};
constexpr std::chrono::minutes kPatience{15};

struct Stream {
  Clock::time_point last;
  int tokens = 0;
  std::string text;
  double first_token_seconds = 0;
  std::vector<double> gaps;
  bool done = false, failed = false;
};

int last_number(std::string_view text, std::string_view name) {
  const size_t at = text.rfind(name);
  return at == std::string_view::npos ? 0 : std::atoi(text.data() + at + name.size());
}

void append_content(std::string& out, std::string_view piece) {
  constexpr std::string_view kContent = R"("delta":{"content":")";
  for (size_t at = 0; (at = piece.find(kContent, at)) != std::string_view::npos;) {
    at += kContent.size();
    out += piece.substr(at, piece.find('"', at) - at);
  }
}

// One write of the server: any number of messages.
void take(Stream& stream, std::string_view piece, Clock::time_point start) {
  append_content(stream.text, piece);
  stream.done = stream.done || piece.find("data: [DONE]") != std::string_view::npos;
  const int tokens = std::max(stream.tokens, last_number(piece, R"("completion_tokens":)"));
  if (tokens == stream.tokens) return;
  const auto now = Clock::now();
  if (stream.tokens == 0)
    stream.first_token_seconds = std::chrono::duration<double>(now - start).count();
  else
    stream.gaps.push_back(std::chrono::duration<double>(now - stream.last).count());
  // Those that came together with it.
  stream.gaps.insert(stream.gaps.end(), static_cast<size_t>(tokens - stream.tokens - 1), 0.0);
  stream.tokens = tokens;
  stream.last = now;
}

// All streams at once, to their end. Their prompts differ from those of another `round`.
struct Round {
  std::vector<Stream> streams;
  Memory most;
  double seconds = 0;
};

Round run_round(const LoadOptions& options, ServerProcess& server, int num_streams, int num_tokens,
                uint64_t round) {
  Round out{std::vector<Stream>(static_cast<size_t>(num_streams)), server.memory()};
  Loop loop(server.port());
  int open = num_streams;
  const auto start = Clock::now();
  for (int i = 0; i < num_streams; ++i) {
    Stream& stream = out.streams[static_cast<size_t>(i)];
    Client& client = loop.connect();
    client.on_body = [&stream, start](std::string_view piece) { take(stream, piece, start); };
    client.on_answer = [&stream, &client, &open](const Answer& answer) {
      stream.failed = answer.status != 200;
      --open;
      client.close();
    };
    client.on_closed = [&stream, &open] {
      stream.failed = true;
      --open;
    };
    const uint64_t seed = i % kSamePromptEvery == 0 ? 0 : static_cast<uint64_t>(i);
    client.send(post("/v1/chat/completions",
                     chat_body(words(options.brief ? 8 : 60, seed + (round << 32)), num_tokens, true)));
  }
  auto next_sample = start;
  while (open > 0 && Clock::now() - start < kPatience) {
    loop.turn(kSampleEvery);
    if (Clock::now() < next_sample) continue;
    const Memory now = server.memory();
    out.most.other_mb = std::max(out.most.other_mb, now.other_mb);
    out.most.cache_mb = std::max(out.most.cache_mb, now.cache_mb);
    next_sample = Clock::now() + kSampleEvery;
  }
  out.seconds = seconds_since(start);
  return out;
}

}  // namespace

Report run_streams(const LoadOptions& options) {
  const int num_streams = options.count_or(100, 1000), num_tokens = options.brief ? 8 : 48;
  Report report("streams");
  ServerProcess server(flags_for(options, options.model, options.brief ? 256 : 1024,
                                 {"--max-queued-requests", std::to_string(num_streams)}));
  call(server.port(), post("/v1/chat/completions", chat_body("warm up", 2, false)), std::chrono::minutes(1));
  if (options.warm_up) run_round(options, server, num_streams, num_tokens, 1);
  const Memory idle = server.memory();
  const int idle_files = server.num_files_at_rest();
  auto [streams, most, seconds] = run_round(options, server, num_streams, num_tokens, 0);

  int complete = 0, different = 0;
  std::vector<double> gaps, first_tokens;
  for (size_t i = 0; i < streams.size(); ++i) {
    Stream& stream = streams[i];
    complete += stream.done && !stream.failed && stream.tokens == num_tokens;
    different += i % kSamePromptEvery == 0 && stream.text != streams[0].text;
    first_tokens.push_back(stream.first_token_seconds);
    gaps.insert(gaps.end(), stream.gaps.begin(), stream.gaps.end());
  }
  if (gaps.empty()) gaps.push_back(0);
  const double median = quantile(gaps, 0.5), p99 = quantile(gaps, 0.99);
  report.fact("streams at once", num_streams);
  report.fact("tokens of each", num_tokens);
  report.check("streams complete", complete == num_streams, complete, "", strf("{}", num_streams));
  report.check("same prompt, other text", different == 0 && !streams[0].text.empty(), different, "", "0");
  report.fact("time for all", seconds, "s");
  report.fact("tokens", num_streams * num_tokens / seconds, "/s");
  report.fact("time to first token, median (most wait their turn)", quantile(first_tokens, 0.5), "s");
  report.fact("gap between tokens, median", median * 1e3, "ms");
  report.fact("gap between tokens, p99", p99 * 1e3, "ms");
  report.fact("gap between tokens, longest", gaps.back() * 1e3, "ms");
  report.goal("gap between tokens, p99 / median", p99 < 4 * median, p99 / median, "", "< 4");
  report.memory("memory above idle, at most", most.other_mb - idle.other_mb, options.brief ? 32 : 200);
  report.fact("cache pages above idle, at most", most.cache_mb - idle.cache_mb, "MB");
  report.fact("memory when idle, without weights and cache", idle.other_mb, "MB");
  leaves_nothing(report, "", server, idle_files);
  report.check("exit code of the server", server.stop() == 0, server.stop(), "", "0");
  return report;
}

}  // namespace sparrow::load
