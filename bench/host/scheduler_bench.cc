// SPDX-License-Identifier: Apache-2.0
// Speed of the scheduler on this machine, without a model: the time to plan and to commit a step, and how
// many decisions (which sequence runs how many tokens) that makes in a second. Each sample is one step.
//
//   scheduler_bench [--steps N] [--json FILE]
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <new>
#include <string>
#include <string_view>
#include <vector>

#include "engine/schedule/scheduler.h"

namespace {
int64_t num_allocations = 0;
}  // namespace

void* operator new(size_t bytes) {
  ++num_allocations;
  if (void* memory = std::malloc(bytes)) return memory;
  throw std::bad_alloc();
}
void operator delete(void* memory) noexcept {
  std::free(memory);
}
void operator delete(void* memory, size_t) noexcept {
  std::free(memory);
}

namespace sparrow {
namespace {

using Clock = std::chrono::steady_clock;

struct Case {
  const char* name;
  int sequences;
  int64_t prompt_tokens, max_tokens;
  bool churn;          // outputs of uneven length: in every step some end and others take their place
  int64_t num_blocks;  // 0: more than enough
};

constexpr Case kCases[] = {
    {"decode, 1 sequence", 1, 1000, 100'000, false, 0},
    {"decode, 256 sequences", 256, 1000, 100'000, false, 0},
    {"decode, 1000 sequences", 1000, 1000, 100'000, false, 0},
    {"in and out, 256 sequences", 256, 1000, 200, true, 0},
    {"in and out, 1000 sequences", 1000, 1000, 200, true, 0},
    {"in and out, 1000 sequences, pool too small", 1000, 1000, 200, true, 6000},
};

struct Measured {
  const char* name;
  double plan_p50, plan_p99, commit_p50, commit_p99;  // microseconds
  double decisions_per_second, slices, allocations;   // the last two in a step
};

double percentile(std::vector<double> values, double share) {
  const auto at = values.begin() + static_cast<int64_t>(share * static_cast<double>(values.size() - 1));
  std::nth_element(values.begin(), at, values.end());
  return *at;
}

double microseconds(Clock::time_point from, Clock::time_point to) {
  return std::chrono::duration<double, std::micro>(to - from).count();
}

class Run {
 public:
  explicit Run(const Case& c)
      : case_(c),
        scheduler_(
            static_cast<int>(c.num_blocks > 0
                                 ? c.num_blocks
                                 : c.sequences * (blocks_for_tokens(c.prompt_tokens + c.max_tokens) + 2)),
            {.max_step_tokens = 8192, .max_step_sequences = 1024, .max_model_tokens = 1 << 20}) {}

  Measured measure(int steps) {
    while (live_ < case_.sequences) add();
    for (int i = 0; i < 400; ++i) step();  // until all run, and some have ended
    plan_.clear();
    commit_.clear();
    num_slices_ = 0;
    num_allocations_ = 0;
    const Clock::time_point start = Clock::now();
    for (int i = 0; i < steps; ++i) step();
    const double seconds = microseconds(start, Clock::now()) * 1e-6;
    return {case_.name,
            percentile(plan_, 0.5),
            percentile(plan_, 0.99),
            percentile(commit_, 0.5),
            percentile(commit_, 0.99),
            static_cast<double>(num_slices_) / seconds,
            static_cast<double>(num_slices_) / steps,
            static_cast<double>(num_allocations_) / steps};
  }

 private:
  void add() {
    random_ = random_ * 6364136223846793005u + 1442695040888963407u;
    std::vector<int32_t> prompt(static_cast<size_t>(case_.prompt_tokens), 7);
    prompt[0] = next_prompt_++;
    int64_t output = case_.max_tokens;
    if (case_.churn) output = 1 + static_cast<int64_t>((random_ >> 33) % static_cast<uint64_t>(output * 2));
    SequenceSpec spec{.prompt = std::move(prompt), .max_total_tokens = case_.prompt_tokens + output};
    (void)scheduler_.add(std::move(spec), Clock::time_point()).value();
    ++live_;
  }

  void step() {
    const int64_t allocations_before = num_allocations;
    const Clock::time_point begin = Clock::now();
    const StepPlan& plan = scheduler_.plan_step(Clock::time_point());
    const Clock::time_point planned = Clock::now();
    sampled_.clear();
    ended_.clear();
    for (const StepSlice& slice : plan.slices) {
      if (slice.num_draws() == 0) continue;
      sampled_.push_back(11);
      const Sequence& sequence = *slice.sequence;
      if (sequence.num_tokens() + 1 == sequence.max_total_tokens) ended_.push_back(sequence.id);
    }
    num_slices_ += static_cast<int64_t>(plan.slices.size());
    const Clock::time_point drawn = Clock::now();
    scheduler_.commit(sampled_);
    for (const SequenceId id : ended_) scheduler_.finish(id);
    const Clock::time_point end = Clock::now();
    num_allocations_ += num_allocations - allocations_before;
    live_ -= static_cast<int>(ended_.size());
    while (live_ < case_.sequences) add();
    plan_.push_back(microseconds(begin, planned));
    commit_.push_back(microseconds(drawn, end));
  }

  const Case& case_;
  Scheduler scheduler_;
  int live_ = 0;
  int32_t next_prompt_ = 100;
  uint64_t random_ = 1;
  int64_t num_slices_ = 0, num_allocations_ = 0;
  std::vector<int32_t> sampled_;
  std::vector<SequenceId> ended_;
  std::vector<double> plan_, commit_;
};

bool write_json(const char* path, const std::vector<Measured>& all) {
  std::FILE* file = std::fopen(path, "w");
  if (file == nullptr) return false;
  std::fprintf(file, "{\n  \"cases\": [\n");
  for (size_t i = 0; i < all.size(); ++i)
    std::fprintf(
        file,
        "    {\"case\": \"%s\", \"plan_us_p50\": %.2f, \"plan_us_p99\": %.2f, \"commit_us_p50\": %.2f, "
        "\"commit_us_p99\": %.2f, \"allocations\": %.3f, \"decisions_per_s\": %.0f}%s\n",
        all[i].name, all[i].plan_p50, all[i].plan_p99, all[i].commit_p50, all[i].commit_p99,
        all[i].allocations, all[i].decisions_per_second, i + 1 < all.size() ? "," : "");
  std::fprintf(file, "  ]\n}\n");
  return std::fclose(file) == 0;
}

int run(int argc, char** argv) {
  int steps = 5000;
  const char* json = nullptr;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string_view flag = argv[i];
    if (flag == "--steps") steps = std::max(1, std::atoi(argv[i + 1]));
    if (flag == "--json") json = argv[i + 1];
  }
  std::printf("%-44s %18s %18s %8s %8s %14s\n", "", "plan us p50 / p99", "commit us p50 / p99", "slices",
              "allocs", "decisions/s");
  std::vector<Measured> all;
  for (const Case& c : kCases) {
    all.push_back(Run(c).measure(steps));
    const Measured& m = all.back();
    std::printf("%-44s %9.2f %8.2f %10.2f %8.2f %8.1f %8.2f %14.0f\n", m.name, m.plan_p50, m.plan_p99,
                m.commit_p50, m.commit_p99, m.slices, m.allocations, m.decisions_per_second);
    std::fflush(stdout);
  }
  if (json == nullptr || write_json(json, all)) return 0;
  std::fprintf(stderr, "cannot write %s\n", json);
  return 1;
}

}  // namespace
}  // namespace sparrow

int main(int argc, char** argv) {
  return sparrow::run(argc, argv);
}
