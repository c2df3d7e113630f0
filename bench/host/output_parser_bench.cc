// SPDX-License-Identifier: Apache-2.0
// Bytes for each second of CPU time that the output parser takes (it uses one thread), for texts whole and in
// chunks of a few bytes, as tokens bring them. Usage: output_parser_bench
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <ctime>
#include <string>
#include <string_view>
#include <vector>

#include "text/output/output_parser.h"

namespace {

using namespace sparrow;

constexpr size_t kTextBytes = size_t{16} << 20;  // long enough for the clock's steps
constexpr int kSamples = 20;
constexpr std::string_view kTools =
    R"([{"name":"write","parameters":{"properties":{"path":{"type":"string"},"text":{"type":"string"}}}}])";

std::string repeated(std::string_view piece) {
  std::string text;
  while (text.size() < kTextBytes) text += piece;
  return text;
}

double parse_seconds(const OutputParserOptions& options, std::string_view text, size_t chunk) {
  const std::clock_t start = std::clock();
  OutputParser parser(options);
  size_t parsed = 0;
  std::vector<OutputDelta> deltas;
  for (size_t at = 0; at < text.size(); at += chunk) {
    deltas.clear();
    parser.feed(text.substr(at, chunk), deltas);
    for (const OutputDelta& delta : deltas) parsed += delta.text.size();
  }
  deltas.clear();
  parser.finish(deltas);
  const double seconds = static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
  return parsed > 0 ? seconds : 0.0;
}

void measure(const char* name, const OutputParserOptions& options, const std::string& text, size_t chunk) {
  std::vector<double> rates;
  parse_seconds(options, text, chunk);
  for (int i = 0; i < kSamples; ++i)
    rates.push_back(static_cast<double>(text.size()) / parse_seconds(options, text, chunk) / 1e6);
  double mean = 0, square = 0;
  for (const double rate : rates) mean += rate / kSamples;
  for (const double rate : rates) square += (rate - mean) * (rate - mean) / kSamples;
  std::nth_element(rates.begin(), rates.begin() + kSamples / 2, rates.end());
  std::printf("%-22s chunk %8zu  %9.0f MB/s  CV %4.1f%%\n", name, std::min(chunk, text.size()),
              rates[kSamples / 2], 100 * std::sqrt(square) / mean);
}

}  // namespace

int main() {
  const auto document = JsonDocument::parse(kTools, "tools");
  const auto tools = ToolSet::from_json(document->root());
  const OutputParserOptions options{.tools = &tools.value()};
  OutputParserOptions thinking = options;
  thinking.starts_in_reasoning = true;
  const std::string prose =
      repeated("The sparrow is a small bird; it lives near people and eats what they drop.\n");
  const std::string code =
      repeated("for (int i = 0; i < n && a[i] != b[i]; ++i) { v[i] = std::vector<int>(x[0]); }\n");
  const std::string chinese = repeated("麻雀是一种小鸟，它住在人的附近，吃人们掉下的东西。");
  const std::string marker(kToolMarker);
  const std::string call =
      marker + "<tool_call>" + marker + "<invoke name=\"write\">" + marker + "<text>" + code;
  for (const size_t chunk : {kTextBytes * 2, size_t{4096}, size_t{64}, size_t{16}, size_t{4}}) {
    measure("prose", options, prose, chunk);
    measure("prose in reasoning", thinking, prose, chunk);
    measure("code", options, code, chunk);
    measure("Chinese", options, chinese, chunk);
    measure("string argument", options, call, chunk);
  }
  return 0;
}
