// SPDX-License-Identifier: Apache-2.0
#include "engine/request.h"

#include <algorithm>

#include "kv/block_table.h"

namespace sparrow {
namespace {

Error invalid(const char* field, std::string message) {
  return {Errc::kInvalidArgument, std::move(message), field};
}

Status check_prompt(const std::vector<int32_t>& ids, size_t prompt, const Request& request,
                    const RequestLimits& limits) {
  if (ids.empty()) return invalid("prompt", strf("prompt {} is empty: give at least one token id", prompt));
  for (size_t i = 0; i < ids.size(); ++i)
    if (ids[i] < 0 || ids[i] >= limits.vocab_size)
      return invalid("prompt", strf("prompt id {} at index {} is not in the vocabulary [0, {})", ids[i], i,
                                    limits.vocab_size));
  const auto tokens = static_cast<int64_t>(ids.size());
  if (tokens > limits.max_model_tokens - request.max_tokens)
    return invalid("prompt", strf("{} prompt tokens and {} new ones exceed the model's {} positions", tokens,
                                  request.max_tokens, limits.max_model_tokens));
  // The last token drawn is never run.
  const int64_t blocks = blocks_for_tokens(tokens + std::max<int64_t>(request.max_tokens - 1, 0));
  const int64_t cache_blocks = limits.cache_tokens / kBlockTokens;
  if (blocks > cache_blocks)
    return invalid("prompt",
                   strf("{} prompt tokens and {} new ones need {} blocks of {} tokens, the cache has {}",
                        tokens, request.max_tokens, blocks, kBlockTokens, cache_blocks));
  return Ok{};
}

Status check_count(std::optional<int> count, const char* field) {
  if (count && (*count < 0 || *count > kMaxTopLogprobs))
    return invalid(field, strf("{} must be in [0, {}], got {}", field, kMaxTopLogprobs, *count));
  return Ok{};
}

// Something must be left for the first draw, which is held to more than those after min_tokens. (A bias takes
// nothing away: it is a number like any other.)
Status check_choice(const Request& request, const RequestLimits& limits) {
  const std::vector<int32_t>& allowed = request.sampling.allowed_ids;
  const size_t most = request.sampling.banned_ids.size() + request.stop_ids.size() + limits.end_ids.size();
  const size_t choice = allowed.empty() ? static_cast<size_t>(limits.vocab_size) : 1;
  if (request.max_tokens == 0 || most < choice) return Ok{};
  std::vector<bool> out(static_cast<size_t>(limits.vocab_size));
  const auto take_out = [&out](const std::vector<int32_t>& ids) {
    for (const int32_t id : ids) out[static_cast<size_t>(id)] = true;
  };
  take_out(request.sampling.banned_ids);
  if (request.min_tokens > 0) {
    take_out(request.stop_ids);
    if (!request.ignore_eos) take_out(limits.end_ids);
  }
  const auto is_out = [&out](int32_t id) { return out[static_cast<size_t>(id)]; };
  if (!allowed.empty() && std::all_of(allowed.begin(), allowed.end(), is_out))
    return invalid("allowed_token_ids",
                   strf("allowed_token_ids leaves nothing to draw: each of its {} ids is banned or, before "
                        "min_tokens {}, an end or stop id",
                        allowed.size(), request.min_tokens));
  if (allowed.empty() && std::all_of(out.begin(), out.end(), [](bool gone) { return gone; }))
    return invalid("stop_token_ids",
                   strf("stop_token_ids leaves nothing to draw before min_tokens {}", request.min_tokens));
  return Ok{};
}

}  // namespace

Status validate(const Request& request, const RequestLimits& limits) {
  const int max_choices = std::min(kMaxChoices, limits.max_choices);
  if (request.n < 1 || request.n > max_choices)
    return invalid("n", strf("n must be in [1, {}], got {}", max_choices, request.n));
  if (request.prompts.empty()) return invalid("prompt", "prompts is empty: give at least one");
  if (request.prompts.size() > static_cast<size_t>(kMaxOutputs / request.n))
    return invalid("prompt", strf("{} prompts with n = {} make more than {} outputs", request.prompts.size(),
                                  request.n, kMaxOutputs));
  if (request.max_tokens < 0)
    return invalid("max_tokens", strf("max_tokens must be >= 0, got {}", request.max_tokens));
  if (request.min_tokens < 0 || request.min_tokens > request.max_tokens)
    return invalid("min_tokens", strf("min_tokens must be in [0, max_tokens = {}], got {}",
                                      request.max_tokens, request.min_tokens));
  if (request.stop_ids.size() > static_cast<size_t>(limits.vocab_size))
    return invalid("stop_token_ids",
                   strf("stop_token_ids holds {} entries, more than the {} ids of the vocabulary",
                        request.stop_ids.size(), limits.vocab_size));
  for (const int32_t id : request.stop_ids)
    if (id < 0 || id >= limits.vocab_size)
      return invalid("stop_token_ids", strf("stop_token_ids holds {}, which is not in the vocabulary [0, {})",
                                            id, limits.vocab_size));
  if (request.queue_timeout && request.queue_timeout->count() < 0)
    return invalid("queue_timeout",
                   strf("queue_timeout must be >= 0 ms, got {}", request.queue_timeout->count()));
  SPARROW_TRY(check_count(request.logprobs, "logprobs"));
  SPARROW_TRY(check_count(request.prompt_logprobs, "prompt_logprobs"));
  SPARROW_TRY(validate(request.sampling, limits.vocab_size));
  SPARROW_TRY(check_choice(request, limits));
  for (size_t i = 0; i < request.prompts.size(); ++i)
    SPARROW_TRY(check_prompt(request.prompts[i], i, request, limits));
  return validate(request.media, request.prompts, limits.media);
}

const char* name_of(FinishReason reason) {
  switch (reason) {
    case FinishReason::kStop:
      return "stop";
    case FinishReason::kLength:
      return "length";
    case FinishReason::kCancelled:
      return "cancelled";
    case FinishReason::kDeadline:
      return "deadline";
    case FinishReason::kError:
      return "error";
  }
  return "?";
}

}  // namespace sparrow
