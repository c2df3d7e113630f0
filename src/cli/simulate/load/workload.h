// SPDX-License-Identifier: Apache-2.0
// FleetWorkload: what clients ask of a fleet, and when. Texts are not kept: a token is a hash of the stream
// that it belongs to and its place there, so that whoever continues a conversation has the same tokens before
// it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"

namespace sparrow::cli {

// Tokens [0, length) of a stream.
struct StreamPart {
  uint64_t stream = 0;
  int64_t length = 0;
};

struct SimRequest {
  double seconds =
      0;  // when it comes; with `after`, how long after that one's end, and not before `not_before`
  double not_before = 0;
  int64_t after = -1;  // a request that ends first; -1: none
  size_t first_part = 0;
  int num_parts = 0;
  int64_t prompt_tokens = 0, output_tokens = 1;
};

struct FleetWorkload {
  std::string name;
  std::vector<SimRequest> requests;
  std::vector<StreamPart> parts;  // of their prompts; an output goes on where its prompt's last stream ends

  std::span<const StreamPart> parts_of(const SimRequest& request) const {
    return {parts.data() + request.first_part, static_cast<size_t>(request.num_parts)};
  }
  void add(SimRequest request, std::initializer_list<StreamPart> prompt);
  std::vector<int32_t> prompt_of(const SimRequest& request) const;
};

int32_t token_of(uint64_t stream, int64_t position);

// What is not said here has a default, or no meaning: a trace says all by itself.
struct WorkloadOptions {
  static constexpr int64_t kRequests = 10'000;
  static constexpr double kRate = 10;

  std::string kind = "chat";  // "agents", "batch", or a trace's file
  std::optional<int64_t> requests;
  std::optional<double> rate;  // conversations that begin in a second
  std::optional<int> users;    // instead: each begins a conversation when the one before has ended
  std::optional<uint64_t> seed;
};

Result<FleetWorkload> make_workload(const WorkloadOptions& options);

// Lines of JSON: "arrival" (seconds) or "timestamp" (milliseconds), "prompt_tokens" or "input_length",
// "output_tokens" or "output_length"; where prompts share something "session", whose prompts begin alike, or
// "hash_ids", one for each 512 tokens, or as many as "hash_tokens" says.
Result<FleetWorkload> read_trace(const std::filesystem::path& file);

}  // namespace sparrow::cli
