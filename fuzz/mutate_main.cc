// SPDX-License-Identifier: Apache-2.0
// Runs a fuzz target where libFuzzer is not to be had: replays the seeds of a folder, then mutations of them.
// The sequence is the same on every run of a seed, so that a crash comes back.
#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <random>
#include <string>
#include <string_view>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace {

constexpr int kDefaultRuns = 20000;
constexpr double kTestSeconds = 10;
constexpr size_t kMaxInput = size_t{1} << 16;

void run(const std::string& input) {
  // A copy of exactly this size: a sanitizer then sees the first byte read past the end.
  const std::vector<uint8_t> copy(input.begin(), input.end());
  LLVMFuzzerTestOneInput(copy.data(), copy.size());
}

class Mutator {
 public:
  Mutator(const std::vector<std::string>& seeds, uint64_t random) : seeds_(seeds), random_(random) {}

  std::string next() {
    std::string input = pick(seeds_);
    const size_t count = 1 + below(4);
    for (size_t i = 0; i < count; ++i) mutate(input);
    if (input.size() > kMaxInput) input.resize(kMaxInput);
    return input;
  }

 private:
  size_t below(size_t n) { return n == 0 ? 0 : static_cast<size_t>(random_() % n); }
  template <typename T>
  const typename T::value_type& pick(const T& from) {
    return from[below(std::size(from))];
  }

  void mutate(std::string& input) {
    switch (below(8)) {
      case 0:  // flip a bit
        if (!input.empty()) input[below(input.size())] ^= static_cast<char>(1u << below(8));
        break;
      case 1:  // any byte
        if (!input.empty()) input[below(input.size())] = static_cast<char>(below(256));
        break;
      case 2:  // cut off the end
        input.resize(below(input.size() + 1));
        break;
      case 3:  // leave out a piece
        if (!input.empty()) input.erase(below(input.size()), 1 + below(16));
        break;
      case 4: {  // a piece of another seed
        const std::string& other = pick(seeds_);
        if (other.empty()) break;
        const size_t begin = below(other.size());
        input.insert(below(input.size() + 1), other.substr(begin, below(other.size() - begin) % 256));
        break;
      }
      case 5:  // the first bytes hold a length
        if (input.size() >= 8) input[below(8)] = static_cast<char>(pick(kExtremeBytes));
        break;
      case 6:
        replace_number(input);
        break;
      default:
        input.insert(below(input.size() + 1), pick(kTokens));
    }
  }

  // A run of digits becomes a number from the edges of what a reader may expect.
  void replace_number(std::string& input) {
    if (input.empty()) return;
    const auto is_digit = [](char c) { return c >= '0' && c <= '9'; };
    const auto first =
        std::find_if(input.begin() + static_cast<std::ptrdiff_t>(below(input.size())), input.end(), is_digit);
    const auto last = std::find_if_not(first, input.end(), is_digit);
    if (first == input.end()) return;
    input.replace(first, last, pick(kNumbers));
  }

  static constexpr std::array<uint8_t, 5> kExtremeBytes = {0, 1, 0x7f, 0x80, 0xff};
  static constexpr std::array<const char*, 17> kNumbers = {"0",
                                                           "-1",
                                                           "1",
                                                           "2",
                                                           "31",
                                                           "33",
                                                           "127",
                                                           "129",
                                                           "2147483647",
                                                           "2147483648",
                                                           "4294967296",
                                                           "9223372036854775807",
                                                           "9223372036854775808",
                                                           "18446744073709551615",
                                                           "1e308",
                                                           "1e-320",
                                                           "0.5"};
  static constexpr std::array<const char*, 14> kTokens = {
      "{", "}", "[", "]", "\"", ",", ":", "null", "true", "false", "\\", "[[[[[[[[", "{\"a\":{\"", "\\u0000"};

  const std::vector<std::string>& seeds_;
  std::mt19937_64 random_;
};

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2 || argc > 4) {
    std::fprintf(stderr, "usage: %s CORPUS_FOLDER [RUNS, however long they take [SEED]]\n", argv[0]);
    return 2;
  }
  std::vector<std::filesystem::path> paths;
  std::error_code ec;
  for (const auto& item : std::filesystem::directory_iterator(argv[1], ec)) paths.push_back(item.path());
  if (paths.empty()) {
    std::fprintf(stderr, "no seeds in %s\n", argv[1]);
    return 2;
  }
  std::sort(paths.begin(), paths.end());
  std::vector<std::string> seeds;
  for (const auto& path : paths) {
    std::ifstream file(path, std::ios::binary);
    seeds.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
    run(seeds.back());
  }
  const int wanted = argc > 2 ? std::atoi(argv[2]) : kDefaultRuns;
  const auto start = std::chrono::steady_clock::now();
  Mutator mutator(seeds, argc > 3 ? std::strtoull(argv[3], nullptr, 10) : 20240607);
  int runs = 0;
  const auto seconds = [start] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  };
  // Sanitizers make a run slower; the limit keeps the test short there.
  const double limit = argc > 2 ? std::numeric_limits<double>::infinity() : kTestSeconds;
  while (runs < wanted && seconds() < limit) {
    run(mutator.next());
    ++runs;
  }
  std::printf("%zu seeds and %d mutations in %.1f s: no crash\n", seeds.size(), runs, seconds());
  return 0;
}
