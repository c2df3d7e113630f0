// SPDX-License-Identifier: Apache-2.0
#include "engine/engine_core.h"

#include <algorithm>
#include <chrono>
#include <utility>

namespace sparrow {
namespace {

SchedulerLimits scheduler_limits(const EngineOptions& options) {
  return {.groups = options.grid.dp,
          .max_step_tokens = options.max_step_tokens,
          .max_step_sequences = options.max_step_sequences,
          .max_model_tokens = options.max_model_tokens,
          .prefix_caching = options.prefix_caching};
}

Result<EngineOptions> resolve(EngineOptions options, const ModelConfig& config) {
  if (options.max_model_tokens == 0) options.max_model_tokens = config.max_positions;
  if (options.max_model_tokens > config.max_positions)
    return Error{Errc::kInvalidArgument, strf("max_model_tokens {} exceeds the model's {} positions",
                                              options.max_model_tokens, config.max_positions)};
  SPARROW_TRY(validate(scheduler_limits(options)));
  return options;
}

const char* name_of(WaitReason reason) {
  switch (reason) {
    case WaitReason::kTurn:
      return "its turn";
    case WaitReason::kSequences:
      return "as many sequences as may are running";
    case WaitReason::kBlocks:
      return "blocks of the cache";
    case WaitReason::kSharedPrefix:
      return "another request computes its prefix";
    case WaitReason::kPaused:
      return "its reader";
  }
  return "?";
}

}  // namespace

EngineCore::Created EngineCore::create(const ModelConfig& config, const Weights& weights,
                                       const EngineOptions& options) {
  const EngineOptions resolved = SPARROW_TRY(resolve(options, config));
  return create(config, SPARROW_TRY(create_runner(config, weights, resolved)), resolved);
}

EngineCore::Created EngineCore::create(const ModelConfig& config, std::unique_ptr<ModelRunner> runner,
                                       const EngineOptions& options) {
  const EngineOptions resolved = SPARROW_TRY(resolve(options, config));
  return std::unique_ptr<EngineCore>(new EngineCore(config, resolved, std::move(runner)));
}

EngineCore::EngineCore(const ModelConfig& config, const EngineOptions& options,
                       std::unique_ptr<ModelRunner> runner)
    : runner_(std::move(runner)),
      request_limits_{.vocab_size = config.vocab_size,
                      .max_model_tokens = options.max_model_tokens,
                      .cache_tokens = runner_->info().cache_tokens,
                      .max_choices = options.max_step_sequences,
                      .end_ids = config.eos_token_ids,
                      .media = {.vision = runner_->info().feature_tokens > 0 ? config.vision : std::nullopt,
                                .feature_tokens = runner_->info().feature_tokens}},
      run_ahead_(options.run_ahead.value_or(runner_->info().run_ahead)),
      bound_steps_(options.bound_steps.value_or(runner_->info().bound_steps)),
      scheduler_(runner_->info().num_blocks, scheduler_limits(options), options.block_order_seed),
      features_(runner_->info().feature_tokens, options.max_step_patches, options.grid.dp, options.grid.tp),
      budget_(options.max_step_tokens) {
  if (options.cache_events) scheduler_.tell_cache_events(options.cache_events);
}

void EngineCore::add(RequestId id, Request request, std::shared_ptr<TokenChannel> channel,
                     SchedulerTime now) {
  auto active = std::make_unique<ActiveRequest>();
  ActiveRequest& r = *active;
  r.id = id;
  r.arrived = now;
  r.channel = std::move(channel);
  r.end_ids = request.stop_ids;
  if (!request.ignore_eos)
    r.end_ids.insert(r.end_ids.end(), request_limits_.end_ids.begin(), request_limits_.end_ids.end());
  r.outputs_left = request.num_outputs();
  std::vector<std::vector<int32_t>> prompts = std::move(request.prompts);
  const std::vector<RequestMedium> media = std::move(request.media);
  r.request = std::move(request);
  requests_.emplace(id, std::move(active));
  ++num_queued_;
  ++stats_.requests;
  // The last prompt that is refused takes the request with it.
  for (size_t i = 0; i < prompts.size() && requests_.contains(id); ++i)
    add_prompt(r, i,
               {.prompt = std::move(prompts[i]),
                .media = media_of(media, i, request_limits_.media.vision, r.request.salt, r.request.tenant)},
               now);
}

void EngineCore::add_prompt(ActiveRequest& request, size_t prompt, SequenceSpec spec, SchedulerTime now) {
  const Request& r = request.request;
  stats_.prompt_tokens += static_cast<int64_t>(spec.prompt.size());
  TokenCounts counts;
  if (r.sampling.has_penalties()) counts.add_prompt(spec.prompt);
  spec.num_choices = r.n;
  spec.priority = r.priority;
  spec.salt = r.salt;
  spec.score_prompt = r.prompt_logprobs.has_value();
  spec.owner = request.id;
  // A token is drawn even where none is wanted: the scheduler counts it.
  spec.max_total_tokens = static_cast<int64_t>(spec.prompt.size()) + std::max<int64_t>(r.max_tokens, 1);
  if (r.queue_timeout) spec.queue_deadline = now + *r.queue_timeout;
  const Result<SequenceId> first = scheduler_.add(std::move(spec), now);
  for (int choice = 0; choice < r.n; ++choice) {
    const int index = static_cast<int>(prompt) * r.n + choice;
    const SequenceId id = first.ok() ? first.value() + static_cast<SequenceId>(choice) : 0;
    request.sequences.push_back(id);
    if (first.ok()) {
      outputs_.emplace(id, Output{.request = &request,
                                  .index = index,
                                  .choice = choice,
                                  .counts = counts,
                                  .constraint = r.constraint ? r.constraint->copy() : nullptr});
      continue;
    }
    ++stats_.failed;
    send(request, {.output = index, .finish = FinishReason::kError, .error = first.error().message});
    if (--request.outputs_left > 0) continue;
    leave_queue(request);
    requests_.erase(request.id);
    return;
  }
}

void EngineCore::on_signal(RequestId id) {
  const auto found = requests_.find(id);
  if (found == requests_.end()) return;
  ActiveRequest& request = *found->second;
  if (request.channel->cancelled()) return end_all(request, FinishReason::kCancelled);
  if (request.paused && request.channel->has_room()) set_paused(request, false);
  for (const int output : request.channel->take_cancelled_outputs()) {
    const SequenceId sequence = request.sequences.at(static_cast<size_t>(output));
    const Sequence* running = scheduler_.find(sequence);
    // Before its first token an output is one with its prompt's other choices.
    if (!outputs_.contains(sequence) || !running || running->num_choices > 1) continue;
    const bool was_last = request.outputs_left == 1;  // the request goes with it
    end(sequence, {.output = output,
                   .finish = FinishReason::kCancelled,
                   .cached_tokens = outputs_.at(sequence).cached_tokens});
    if (was_last) return;
  }
}

void EngineCore::cancel_all() {
  while (!requests_.empty()) end_all(*requests_.begin()->second, FinishReason::kCancelled);
}

bool EngineCore::runner_failed() {
  if (!failure_) failure_ = runner_->failure();
  if (!failure_) return false;
  while (!requests_.empty()) end_all(*requests_.begin()->second, FinishReason::kError, failure_->message);
  flight_.num_tokens = ahead_.num_tokens = 0;  // nobody waits for them
  return true;
}

void EngineCore::end_all(ActiveRequest& request, FinishReason reason, const std::string& error) {
  const std::vector<SequenceId> sequences = request.sequences;  // the request goes with its last output
  for (const SequenceId sequence : sequences)
    if (const auto output = outputs_.find(sequence); output != outputs_.end())
      end(sequence, {.output = output->second.index,
                     .finish = reason,
                     .error = error,
                     .cached_tokens = output->second.cached_tokens});
}

void EngineCore::end(SequenceId sequence, TokenEvent event) {
  const auto found = outputs_.find(sequence);
  ActiveRequest& request = *found->second.request;
  outputs_.erase(found);
  // A choice that does not exist yet ends with its prompt's sequence, when all have ended.
  scheduler_.finish(sequence);
  switch (*event.finish) {
    case FinishReason::kStop:
      ++stats_.stopped;
      break;
    case FinishReason::kLength:
      ++stats_.reached_length;
      break;
    case FinishReason::kCancelled:
      ++stats_.cancelled;
      break;
    case FinishReason::kDeadline:
      ++stats_.expired;
      break;
    case FinishReason::kError:
      ++stats_.failed;
      break;
  }
  send(request, std::move(event));
  if (--request.outputs_left > 0) return;
  if (!request.started) leave_queue(request);
  requests_.erase(request.id);
}

void EngineCore::leave_queue(const ActiveRequest& request) {
  --num_queued_;
  left_queue_.push_back(request.id);
}

void EngineCore::set_paused(ActiveRequest& request, bool paused) {
  request.paused = paused;
  for (const SequenceId sequence : request.sequences)
    if (scheduler_.find(sequence)) scheduler_.set_paused(sequence, paused);
}

void EngineCore::expire(const StepPlan& plan) {
  for (const Expired& expired : plan.expired) {
    ActiveRequest& request = *outputs_.at(expired.id).request;
    if (!request.started) request.waited = waited_until_now(request, expired.reason);
    const int num_choices = request.request.n;
    for (SequenceId id = expired.id; id < expired.id + static_cast<SequenceId>(num_choices); ++id)
      end(id, {.output = outputs_.at(id).index, .finish = FinishReason::kDeadline});
  }
}

void EngineCore::send(ActiveRequest& request, TokenEvent event) {
  event.waited = std::exchange(request.waited, std::nullopt);
  outgoing_.push_back({request.id, request.channel, std::move(event)});
}

void EngineCore::deliver() {
  for (Outgoing& outgoing : outgoing_) outgoing.channel->push(std::move(outgoing.event));
  // Every output may push once more in the next step: a request whose stream cannot hold that gets none.
  for (const Outgoing& outgoing : outgoing_)
    if (const auto found = requests_.find(outgoing.request); found != requests_.end())
      if (ActiveRequest& request = *found->second; !request.paused && !request.channel->has_room())
        set_paused(request, true);
  outgoing_.clear();
}

EngineStats EngineCore::stats() const {
  EngineStats stats = stats_;
  const SchedulerStats s = scheduler_.stats();
  stats.running_sequences = s.running;
  stats.waiting_sequences = s.waiting;
  stats.waiting_by_reason = s.waiting_by_reason;
  const std::span<const RankTimes> of_ranks = runner_->rank_times();
  stats.rank_times.assign(of_ranks.begin(), of_ranks.end());
  stats.live_requests = static_cast<int>(requests_.size());
  stats.queued_requests = num_queued_;
  stats.blocks_total = s.blocks_total;
  stats.blocks_in_use = s.blocks_in_use;
  stats.blocks_cached = s.blocks_cached;
  stats.blocks_free = s.blocks_free;
  stats.prefix_tokens_queried = s.prefix_tokens_queried;
  stats.prefix_tokens_hit = s.prefix_tokens_hit;
  stats.preemptions = s.preemptions;
  stats.groups = s.groups;
  stats.encoded_segments = features_.stats().encoded;
  stats.encoded_patches = features_.stats().encoded_patches;
  return stats;
}

std::vector<WaitingSequence> EngineCore::waiting() const {
  std::vector<WaitingSequence> all;
  for (const auto& [id, output] : outputs_)
    if (const std::optional<WaitingInfo> info = scheduler_.waiting_info(id))
      all.push_back({.request = output.request->id,
                     .output = output.index,
                     .queue_position = info->queue_position,
                     .reason = name_of(info->reason),
                     .blocks_missing = info->blocks_missing});
  std::sort(all.begin(), all.end(), [](const WaitingSequence& a, const WaitingSequence& b) {
    return a.queue_position < b.queue_position;
  });
  return all;
}

}  // namespace sparrow
