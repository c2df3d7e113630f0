// SPDX-License-Identifier: Apache-2.0
// How long constraints take to be made, and their masks to be written, along the documents of
// constraint_cases.py. Usage: constraint_bench FOLDER [CASE]
#include <algorithm>
#include <cstdio>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "base/json/json.h"
#include "text/constraint/constraint.h"
#include "text/constraint/schema/json_schema.h"

namespace {

using namespace sparrow;

// Time that this thread ran: others may share the processor.
double now_us() {
  timespec time;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return 1e6 * static_cast<double>(time.tv_sec) + 1e-3 * static_cast<double>(time.tv_nsec);
}

std::vector<std::string> read_tokens(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  std::vector<std::string> tokens;
  for (unsigned char size[2]; in.read(reinterpret_cast<char*>(size), 2);) {
    std::string token(size[0] | size[1] << 8, '\0');
    in.read(token.data(), static_cast<std::streamsize>(token.size()));
    tokens.push_back(std::move(token));
  }
  return tokens;
}

// The longest token at each place.
std::vector<int32_t> tokenize(const std::map<std::string, int32_t, std::less<>>& ids, std::string_view text) {
  std::vector<int32_t> out;
  while (!text.empty()) {
    size_t size = std::min<size_t>(text.size(), 32);
    auto found = ids.find(text.substr(0, size));
    while (found == ids.end()) found = ids.find(text.substr(0, --size));
    out.push_back(found->second);
    text.remove_prefix(size);
  }
  return out;
}

void report(const char* what, std::vector<double> times) {
  std::sort(times.begin(), times.end());
  const auto at = [&](double share) {
    return times[std::min(times.size() - 1, static_cast<size_t>(share * static_cast<double>(times.size())))];
  };
  double sum = 0;
  for (const double time : times) sum += time;
  std::printf("%-8s n %6zu  mean %8.1f us  p50 %8.1f  p90 %8.1f  p99 %8.1f  p99.9 %8.1f  max %8.1f\n", what,
              times.size(), sum / static_cast<double>(times.size()), at(.5), at(.9), at(.99), at(.999),
              times.back());
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) return std::puts("usage: constraint_bench FOLDER [CASE]"), 2;
  const std::filesystem::path folder = argv[1];
  const std::vector<std::string> tokens = read_tokens(folder / "vocabulary.bin");
  std::map<std::string, int32_t, std::less<>> ids;
  for (size_t i = 0; i < tokens.size(); ++i) ids.emplace(tokens[i], static_cast<int32_t>(i));
  const double start = now_us();
  const auto vocabulary = std::make_shared<const Vocabulary>(tokens);
  std::printf("%zu tokens, trees in %.0f ms\n", tokens.size(), (now_us() - start) / 1000);
  std::ifstream in(folder / "cases.jsonl");
  std::vector<double> compile, mask, advance;
  std::vector<uint32_t> bits(vocabulary->num_words());
  int number = 0, refused = 0;
  for (std::string line; std::getline(in, line); ++number) {
    if (argc > 2 && number != std::atoi(argv[2])) continue;
    const auto document = JsonDocument::parse(line, "case");
    const double begin = now_us();
    auto grammar = std::make_shared<Grammar>();
    const auto root = add_schema(*grammar, document.value().root().at("schema").value());
    if (!root.ok() || !grammar->finish(root.value()).ok()) {
      std::printf("case %d: %s\n", number, root.ok() ? "too large" : root.error().message.c_str());
      ++refused;
      continue;
    }
    auto constraint = Constraint::create(grammar, vocabulary);
    compile.push_back((now_us() - begin));
    Matcher matcher(constraint.value());
    for (const int32_t id : tokenize(ids, document.value().root().at("document").value().string_view())) {
      const double before = now_us();
      matcher.write_mask(bits);
      mask.push_back((now_us() - before));
      const bool allowed = (bits[id / 32] >> (id % 32) & 1) != 0;
      const double between = now_us();
      if (!allowed || !matcher.advance(id)) {
        std::printf("case %d refuses its own document at \"%s\"\n", number, tokens[id].c_str());
        return 1;
      }
      advance.push_back((now_us() - between));
      if (argc > 2) std::printf("%8.1f us  %s\n", mask.back(), tokens[id].c_str());
    }
    if (!matcher.may_end()) return std::printf("case %d: the document is not complete\n", number), 1;
  }
  std::printf("%d of 200 refused\n", refused);
  report("compile", compile);
  report("mask", mask);
  report("advance", advance);
  return 0;
}
