// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <fstream>
#include <unordered_map>
#include <utility>

#include "base/files/mapped_file.h"
#include "base/json/json.h"
#include "base/json/known_fields.h"
#include "base/math.h"
#include "base/strf.h"
#include "cli/simulate/load/workload.h"

namespace sparrow::cli {
namespace {

constexpr int64_t kMostTokens = int64_t{1} << 24;  // of a prompt, of an answer
constexpr double kMostSeconds = 1e9;
// Streams of sessions, of prompts that share nothing, and of hashes do not meet.
constexpr uint64_t kSession = uint64_t{1} << 61, kAlone = uint64_t{2} << 61, kHash = uint64_t{3} << 61;

// Also what published traces have and nothing depends on.
const std::vector<std::string> kFields = {
    "arrival",  "timestamp",   "prompt_tokens", "input_length", "output_tokens", "output_length", "session",
    "hash_ids", "hash_tokens", "type",          "turn",         "chat_id",       "parent_chat_id"};

// A field with two names, of which a line has one.
Result<Json> either(const Json& row, std::string_view name, std::string_view other) {
  const auto second = row.find(other);
  if (!second) return row.at(name);
  if (row.find(name)) return second->error(strf("must not stand beside {}", name));
  return *second;
}

Result<double> arrival_of(const Json& row) {
  const Json value = SPARROW_TRY(either(row, "arrival", "timestamp"));
  const double unit = row.find("timestamp") ? 1e-3 : 1;
  const double seconds = SPARROW_TRY(value.as_number()) * unit;
  if (!(seconds >= 0) || seconds > kMostSeconds)
    return value.error(strf("must be from 0 to {} seconds", kMostSeconds));
  return seconds;
}

// The name of a session, or of what some tokens are.
Result<std::string> name_of(const Json& value) {
  if (value.is_string()) return std::string(value.string_view());
  if (auto digits = value.integer_digits()) return *std::move(digits);
  return value.error("must be a string or an integer");
}

uint64_t hash_of(std::string_view text) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (const char c : text) hash = (hash ^ static_cast<uint8_t>(c)) * 0x100000001b3u;
  return hash >> 3;
}

class TraceReader {
 public:
  Status add(const Json& row) {
    SPARROW_TRY(expect_fields(row, kFields));
    SimRequest request{.seconds = SPARROW_TRY(arrival_of(row)), .first_part = workload.parts.size()};
    const Json prompt = SPARROW_TRY(either(row, "prompt_tokens", "input_length"));
    const Json output = SPARROW_TRY(either(row, "output_tokens", "output_length"));
    request.prompt_tokens = SPARROW_TRY(prompt.as_int(1, kMostTokens));
    request.output_tokens = SPARROW_TRY(output.as_int(1, kMostTokens));
    const auto session = row.find("session"), hashes = row.find("hash_ids");
    if (hashes && session) return session->error("must not stand beside hash_ids");
    if (!hashes && row.find("hash_tokens"))
      return row.find("hash_tokens")->error("must not stand without hash_ids");
    if (hashes)
      SPARROW_TRY(add_hashes(*hashes, SPARROW_TRY(row.int_or("hash_tokens", 512, 1, kMostTokens)), request));
    else if (session)
      SPARROW_TRY(follow(*session, request));
    else
      workload.parts.push_back({kAlone + workload.requests.size(), request.prompt_tokens});
    request.num_parts = static_cast<int>(workload.parts.size() - request.first_part);
    workload.requests.push_back(request);
    return Ok{};
  }

  FleetWorkload workload;

 private:
  Status add_hashes(const Json& hashes, int64_t tokens_of_hash, const SimRequest& request) {
    SPARROW_TRY(hashes.expect_array());
    const int64_t most = ceil_div(request.prompt_tokens, tokens_of_hash);
    if (static_cast<int64_t>(hashes.size()) > most)
      return hashes.error(strf("must be at most {}, for {} tokens with {} to a hash", most,
                               request.prompt_tokens, tokens_of_hash));
    int64_t left = request.prompt_tokens;
    for (size_t i = 0; i < hashes.size(); ++i) {
      const int64_t length = std::min(left, tokens_of_hash);
      workload.parts.push_back({kHash + hash_of(SPARROW_TRY(name_of(hashes.element(i)))), length});
      left -= length;
    }
    // What no hash covers, and the answer, are this request's own.
    workload.parts.push_back({kAlone + workload.requests.size(), left});
    return Ok{};
  }

  // A session's request comes after the answer to the one before it.
  Status follow(const Json& session, SimRequest& request) {
    const std::string name = SPARROW_TRY(name_of(session));
    workload.parts.push_back({kSession + hash_of(name), request.prompt_tokens});
    const auto [last, is_new] =
        last_of_session_.try_emplace(name, Last{request.seconds, workload.requests.size()});
    if (is_new) return Ok{};
    if (request.seconds < last->second.seconds)
      return session.error(
          strf("must have its requests in order: one before comes at {} s", last->second.seconds));
    request.after = static_cast<int64_t>(last->second.request);
    last->second = {request.seconds, workload.requests.size()};
    request.not_before = std::exchange(request.seconds, 0);
    return Ok{};
  }

  struct Last {
    double seconds;
    size_t request;
  };
  std::unordered_map<std::string, Last> last_of_session_;
};

}  // namespace

Result<FleetWorkload> read_trace(const std::filesystem::path& file) {
  std::ifstream in(file);
  if (!in || std::filesystem::is_directory(file))
    return Error{
        Errc::kNotFound,
        strf("--workload must be chat, agents, batch or a file that can be read, got {}", quoted(file))};
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
