// SPDX-License-Identifier: Apache-2.0
#include "server/openai/generation.h"

#include <algorithm>
#include <chrono>
#include <iterator>
#include <utility>

#include "server/api/unique.h"

namespace sparrow::openai {
namespace {

// Neighbours of the same kind are one delta: a reader that lags gets fewer, larger messages.
void merge_neighbours(std::vector<OutputDelta>& deltas) {
  size_t kept = 0;
  for (size_t i = 1; i < deltas.size(); ++i) {
    OutputDelta& last = deltas[kept];
    if (deltas[i].kind == last.kind && deltas[i].call == last.call && deltas[i].name.empty()) {
      last.text += deltas[i].text;
    } else if (++kept != i) {  // a string that is moved onto itself is empty
      deltas[kept] = std::move(deltas[i]);
    }
  }
  if (!deltas.empty()) deltas.resize(kept + 1);
}

}  // namespace

Generation::Generation(const ServedModel& model, std::unique_ptr<Prepared> prepared,
                       std::string_view request_id)
    : prepared_(std::move(prepared)),
      usage_{.prompt_tokens = prepared_->num_prompt_tokens(), .media_tokens = prepared_->num_media_tokens()} {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  const std::string unique = new_unique();
  head_ = {.id = prepared_->writer->id_for(request_id, unique),
           .created = std::chrono::duration_cast<std::chrono::seconds>(now).count(),
           .model = prepared_->fields.model.value_or(model.names[0]),
           .unique = unique,
           .tokenizer = &model.tokenizer};
  const int outputs = prepared_->request.num_outputs();
  answers_.reserve(static_cast<size_t>(outputs));
  for (int i = 0; i < outputs; ++i)
    answers_.push_back({.answer = Answer(model.tokenizer, prepared_->answer)});
}

void Generation::count(const TokenEvent& event) {
  const auto entries = [](const TokenLogprobs& logprobs) {
    return 1 + static_cast<int64_t>(logprobs.top.size());
  };
  num_unwritten_ += event.logprobs ? entries(*event.logprobs) : 1;
  for (const TokenLogprobs& logprobs : event.prompt_logprobs)
    num_unwritten_ += entries(logprobs) * prepared_->request.n;
}

bool Generation::take(TokenEvent event) {
  Output& output = answers_[static_cast<size_t>(event.output)];
  Answer& answer = output.answer;
  if (answer.finished()) return false;
  output.dirty = true;
  count(event);
  if (prepared_->fields.return_token_ids && event.id) output.ids.push_back(*event.id);
  const bool is_first_choice = event.output % prepared_->request.n == 0;
  const int64_t cached = answer.num_cached_tokens(), reasoning = answer.num_reasoning_tokens();
  const int64_t tokens = answer.num_tokens();
  const bool goes_on = answer.take(std::move(event), output.deltas);
  usage_.completion_tokens += answer.num_tokens() - tokens;
  usage_.reasoning_tokens += answer.num_reasoning_tokens() - reasoning;
  if (is_first_choice) usage_.cached_tokens += answer.num_cached_tokens() - cached;
  if (!goes_on) ++num_finished_;
  if (prepared_->request.logprobs) {
    std::vector<TokenLogprobs> fresh = answer.take_logprobs();
    std::move(fresh.begin(), fresh.end(), std::back_inserter(output.logprobs));
  }
  if (!streams()) merge_neighbours(output.deltas);
  return goes_on;
}

std::optional<Error> Generation::failure() const {
  for (const Output& output : answers_) {
    const auto failure = output.answer.failure();
    if (!failure) continue;
    switch (*failure) {
      case FinishReason::kDeadline:
        return Error{Errc::kBusy, "the request waited too long in the queue: try again later"};
      case FinishReason::kError:
        return Error{Errc::kCorrupt, output.answer.error()};
      default:
        return Error{Errc::kStopped, "the server is stopping"};
    }
  }
  return std::nullopt;
}

bool Generation::append_chunks(std::string& out, size_t max_bytes) {
  for (size_t i = 0; i < answers_.size(); ++i) {
    if (!answers_[i].dirty) continue;
    if (out.size() >= max_bytes) return true;
    append_part(out, static_cast<int>(i));
  }
  num_unwritten_ = 0;
  if (finished() && !std::exchange(end_sent_, true)) prepared_->writer->append_end(out, head_, usage_);
  return false;
}

void Generation::append_part(std::string& out, int index) {
  Output& output = answers_[static_cast<size_t>(index)];
  output.dirty = false;
  merge_neighbours(output.deltas);
  const bool ends = output.answer.finished() && !output.ended;
  StreamPart part{.index = index,
                  .first = !std::exchange(output.started, true),
                  .deltas = output.deltas,
                  .logprobs = output.logprobs,
                  .wants_logprobs = prepared_->request.logprobs.has_value()};
  if (ends) {
    output.ended = true;
    part.finish_reason = output.answer.finish_reason();
    part.stop_reason = {output.answer.stop_string(), output.answer.stop_id()};
  }
  const size_t n = static_cast<size_t>(prepared_->request.n), prompt = static_cast<size_t>(index) / n;
  if (prepared_->fields.return_token_ids) {
    part.token_ids = output.ids;
    if (part.first) part.prompt_ids = prepared_->request.prompts[prompt];
  }
  if (prepared_->echo && part.first) {
    part.echoed_text = prepared_->prompt_texts[prompt];
    part.echoed_ids = prepared_->request.prompts[prompt];
    // The engine's first event of a prompt is that of its first choice.
    part.prompt_logprobs = answers_[prompt * n].answer.prompt_logprobs();
  }
  prepared_->writer->append_part(out, head_, part, usage_);
  output.deltas.clear();
  output.logprobs.clear();
  output.ids.clear();
}

void Generation::append_failure(std::string& out, const ApiError& error) {
  prepared_->writer->append_failure(out, head_, error);
}

void Generation::append_keep_alive(std::string& out) {
  prepared_->writer->append_keep_alive(out, head_, usage_);
}

std::string Generation::response(size_t bytes) {
  if (!pieces_) {
    make_choices();
    pieces_ = prepared_->writer->whole(head_, choices_, usage_);
  }
  return pieces_->next(bytes);
}

void Generation::make_choices() {
  const Request& request = prepared_->request;
  choices_.reserve(answers_.size());
  for (size_t i = 0; i < answers_.size(); ++i) {
    Output& output = answers_[i];
    Choice choice{.deltas = std::move(output.deltas),
                  .finish_reason = output.answer.finish_reason(),
                  .stop_reason = {output.answer.stop_string(), output.answer.stop_id()},
                  .wants_logprobs = request.logprobs.has_value(),
                  .logprobs = std::move(output.logprobs)};
    // A prompt's log-probabilities come with its first choice and belong to all of them.
    const size_t prompt = i / static_cast<size_t>(request.n);
    choice.wants_prompt_logprobs = prepared_->fields.wants_prompt_logprobs;
    choice.prompt_logprobs = answers_[prompt * static_cast<size_t>(request.n)].answer.prompt_logprobs();
    if (prepared_->fields.return_token_ids) {
      choice.token_ids = output.ids;
      choice.prompt_ids = request.prompts[prompt];
    }
    if (prepared_->echo) {
      choice.echoed_text = prepared_->prompt_texts[prompt];
      choice.echoed_ids = request.prompts[prompt];
    }
    choices_.push_back(std::move(choice));
  }
}

std::vector<std::string> Generation::finish_reasons() const {
  std::vector<std::string> out;
  for (const Output& output : answers_)
    out.emplace_back(output.answer.failure() ? name_of(*output.answer.failure())
                                             : output.answer.finish_reason());
  return out;
}

}  // namespace sparrow::openai
