// SPDX-License-Identifier: Apache-2.0
// Times the tokenizer on one core: texts from files, the next turn of a long conversation through the cache
// of prefixes (made of the last text), and a megabyte of each kind of awkward input.
//   tokenizer_bench --tokenizer tokenizer.json [--corpus TEXT]... [--no-awkward]
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <ctime>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/files/mapped_file.h"
#include "base/utf8.h"
#include "text/tokenizer/encode_cache.h"
#include "text/tokenizer/tokenizer.h"

namespace {

using namespace sparrow;

constexpr int kSamples = 21;
constexpr size_t kMegabyte = 1'000'000;

// Time of this thread on its core: what others run on the machine does not count.
double cpu_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

double seconds(const std::function<void()>& work) {
  const double start = cpu_seconds();
  work();
  return cpu_seconds() - start;
}

struct Timing {
  double first, median, variation;
};

Timing sample(const std::function<void()>& work) {
  Timing timing{seconds(work), 0, 0};
  std::vector<double> times;
  for (int i = 0; i < kSamples; ++i) times.push_back(seconds(work));
  std::sort(times.begin(), times.end());
  timing.median = times[kSamples / 2];
  double sum = 0, squares = 0;
  for (const double t : times) sum += t, squares += t * t;
  const double mean = sum / kSamples;
  timing.variation = std::sqrt(std::max(0.0, squares / kSamples - mean * mean)) / mean;
  return timing;
}

std::string repeated(std::string_view piece, size_t bytes = kMegabyte) {
  std::string out;
  while (out.size() < bytes) out += piece;
  return out;
}

std::string random_text(std::string_view letters, uint64_t seed) {
  std::string out;
  for (uint64_t state = seed; out.size() < kMegabyte;) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    out += letters[(state >> 33) % letters.size()];
  }
  return out;
}

std::string ideographs() {
  std::string out;
  for (uint64_t state = 1; out.size() < kMegabyte;) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    append_utf8(out, 0x4E00 + static_cast<uint32_t>((state >> 33) % 3000));
  }
  return out;
}

std::string all_bytes() {
  std::string bytes;
  for (int b = 0; b < 256; ++b) bytes += static_cast<char>(b);
  return bytes;
}

void bench_text(const Tokenizer& tokenizer, const char* name, const std::string& text) {
  size_t tokens = 0;
  const Timing timing = sample([&] { tokens = tokenizer.encode(text).value().size(); });
  const double mb = static_cast<double>(text.size()) / 1e6;
  std::printf("%-28s %7.2f MB %9zu tokens  %8.2f ms  %7.1f MB/s  first %7.1f MB/s  CV %.1f%%\n", name, mb,
              tokens, 1e3 * timing.median, mb / timing.median, mb / timing.first, 100 * timing.variation);
}

void bench_next_turn(const Tokenizer& tokenizer, const std::string& text) {
  constexpr size_t kTokens = 500'000;
  std::string prompt = repeated(text, kTokens * 8);
  std::vector<int32_t> ids = tokenizer.encode(prompt).value();
  while (ids.size() < kTokens) ids = tokenizer.encode(prompt += text).value();
  prompt = tokenizer.decode(std::span(ids).first(kTokens)).value();
  EncodeCache cache(tokenizer);
  (void)cache.encode(prompt);
  std::vector<double> times;
  for (int turn = 0; turn < kSamples; ++turn) {
    const size_t from = (turn * 1000) % (ids.size() - 200);
    prompt += tokenizer.decode(std::span(ids).subspan(from, 200)).value();
    times.push_back(seconds([&] { (void)cache.encode(prompt).value().size(); }));
  }
  std::sort(times.begin(), times.end());
  std::printf("%-28s %7.2f MB %9zu tokens  %8.3f ms with 200 new tokens at the end (slowest %.3f ms)\n",
              "next turn", static_cast<double>(prompt.size()) / 1e6, kTokens, 1e3 * times[kSamples / 2],
              1e3 * times.back());
}

struct Arguments {
  std::string tokenizer;
  std::vector<std::string> corpora;
  bool awkward = true;
};

std::optional<Arguments> parse_arguments(int argc, char** argv) {
  Arguments arguments;
  for (int i = 1; i < argc; ++i) {
    const std::string_view option = argv[i];
    if (option == "--no-awkward")
      arguments.awkward = false;
    else if (option == "--tokenizer" && i + 1 < argc)
      arguments.tokenizer = argv[++i];
    else if (option == "--corpus" && i + 1 < argc)
      arguments.corpora.emplace_back(argv[++i]);
    else
      return std::nullopt;
  }
  if (arguments.tokenizer.empty()) return std::nullopt;
  return arguments;
}

void bench_awkward(const Tokenizer& tokenizer) {
  const std::pair<const char*, std::string> awkward[] = {
      {"a", repeated("a")},
      {"A", repeated("A")},
      {"blanks", repeated(" ")},
      {"line breaks", repeated("\n")},
      {"blank, line break", repeated(" \n")},
      {"!", repeated("!")},
      {"1", repeated("1")},
      {"<", repeated("<")},
      {"<|content_altered_", repeated("<|content_altered_")},
      {"]<]start of ", repeated("]<]start of ")},
      {"combining marks", repeated("\xCC\x81")},
      {"mark, capital", repeated("\xCC\x81"
                                 "A")},
      {"ideograph, capital", repeated("\xE6\x97\xA5"
                                      "A")},
      {"no-break spaces", repeated("\xC2\xA0")},
      {"random letters", random_text("abcdefghijklmnopqrstuvwxyz", 1)},
      {"random capitals", random_text("ABCDEFGHIJKLMNOPQRSTUVWXYZ", 2)},
      {"random symbols", random_text("!#$%&()*+,-.:;<=>?@[]^_{|}~", 3)},
      {"random bytes", random_text(all_bytes(), 4)},
      {"byte 255", repeated("\xFF")},
      {"random ideographs", ideographs()},
      {"emoji", repeated("\xF0\x9F\x98\x80")},
  };
  for (const auto& [name, text] : awkward) bench_text(tokenizer, name, text);
}

int run(const Arguments& arguments) {
  const auto fail = [](const Error& error) { return std::fprintf(stderr, "%s\n", error.message.c_str()), 2; };
  const auto json = read_text_file(arguments.tokenizer, size_t{256} << 20);
  if (!json.ok()) return fail(json.error());
  const double start = cpu_seconds();
  const auto tokenizer = Tokenizer::parse(json.value());
  if (!tokenizer.ok()) return fail(tokenizer.error());
  std::printf("%d ids, loaded in %.0f ms\n", tokenizer.value().vocab_size(), 1e3 * (cpu_seconds() - start));
  std::string last;
  for (const std::string& file : arguments.corpora) {
    const auto text = read_text_file(file, size_t{1} << 30);
    if (!text.ok()) return fail(text.error());
    bench_text(tokenizer.value(), std::filesystem::path(file).filename().c_str(), last = text.value());
  }
  if (!last.empty()) bench_next_turn(tokenizer.value(), last);
  if (arguments.awkward) bench_awkward(tokenizer.value());
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const auto arguments = parse_arguments(argc, argv);
  if (arguments) return run(*arguments);
  std::fprintf(stderr,
               "usage: tokenizer_bench --tokenizer tokenizer.json [--corpus TEXT]... [--no-awkward]\n");
  return 2;
}
