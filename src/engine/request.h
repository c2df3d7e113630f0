// SPDX-License-Identifier: Apache-2.0
// Request: what a client asks of the engine, in token ids; and the events that come back. Plain data.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/media/request_media.h"
#include "engine/sampling_params.h"
#include "engine/schedule/wait_reason.h"
#include "engine/token_constraint.h"

namespace sparrow {

inline constexpr int kMaxChoices = 128;      // n of one prompt
inline constexpr int kMaxOutputs = 4096;     // prompts * n of one request
inline constexpr int kMaxTopLogprobs = 128;  // alternatives reported for a token

struct Request {
  std::vector<std::vector<int32_t>> prompts;  // one or several
  std::vector<RequestMedium> media;           // of the prompts, in the order in which they stand there
  int n = 1;                                  // choices for each prompt
  SamplingParams sampling;
  int64_t max_tokens = 16;        // 0: run the prompt only
  int64_t min_tokens = 0;         // end and stop ids are not drawn before this many
  std::vector<int32_t> stop_ids;  // end the output, and are part of it, like the model's end ids
  bool ignore_eos = false;        // the model's end ids are ordinary ones
  std::shared_ptr<const TokenConstraint> constraint;  // every output starts with a copy; null: none
  int priority = 0;                                   // smaller runs first
  std::string tenant;  // who asks: tenants share the memory for features of media
  std::string salt;    // prefixes are shared among requests of the same salt only
  std::optional<std::chrono::milliseconds> queue_timeout;  // not started by then: FinishReason::kDeadline
  // Log-probabilities of the drawn ids, and of this many most probable ones beside; of the output, of the
  // prompt. They are of the model's own distribution, before penalties, masks and temperature.
  std::optional<int> logprobs, prompt_logprobs;

  int num_outputs() const { return static_cast<int>(prompts.size()) * n; }
};

// What requests are checked against.
struct RequestLimits {
  int vocab_size = 0;
  int64_t max_model_tokens = 0;   // of a prompt and its output together
  int64_t cache_tokens = 0;       // that the cache can hold, all of it
  int max_choices = kMaxChoices;  // that can run at the same time
  std::vector<int32_t> end_ids;   // the model's
  RequestMediaLimits media;
};

// Names the first field that makes no sense, and its value.
Status validate(const Request& request, const RequestLimits& limits);

enum class FinishReason : uint8_t {
  kStop,       // an end or stop id was drawn
  kLength,     // max_tokens
  kCancelled,  // by the client, or the engine stopped
  kDeadline,   // queue_timeout passed before it could start
  kError,      // TokenEvent::error says why
};
const char* name_of(FinishReason reason);  // "stop", "length", ...

struct TokenLogprob {
  int32_t id;
  float logprob;
};

struct TokenLogprobs {
  TokenLogprob token;             // the one drawn, or in the prompt
  int rank = 0;                   // of that token: 1 is the most probable one
  std::vector<TokenLogprob> top;  // most probable first, the lower id on ties
};

// One more token of an output, its end, or both.
struct TokenEvent {
  int output = 0;  // prompt * n + choice
  std::optional<int32_t> id;
  std::optional<TokenLogprobs> logprobs;
  std::optional<FinishReason> finish;  // the last event of this output
  std::string error;                   // with FinishReason::kError
  int64_t cached_tokens = 0;           // of its prompt, taken from the prefix cache
  // With the first event of a request: how long it waited to start, and for what at last.
  struct Waited {
    double seconds;
    WaitReason reason;
  };
  std::optional<Waited> waited;
  // With the first event of a prompt's first choice: of every prompt token but the first.
  std::vector<TokenLogprobs> prompt_logprobs;
};

}  // namespace sparrow
