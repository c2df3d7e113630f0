// SPDX-License-Identifier: Apache-2.0
#include <fstream>
#include <unordered_map>

#include "base/files/mapped_file.h"
#include "base/json/json.h"
#include "base/strf.h"
#include "cli/simulate/load/workload.h"

namespace sparrow::cli {
namespace {

constexpr int64_t kMostTokens = int64_t{1} << 30;
// Streams of sessions, of prompts that share nothing, and of hashes do not meet.
constexpr uint64_t kSession = uint64_t{1} << 61, kAlone = uint64_t{2} << 61, kHash = uint64_t{3} << 61;

uint64_t hash_of(std::string_view text) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (const char c : text) hash = (hash ^ static_cast<uint8_t>(c)) * 0x100000001b3u;
  return hash >> 3;
}

Result<int64_t> either(const Json& row, std::string_view name, std::string_view other) {
  const Json value = SPARROW_TRY(row.at(row.find(other) ? other : name));
  return value.as_int(1, kMostTokens);
}

class TraceReader {
 public:
  Status add(const Json& row) {
    SPARROW_TRY(row.expect_object());
    SimRequest request;
    if (const auto at = row.find("timestamp"))
      request.seconds = SPARROW_TRY(at->as_number()) / 1000;
    else
      request.seconds = SPARROW_TRY(row.number_or("arrival", 0));
    request.output_tokens = SPARROW_TRY(either(row, "output_tokens", "output_length"));
    request.prompt_tokens = SPARROW_TRY(either(row, "prompt_tokens", "input_length"));
    request.first_part = workload.parts.size();
    if (const auto hashes = row.find("hash_ids")) {
      SPARROW_TRY(add_hashes(*hashes, SPARROW_TRY(row.int_or("hash_tokens", 512, 1, kMostTokens)), request));
    } else if (const auto session = row.find("session")) {
      follow(session->brief(), request);
    } else {
      workload.parts.push_back({kAlone + workload.requests.size(), request.prompt_tokens});
    }
    request.num_parts = static_cast<int>(workload.parts.size() - request.first_part);
    workload.requests.push_back(request);
    return Ok{};
  }

  FleetWorkload workload;

 private:
  Status add_hashes(const Json& hashes, int64_t tokens_of_hash, const SimRequest& request) {
    SPARROW_TRY(hashes.expect_array());
    int64_t left = request.prompt_tokens;
    for (size_t i = 0; i < hashes.size() && left > 0; ++i) {
      const int64_t length = std::min(left, tokens_of_hash);
      workload.parts.push_back({kHash + hash_of(hashes.element(i).brief()), length});
      left -= length;
    }
    // What no hash covers, and the answer, are this request's own.
    workload.parts.push_back({kAlone + workload.requests.size(), left});
    return Ok{};
  }

  // A session's request comes after the answer to the one before it.
  void follow(const std::string& name, SimRequest& request) {
    workload.parts.push_back({kSession + hash_of(name), request.prompt_tokens});
    const auto [last, is_new] = last_of_session_.try_emplace(name, 0);
    if (!is_new) {
      request.after = last->second;
      request.not_before = request.seconds;
      request.seconds = 0;
    }
    last->second = static_cast<int64_t>(workload.requests.size());
  }

  std::unordered_map<std::string, int64_t> last_of_session_;
};

}  // namespace

Result<FleetWorkload> read_trace(const std::filesystem::path& file) {
  std::ifstream in(file);
  if (!in)
    return Error{Errc::kNotFound, strf("{}: chat, agents, batch, or a file with a trace", quoted(file))};
  TraceReader reader;
  reader.workload.name = file.filename().string();
  std::string line;
  for (int64_t number = 1; std::getline(in, line); ++number) {
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    const std::string source = strf("{}:{}", file.string(), number);
    const JsonDocument document = SPARROW_TRY(JsonDocument::parse(line, source));
    SPARROW_TRY(reader.add(document.root(source)));
  }
  if (reader.workload.requests.empty())
    return Error{Errc::kInvalidArgument, strf("{} has no requests", quoted(file))};
  return std::move(reader.workload);
}

}  // namespace sparrow::cli
