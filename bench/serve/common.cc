// SPDX-License-Identifier: Apache-2.0
#include <cstdio>
#include <random>

#include "base/strf.h"
#include "scenarios.h"

namespace sparrow::load {

ServerFlags flags_for(const LoadOptions& options, const std::filesystem::path& model, int64_t cache_mb,
                      std::vector<std::string> more) {
  std::vector<std::string> flags = {"--log-format", "json"};
  if (model == options.tiny_model) flags.insert(flags.end(), {"--threads", "1"});
  flags.insert(flags.end(), more.begin(), more.end());
  flags.insert(flags.end(), options.flags.begin(), options.flags.end());
  return {.program = options.program,
          .model = model,
          .flags = std::move(flags),
          .cache_bytes = cache_mb << 20,
          .one_heap = options.brief,
          .log = options.server_log};
}

double leaves_nothing(Report& report, const std::string& when, const ServerProcess& server, int idle_files) {
  const double seconds = server.wait_until_idle(idle_files);
  report.check(when + "blocks and sequences left behind", seconds >= 0, server.work_left(), "", "0");
  // The last question came over a connection of its own.
  const int files = server.num_files_at_rest() - idle_files;
  report.check(when + "descriptors left behind", files == 0, files, "", "0");
  if (files != 0)
    for (const std::string& file : server.files()) std::fprintf(stderr, "open: %s\n", file.c_str());
  return seconds;
}

std::string chat_body(const std::string& text, int max_tokens, bool stream) {
  // With log-probabilities every token is a message of its own, also where a character is not complete yet.
  return strf(
      R"({{"messages":[{{"role":"user","content":"{}"}}],"max_tokens":{},"ignore_eos":true,"temperature":0,)"
      R"("logprobs":true,"stream":{}{}}})",
      text, max_tokens, stream,
      stream ? R"(,"stream_options":{"include_usage":true,"continuous_usage_stats":true})" : "");
}

std::string words(int count, uint64_t seed) {
  static constexpr const char* kWords[] = {"block", "sparse", "river", "seven", "attend", "green",
                                           "index", "paper",  "token", "north", "query",  "apple",
                                           "layer", "stone",  "cache", "winter"};
  std::mt19937_64 random(seed);
  std::string out;
  for (int i = 0; i < count; ++i)
    out += strf("{}{}", i == 0 ? "" : " ", kWords[random() % std::size(kWords)]);
  return out;
}

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace sparrow::load
