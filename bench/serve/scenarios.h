// SPDX-License-Identifier: Apache-2.0
// The scenarios of serve_load. Each starts servers of its own, loads them and reports. `brief` runs are a few
// seconds of the same, for the tests: their checks hold on any machine.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "report.h"
#include "server_process.h"

namespace sparrow::load {

struct LoadOptions {
  std::filesystem::path program;  // sparrow
  std::filesystem::path model;    // of the streams: what is measured there is the engine's share too
  std::filesystem::path tiny_model;
  std::vector<std::string> flags;  // for every server
  std::string server_log = "/dev/null";
  bool brief = false;
  bool warm_up = false;  // streams run once before they are counted: a GPU's driver allocates graphs then
  int count = 0;         // of streams, requests, connections, samples; 0: the scenario's own

  int count_or(int in_brief, int in_full) const { return count > 0 ? count : brief ? in_brief : in_full; }
};

// Many chat streams at once: all complete, the same prompts give the same text, the gaps between tokens.
Report run_streams(const LoadOptions& options);
// Small requests over keep-alive, with and without a key.
Report run_requests(const LoadOptions& options);
// A long mix of everything: memory, descriptors and blocks must not grow.
Report run_soak(const LoadOptions& options);
// Connections that do nothing, and what happens when there are more than the system allows.
Report run_idle(const LoadOptions& options);
// Streams dropped after no, one and three chunks: nothing stays behind.
Report run_cancel(const LoadOptions& options);
// What one key can learn, by its clock, of another's prompts, and anybody of a key.
Report run_tenants(const LoadOptions& options);

struct Scenario {
  const char* name;
  Report (*run)(const LoadOptions&);
};
inline constexpr Scenario kScenarios[] = {
    {"streams", run_streams}, {"requests", run_requests}, {"soak", run_soak},
    {"idle", run_idle},       {"cancel", run_cancel},     {"tenants", run_tenants},
};

// Shared by the scenarios. The tiny model runs on one thread: two would wait for each other.
ServerFlags flags_for(const LoadOptions& options, const std::filesystem::path& model, int64_t cache_mb,
                      std::vector<std::string> more = {});
// Waits for the server to be as it was. Adds a row for what it keeps, and returns the seconds it took.
double leaves_nothing(Report& report, const std::string& when, const ServerProcess& server, int idle_files);
// A chat whose answer has exactly that many tokens. The text must need no escapes.
std::string chat_body(const std::string& text, int max_tokens, bool stream);
// Words that depend on the seed alone.
std::string words(int count, uint64_t seed);
double seconds_since(std::chrono::steady_clock::time_point start);

}  // namespace sparrow::load
