// SPDX-License-Identifier: Apache-2.0
#include "cli/simulate/load/workload.h"

#include <algorithm>
#include <cmath>
#include <random>

#include "base/strf.h"

namespace sparrow::cli {
namespace {

// Token counts scatter like the logarithm's normal distribution: most near the median, a few far above.
struct Length {
  double median, spread;
  int64_t least, most;
};

// What kinds of clients do. The numbers are round ones, to be replaced by a trace.
struct Habits {
  int shared_prompts;  // that many conversations begin with
  Length shared, turn, output;
  double mean_turns, mean_pause_seconds;
  int64_t most_tokens;  // of a conversation
};
constexpr Habits kChat = {.shared_prompts = 8,
                          .shared = {600, 0.5, 64, 8000},
                          .turn = {120, 1.0, 4, 20'000},
                          .output = {250, 0.8, 1, 4000},
                          .mean_turns = 4,
                          .mean_pause_seconds = 30,
                          .most_tokens = 120'000};
constexpr Habits kAgents = {.shared_prompts = 4,
                            .shared = {9000, 0.2, 2000, 20'000},
                            .turn = {900, 1.1, 16, 30'000},
                            .output = {160, 0.9, 8, 6000},
                            .mean_turns = 30,
                            .mean_pause_seconds = 4,
                            .most_tokens = 180'000};
constexpr Length kBatchPrompt = {2000, 0.8, 64, 60'000}, kBatchOutput = {400, 0.7, 1, 4000};

class Random {
 public:
  explicit Random(uint64_t seed) : engine_(seed) {}

  double uniform() { return static_cast<double>(engine_() >> 11) * 0x1p-53; }
  double exponential(double mean) { return -mean * std::log(1 - uniform()); }
  int64_t pick(int64_t count) {
    return std::min<int64_t>(count - 1, static_cast<int64_t>(uniform() * static_cast<double>(count)));
  }
  int64_t length(const Length& of) {
    const double normal = std::sqrt(-2 * std::log(1 - uniform())) * std::cos(2 * M_PI * uniform());
    const double value = std::min(of.median * std::exp(of.spread * normal), static_cast<double>(of.most));
    return std::clamp(static_cast<int64_t>(value), of.least, of.most);
  }

 private:
  std::mt19937_64 engine_;
};

// Conversations that begin alike and grow turn by turn, until there are as many requests as are wanted.
void add_conversations(FleetWorkload& workload, const Habits& habits, const WorkloadOptions& o) {
  constexpr uint64_t kShared = 1'000'000'000'000;  // streams from here on
  const int64_t requests = o.requests.value_or(WorkloadOptions::kRequests);
  const double rate = o.rate.value_or(WorkloadOptions::kRate);
  const bool has_users = o.users.has_value();
  Random random(o.seed.value_or(0));
  std::vector<StreamPart> shared;
  for (int i = 0; i < habits.shared_prompts; ++i)
    shared.push_back({kShared + static_cast<uint64_t>(i), random.length(habits.shared)});
  std::vector<int64_t> last_of_user(static_cast<size_t>(o.users.value_or(0)), -1);
  double begins = 0;
  for (uint64_t conversation = 0; static_cast<int64_t>(workload.requests.size()) < requests; ++conversation) {
    const StreamPart& first = shared[static_cast<size_t>(random.pick(habits.shared_prompts))];
    const size_t user = has_users ? conversation % last_of_user.size() : 0;
    int64_t previous = has_users ? last_of_user[user] : -1;
    if (!has_users) begins += random.exponential(1 / rate);
    int64_t own = 0;  // tokens of this conversation alone
    const int64_t turns = 1 + static_cast<int64_t>(random.exponential(habits.mean_turns - 1));
    for (int64_t turn = 0; turn < turns && static_cast<int64_t>(workload.requests.size()) < requests;
         ++turn) {
      own += random.length(habits.turn);
      const int64_t output = random.length(habits.output);
      if (turn > 0 && first.length + own + output > habits.most_tokens) break;
      own = std::min(own, habits.most_tokens - first.length - output);
      const double pause = random.exponential(habits.mean_pause_seconds);
      // Users do not all come in the same instant.
      const double start = has_users ? habits.mean_pause_seconds * random.uniform() : begins;
      workload.add({.seconds = previous < 0 ? start : pause, .after = previous, .output_tokens = output},
                   {first, {conversation, own}});
      previous = static_cast<int64_t>(workload.requests.size()) - 1;
      own += output;
    }
    if (has_users) last_of_user[user] = previous;
  }
}

void add_batch(FleetWorkload& workload, const WorkloadOptions& o) {
  Random random(o.seed.value_or(0));
  for (int64_t i = 0; i < o.requests.value_or(WorkloadOptions::kRequests); ++i) {
    const int64_t prompt = random.length(kBatchPrompt);
    workload.add({.output_tokens = random.length(kBatchOutput)}, {{static_cast<uint64_t>(i), prompt}});
  }
}

}  // namespace

int32_t token_of(uint64_t stream, int64_t position) {
  uint64_t x = (stream * 0x9e3779b97f4a7c15u) ^ static_cast<uint64_t>(position);
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return static_cast<int32_t>(((x >> 32) * 200'000) >> 32);
}

void FleetWorkload::add(SimRequest request, std::initializer_list<StreamPart> prompt) {
  request.first_part = parts.size();
  request.num_parts = static_cast<int>(prompt.size());
  for (const StreamPart& part : prompt) request.prompt_tokens += part.length;
  parts.insert(parts.end(), prompt.begin(), prompt.end());
  requests.push_back(request);
}

std::vector<int32_t> FleetWorkload::prompt_of(const SimRequest& request) const {
  std::vector<int32_t> ids;
  ids.reserve(static_cast<size_t>(request.prompt_tokens));
  for (const StreamPart& part : parts_of(request))
    for (int64_t i = 0; i < part.length; ++i) ids.push_back(token_of(part.stream, i));
  return ids;
}

Result<FleetWorkload> make_workload(const WorkloadOptions& options) {
  const bool has_conversations = options.kind == "chat" || options.kind == "agents";
  const bool is_trace = !has_conversations && options.kind != "batch";
  const auto refuse = [&](const char* flag) {
    return Error{Errc::kInvalidArgument, strf("{} has no meaning with --workload {}", flag, options.kind)};
  };
  if (!has_conversations && options.users) return refuse("--users");
  if (!has_conversations && options.rate) return refuse("--rate");
  if (options.rate && !(*options.rate > 0 && std::isfinite(*options.rate)))
    return Error{Errc::kInvalidArgument, strf("--rate must be above 0, got {}", *options.rate)};
  if (is_trace && options.requests) return refuse("--requests");
  if (is_trace && options.seed) return refuse("--seed");
  if (is_trace) return read_trace(options.kind);
  FleetWorkload workload{.name = options.kind};
  if (options.kind == "batch")
    add_batch(workload, options);
  else
    add_conversations(workload, options.kind == "chat" ? kChat : kAgents, options);
  return workload;
}

}  // namespace sparrow::cli
