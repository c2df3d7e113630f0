// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <chrono>
#include <fstream>
#include <random>

#include "base/strf.h"
#include "client.h"
#include "scenarios.h"

namespace sparrow::load {
namespace {

using Clock = std::chrono::steady_clock;

constexpr const char* kAnn = "sk-ann-0123456789abcdef0123456789abcdef";
constexpr const char* kBob = "sk-bob-0123456789abcdef0123456789abcdef";
constexpr int kRounds = 20'000;   // of a permutation test
constexpr double kLeastP = 1e-3;  // below it two samples are told apart
constexpr std::chrono::minutes kPatience{10};

// One connection that asks one thing at a time and takes the time.
class Stopwatch {
 public:
  explicit Stopwatch(int port) : loop_(port), client_(loop_.connect()) {
    client_.on_body = [this](std::string_view) {
      if (first_ < 0) first_ = seconds_since(sent_);
    };
    client_.on_answer = [this](Answer answer) { last = std::move(answer), over_ = true; };
    client_.on_closed = [this] { last = {}, over_ = true; };
  }
  // Seconds to the first byte of the body.
  double ask(const std::string& request) {
    over_ = false;
    first_ = -1;
    last = {};
    sent_ = Clock::now();
    client_.send(request);
    loop_.turn_until([this] { return over_; }, kPatience);
    return first_;
  }
  Answer last;

 private:
  Loop loop_;
  Client& client_;
  Clock::time_point sent_;
  double first_ = -1;
  bool over_ = false;
};

int number_after(const std::string& text, const std::string& name) {
  const size_t at = text.find(name);
  return at == std::string::npos ? -1 : std::atoi(text.c_str() + at + name.size());
}

struct Samples {
  std::vector<double> own_again, others, fresh;
};

// Takes the three in random order: what drifts, drifts for all.
template <typename Again, typename Others, typename Fresh>
void take(Samples& samples, std::mt19937_64& random, Again again, Others others, Fresh fresh) {
  int order[] = {0, 1, 2};
  std::shuffle(std::begin(order), std::end(order), random);
  for (const int which : order) {
    if (which == 0) samples.own_again.push_back(again());
    if (which == 1) samples.others.push_back(others());
    if (which == 2) samples.fresh.push_back(fresh());
  }
}

void judge(Report& report, const std::string& what, Samples& samples) {
  const double p_others = permutation_p(samples.others, samples.fresh, kRounds, 1);
  const double p_own = permutation_p(samples.own_again, samples.fresh, kRounds, 2);
  report.fact(what + ": samples of each", static_cast<double>(samples.fresh.size()));
  const double own = quantile(samples.own_again, 0.5), others = quantile(samples.others, 0.5);
  const double fresh = quantile(samples.fresh, 0.5);
  report.fact(what + ": never seen, median", fresh * 1e3, "ms");
  report.fact(what + ": another key's, median", others * 1e3, "ms");
  report.fact(what + ": own again, median", own * 1e3, "ms");
  report.goal(what + ": another key's differs from never seen, p", p_others > kLeastP, p_others, "",
              "> 0.001");
  // The test must be able to see a difference.
  report.goal(what + ": own again differs from never seen, p", p_own <= kLeastP && own < fresh, p_own, "",
              "<= 0.001");
}

void probe_prefixes(Report& report, const LoadOptions& options) {
  ServerProcess server(flags_for(options, options.tiny_model, 1024, {"--api-key", kAnn, kBob}));
  Stopwatch watch(server.port());
  std::mt19937_64 random(7);
  const int num_samples = options.count_or(2, 44);
  int num_words = 400, num_tokens = 0;
  uint64_t seed = 1000;
  while (num_tokens < 4096) {
    num_words += num_words / 8;
    watch.ask(post("/tokenize", strf(R"({{"prompt":"{}"}})", words(num_words, ++seed)), kAnn));
    num_tokens = number_after(watch.last.body, R"("count":)");
  }
  report.fact("tokens of a prompt", num_tokens);

  Samples tokenize, complete;
  int64_t leaked = 0, own_hits = 0;
  const auto ask_tokens = [&](const std::string& text, const char* key) {
    return watch.ask(post("/tokenize", strf(R"({{"prompt":"{}"}})", text), key));
  };
  const auto ask_answer = [&](const std::string& text, const char* key) {
    return watch.ask(post("/v1/completions",
                          strf(R"({{"prompt":"{}","max_tokens":1,"stream":true,)"
                               R"("stream_options":{{"include_usage":true}}}})",
                               text),
                          key));
  };
  const auto cached = [&] { return std::max(number_after(watch.last.body, R"("cached_tokens":)"), 0); };
  for (int i = 0; i < num_samples; ++i) {
    const std::string seen = words(num_words, ++seed), never_seen = words(num_words, ++seed);
    ask_tokens(seen, kAnn);
    take(
        tokenize, random, [&] { return ask_tokens(seen, kAnn); }, [&] { return ask_tokens(seen, kBob); },
        [&] { return ask_tokens(never_seen, kBob); });
    const std::string prompt = words(num_words, ++seed), other_prompt = words(num_words, ++seed);
    ask_answer(prompt, kAnn);
    take(
        complete, random,
        [&] {
          const double seconds = ask_answer(prompt, kAnn);
          own_hits += cached();
          return seconds;
        },
        [&] {
          const double seconds = ask_answer(prompt, kBob);
          leaked += cached();
          return seconds;
        },
        [&] { return ask_answer(other_prompt, kBob); });
  }
  report.check("prefix: cached tokens that another key is told of", leaked == 0, static_cast<double>(leaked),
               "", "0");
  const double own_part = static_cast<double>(own_hits) / num_samples / num_tokens;
  report.check("prefix: part of its own that a key finds again", own_part > 0.9, own_part, "", "> 0.9");
  judge(report, "time to first token", complete);
  judge(report, "/tokenize", tokenize);
}

// Keys that differ from a right one early, late or in all: a comparison that stops early would tell.
void time_keys(Report& report, const LoadOptions& options) {
  constexpr int kKeys = 200;
  const std::string path = strf("{}.keys", options.tiny_model.string());
  const auto nth_key = [](int n) { return strf("sk-{:04}-0123456789abcdef0123456789abcdef", n); };
  {
    std::ofstream file(path);
    for (int i = 0; i < kKeys; ++i) file << nth_key(i) << '\n';
  }
  ServerProcess server(flags_for(options, options.tiny_model, 64, {"--api-key-file", path}));
  Stopwatch watch(server.port());
  std::string late = nth_key(0), early = nth_key(0);
  late.back() = 'x';
  early[3] = 'x';
  const std::string requests[] = {get("/v1/models", nth_key(0)), get("/v1/models", nth_key(kKeys - 1)),
                                  get("/v1/models", early), get("/v1/models", late)};
  std::vector<double> seconds[4];
  std::mt19937_64 random(11);
  const int num_samples = options.brief ? 50 : 3000;
  int wrong = 0;
  for (int i = 0; i < num_samples; ++i) {
    int order[] = {0, 1, 2, 3};
    std::shuffle(std::begin(order), std::end(order), random);
    for (const int which : order) {
      seconds[which].push_back(watch.ask(requests[which]));
      wrong += watch.last.status != (which < 2 ? 200 : 401);
    }
  }
  report.check("keys: wrong statuses", wrong == 0, wrong, "", "0");
  const double p_place = permutation_p(seconds[0], seconds[1], kRounds / 10, 3);
  const double p_wrong = permutation_p(seconds[2], seconds[3], kRounds / 10, 4);
  report.fact("keys: samples of each", num_samples);
  report.fact("keys: first of 200, median", quantile(seconds[0], 0.5) * 1e6, "us");
  report.fact("keys: last of 200, median", quantile(seconds[1], 0.5) * 1e6, "us");
  report.fact("keys: wrong at its start, median", quantile(seconds[2], 0.5) * 1e6, "us");
  report.fact("keys: wrong at its end, median", quantile(seconds[3], 0.5) * 1e6, "us");
  report.goal("keys: first and last differ, p", p_place > kLeastP, p_place, "", "> 0.001");
  report.goal("keys: wrong early and late differ, p", p_wrong > kLeastP, p_wrong, "", "> 0.001");
  std::filesystem::remove(path);
}

}  // namespace

Report run_tenants(const LoadOptions& options) {
  Report report("tenants");
  probe_prefixes(report, options);
  time_keys(report, options);
  return report;
}

}  // namespace sparrow::load
