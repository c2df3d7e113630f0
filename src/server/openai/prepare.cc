// SPDX-License-Identifier: Apache-2.0
#include "server/openai/prepare.h"

#include <algorithm>
#include <array>
#include <iterator>

#include "base/json/json_writer.h"
#include "base/utf8.h"
#include "server/api/thinking_budget.h"
#include "server/fields/bad_words.h"
#include "server/media/media_input.h"
#include "server/openai/chat_request.h"
#include "server/openai/completion_request.h"
#include "server/openai/response.h"

namespace sparrow::openai {
namespace {

// Without the tag's token the model cannot begin a call.
constexpr std::string_view kCallToken = "<tool_call>";

// The salt of everything that is cached of a request.
void set_salt(Prepared& prepared, std::string_view tenant) {
  prepared.request.tenant = tenant;
  prepared.request.salt = tenant;
  if (prepared.fields.cache_salt) prepared.request.salt += '/' + *prepared.fields.cache_salt;
}

// The words by which clients know that they have to shorten the conversation: those of OpenAI's look for
// these, and Anthropic's for "prompt is too long".
constexpr std::string_view kTooLongWords = "This model's maximum context length is ";

Error too_long(const Defaults& defaults, std::string_view reason, const char* field) {
  return {Errc::kInvalidArgument,
          strf("{}{} tokens. However, {}: the prompt is too long.", kTooLongWords, defaults.max_model_tokens,
               reason),
          field};
}

// The last ids of a prompt, where the request wants no more.
void truncate_prompt(std::vector<int32_t>& ids, const GenerationFields& fields, const Defaults& defaults) {
  if (!fields.truncate_prompt_tokens) return;
  const int64_t room = std::max<int64_t>(defaults.max_model_tokens - fields.max_tokens.value_or(1), 1);
  const int64_t wanted = *fields.truncate_prompt_tokens;
  const auto kept = static_cast<ptrdiff_t>(wanted < 0 ? room : wanted);
  if (std::ssize(ids) > kept) ids.erase(ids.begin(), ids.end() - kept);
}

// The ids of a prompt. One that is too long costs no more than one that fits: bytes tell before ids do, and
// who has found one id too many looks for no more.
Result<std::vector<int32_t>> encode_prompt(const PromptText& prompt, const ServedModel& model,
                                           const Prepared& prepared, const char* field) {
  const std::string& salt = prepared.request.salt;
  if (prepared.api.count || prepared.fields.truncate_prompt_tokens) {
    std::vector<int32_t> ids = SPARROW_TRY(model.encode_cache.encode(prompt, salt));
    truncate_prompt(ids, prepared.fields, model.defaults);
    return ids;
  }
  const auto limit = static_cast<size_t>(model.defaults.max_model_tokens);
  const size_t bytes = prompt.text.size();
  if (const size_t least = model.tokenizer.min_ids(bytes); least > limit)
    return too_long(model.defaults,
                    strf("your {} resulted in {} bytes, which are at least {} tokens", field, bytes, least),
                    field);
  std::vector<int32_t> ids = SPARROW_TRY(model.encode_cache.encode(prompt, salt, limit));
  if (ids.size() > limit)
    return too_long(model.defaults, strf("your {} resulted in more than {} tokens", field, limit), field);
  return ids;
}

// Bytes of one log-probability, on average, in the lists of an echoed prompt, and in prompt_logprobs; of an
// id.
constexpr int64_t kTextEntryBytes = 30, kPromptEntryBytes = 70, kIdBytes = 7;

int64_t entries(std::optional<int> logprobs) {
  return logprobs ? 1 + int64_t{*logprobs} : 0;
}

// What of the answer is there without a token of it: echoed prompts and their log-probabilities.
int64_t prompt_bytes(const Prepared& prepared) {
  const Request& request = prepared.request;
  int64_t bytes = 0;
  for (size_t i = 0; i < request.prompts.size(); ++i) {
    const auto tokens = static_cast<int64_t>(request.prompts[i].size());
    if (prepared.echo)
      bytes +=
          request.n * (static_cast<int64_t>(prepared.prompt_texts[i].size()) +
                       (request.logprobs ? tokens * entries(request.prompt_logprobs) * kTextEntryBytes : 0));
    const int64_t times = prepared.api.prompt_logprobs_once ? 1 : request.n;
    if (prepared.fields.wants_prompt_logprobs)
      bytes += times * tokens * entries(request.prompt_logprobs) * kPromptEntryBytes;
    if (prepared.fields.return_token_ids) bytes += times * tokens * kIdBytes;
  }
  return bytes;
}

// What makes an answer large, for the message that refuses it.
Error too_large(const Prepared& prepared, int64_t bytes, const Defaults& defaults) {
  const Request& request = prepared.request;
  std::string reasons = strf("{} prompt tokens", prepared.num_prompt_tokens());
  const char* field = "n";
  if (prepared.fields.max_tokens && request.logprobs && !prepared.fields.stream)
    reasons += strf(", {} {}", prepared.api.max_tokens_field, *prepared.fields.max_tokens);
  reasons += strf(", n {}", request.n);
  if (prepared.echo) reasons += ", echo", field = "echo";
  if (prepared.fields.wants_prompt_logprobs)
    reasons += strf(", prompt_logprobs {}", *request.prompt_logprobs), field = "prompt_logprobs";
  if (request.logprobs) {
    field = prepared.api.logprobs_field;
    reasons += strf(", {} {}", field, *request.logprobs);
  }
  return {Errc::kInvalidArgument,
          strf("the answer would have about {} MB, and this server writes at most {} MB: {}", bytes >> 20,
               defaults.max_answer_bytes >> 20, reasons),
          field};
}

// Bounds the part of an answer that costs next to nothing to ask for. Whoever leaves max_tokens to the server
// gets what fits.
Status bound_answer(Prepared& prepared, const Defaults& defaults) {
  Request& request = prepared.request;
  const int64_t fixed = prompt_bytes(prepared);
  // A stream holds only what its reader has not taken.
  const int64_t each = prepared.fields.stream
                           ? 0
                           : request.num_outputs() * entries(request.logprobs) * prepared.api.logprob_bytes;
  if (!prepared.fields.max_tokens && each > 0)
    request.max_tokens =
        std::clamp<int64_t>((defaults.max_answer_bytes - fixed) / each, 1, request.max_tokens);
  prepared.answer_bytes = fixed + each * request.max_tokens;
  if (prepared.answer_bytes <= defaults.max_answer_bytes) return Ok{};
  return too_large(prepared, prepared.answer_bytes, defaults);
}

// What is left of the context, where the request does not say.
Status set_max_tokens(Prepared& prepared, const Defaults& defaults) {
  int64_t longest = 0;
  for (const std::vector<int32_t>& prompt : prepared.request.prompts)
    longest = std::max(longest, static_cast<int64_t>(prompt.size()));
  const int64_t room = defaults.max_model_tokens - longest;
  const char* const field = prepared.api.prompt_field;
  if (room < 0 || (room == 0 && prepared.fields.max_tokens != 0))
    return too_long(defaults,
                    strf("your {} resulted in {} tokens, and the answer counts too", field, longest), field);
  if (const auto asked = prepared.fields.max_tokens; asked && *asked > room)
    return too_long(defaults,
                    strf("you requested {} tokens ({} in the {}, {} in the completion)", longest + *asked,
                         longest, field, *asked),
                    prepared.api.max_tokens_field);
  prepared.request.max_tokens = prepared.fields.max_tokens.value_or(room);
  SPARROW_TRY(bound_answer(prepared, defaults));
  if (prepared.request.min_tokens > prepared.request.max_tokens)
    return Error{Errc::kInvalidArgument,
                 strf("min_tokens {} is more than {} {}", prepared.request.min_tokens,
                      prepared.api.max_tokens_field, prepared.request.max_tokens),
                 "min_tokens"};
  return Ok{};
}

// Holds the answer to the form that was asked for, or to calls that fit their tools.
Status hold_to(const AnswerRule& rule, FormStart start, const Asker& asker, Prepared& prepared) {
  const std::string field = rule.form ? rule.form->field : "tools";
  if (!asker.model.constraints)
    return Error{Errc::kUnsupported, strf("{} is not supported here", field), field};
  if (!prepared.request.sampling.allowed_ids.empty())
    return Error{Errc::kInvalidArgument,
                 strf("allowed_token_ids cannot be combined with {}",
                      rule.form ? field : "a tool_choice or strict tools that calls are held to"),
                 "allowed_token_ids"};
  prepared.request.constraint = SPARROW_TRY(
      asker.model.constraints->make(rule, start, asker.tenant, prepared.fields.bad_words.empty()));
  return Ok{};
}

Status constrain(const ChatRequest& chat, const ChatPrompt& prompt, const Asker& asker, Prepared& prepared) {
  AnswerRule rule{.form = prepared.fields.form, .several = !prepared.answer.single_call};
  if (chat.may_call()) rule.tools = callable_tools(chat);
  const bool strict = std::ranges::any_of(rule.tools, &CallableTool::strict);
  if (chat.forces_call()) {
    rule.form.reset();
  } else if (!rule.form && !strict) {
    return Ok{};
  }
  rule.any_text = !rule.form && !chat.forces_call();
  const FormStart start = prompt.starts_in_reasoning ? FormStart::kThinking
                          : prompt.may_think         ? FormStart::kOpen
                                                     : FormStart::kAnswer;
  // Then no tag in a text can be meant as one.
  if (rule.form && start == FormStart::kAnswer) prepared.answer.parser->parse_reasoning = false;
  return hold_to(rule, start, asker, prepared);
}

Status limit_thinking(const ChatRequest& chat, const ChatPrompt& prompt, const ServedModel& model,
                      Prepared& prepared) {
  const auto open = model.tokenizer.id_of(kThinkOpen), close = model.tokenizer.id_of(kThinkClose);
  if (!open || !close)
    return Error{Errc::kUnsupported, "this model has no tokens that begin and end a thought",
                 "thinking_token_budget"};
  if (!prepared.request.sampling.allowed_ids.empty())
    return Error{Errc::kInvalidArgument, "allowed_token_ids cannot be combined with thinking_token_budget",
                 "allowed_token_ids"};
  auto& constraint = prepared.request.constraint;
  constraint =
      std::make_shared<const ThinkingBudget>(ThinkingIds{.open = *open, .close = *close},
                                             *chat.thinking_budget, prompt.starts_in_reasoning, constraint);
  return Ok{};
}

// The prompt of messages: its media in their places, its ids.
Status finish_prompt(Prepared& prepared, std::vector<LoadedMedium> media, const ServedModel& model) {
  const char* const field = prepared.api.prompt_field;
  PromptText text = std::move(*prepared.text);
  prepared.text.reset();
  if (!media.empty()) {
    if (prepared.fields.truncate_prompt_tokens)
      return Error{Errc::kInvalidArgument, "truncate_prompt_tokens cannot be combined with images or videos",
                   "truncate_prompt_tokens"};
    Result<PromptText> expanded = expand_media(text, texts_of(media));
    if (!expanded.ok()) return Error{expanded.error().code, expanded.error().message, field};
    text = std::move(expanded).value();
  }
  Request& request = prepared.request;
  request.prompts.push_back(SPARROW_TRY(encode_prompt(text, model, prepared, field)));
  if (media.empty() || prepared.api.count) return Ok{};
  for (LoadedMedium& medium : media)
    std::ranges::move(medium.memory, std::back_inserter(prepared.media_memory));
  request.media = to_request_media(std::move(media));
  return place(request.media, request.prompts[0], *model.media.vision);
}

UsageOptions usage_of(const GenerationFields& fields) {
  return {.included = fields.include_usage, .continuous = fields.continuous_usage};
}

Status read_chat(JsonDocument body, const Asker& asker, Prepared& prepared) {
  ChatRequest chat = SPARROW_TRY(read_chat_request(body.root(), asker.model.defaults));
  prepared.media = SPARROW_TRY(read_media_parts(chat.messages, body.root().find("mm_processor_kwargs"),
                                                asker.model.media_settings(), asker.model.media.refusal));
  prepared.writer = make_chat_writer(usage_of(chat.fields));
  // It may be many times the size of the body, and the answer may take minutes.
  const bool is_kept = chat.tools.has_value();
  SPARROW_TRY(prepare_conversation(std::move(chat), asker, prepared));
  if (is_kept) prepared.document = std::move(body);
  return Ok{};
}

Status read_completion(JsonDocument body, const Asker& asker, Prepared& prepared) {
  const ServedModel& model = asker.model;
  CompletionRequest completion = SPARROW_TRY(read_completion_request(body.root(), model.defaults));
  prepared.writer = make_completion_writer(usage_of(completion.fields));
  SPARROW_TRY(check_model(completion.fields.model, model));
  prepared.fields = std::move(completion.fields);
  prepared.request = std::move(prepared.fields.request);
  set_salt(prepared, asker.tenant);
  prepared.echo = completion.echo;
  for (auto& prompt : completion.prompts) {
    std::vector<int32_t> ids;
    if (auto* text = std::get_if<std::string>(&prompt)) {
      ids = SPARROW_TRY(encode_prompt(PromptText::whole(*text), model, prepared, "prompt"));
      if (ids.empty())
        return Error{Errc::kInvalidArgument, "prompt must hold at least one token, got \"\"", "prompt"};
      if (prepared.echo && !prepared.fields.truncate_prompt_tokens)
        prepared.prompt_texts.push_back(std::move(*text));
    } else {
      ids = std::move(std::get<std::vector<int32_t>>(prompt));
      truncate_prompt(ids, prepared.fields, model.defaults);
    }
    if (prepared.echo && prepared.prompt_texts.size() == prepared.request.prompts.size())
      prepared.prompt_texts.push_back(SPARROW_TRY(model.tokenizer.decode(ids)));
    prepared.request.prompts.push_back(std::move(ids));
  }
  const AnswerRule rule{.form = prepared.fields.form};
  return rule.form ? hold_to(rule, FormStart::kAnswer, asker, prepared) : Ok{};
}

}  // namespace

const Api kChatApi{.read = read_chat,
                   .prompt_field = "messages",
                   .max_tokens_field = "max_tokens",
                   .logprobs_field = "top_logprobs",
                   .logprob_bytes = 110,
                   .prompt_logprobs_once = true};
const Api kCompletionApi{.read = read_completion,
                         .prompt_field = "prompt",
                         .max_tokens_field = "max_tokens",
                         .logprobs_field = "logprobs",
                         .logprob_bytes = 30,
                         .prompt_logprobs_once = false};

int64_t Prepared::num_prompt_tokens() const {
  int64_t sum = 0;
  for (const std::vector<int32_t>& prompt : request.prompts) sum += static_cast<int64_t>(prompt.size());
  return sum;
}

int64_t Prepared::num_media_tokens() const {
  int64_t sum = 0;
  for (const RequestMedium& medium : request.media)
    for (const PositionRun& run : medium.runs) sum += run.size();
  return sum;
}

bool is_too_long(const Error& error) {
  return error.message.starts_with(kTooLongWords);
}

Status check_model(const std::optional<std::string>& name, const ServedModel& model) {
  if (!name || std::find(model.names.begin(), model.names.end(), *name) != model.names.end()) return Ok{};
  return Error{Errc::kNotFound,
               strf("the model {} does not exist; this server has {}", json_quoted(excerpt(*name)),
                    json_quoted(model.names[0])),
               "model"};
}

Status prepare_conversation(ChatRequest chat, const Asker& asker, Prepared& prepared) {
  const ServedModel& model = asker.model;
  SPARROW_TRY(check_model(chat.fields.model, model));
  if (!model.chat_template)
    return Error{Errc::kUnsupported, "this model has no chat template: use /v1/completions"};
  ChatPrompt prompt = SPARROW_TRY(render_prompt(chat, *model.chat_template));
  if (chat.drops_name) prepared.warning = "message-name-not-rendered";
  prepared.fields = std::move(chat.fields);
  prepared.request = std::move(prepared.fields.request);
  set_salt(prepared, asker.tenant);
  prepared.text = std::move(prompt.text);
  prepared.tools = std::move(chat.tool_set);

  // Where no call can be meant, what looks like one is content.
  prepared.answer.parser = OutputParserOptions{.parse_reasoning = model.parse_reasoning,
                                               .starts_in_reasoning = prompt.starts_in_reasoning,
                                               .parse_tools = model.parse_tools && chat.may_call(),
                                               .tools = &prepared.tools};
  prepared.answer.single_call =
      !chat.parallel_tool_calls || chat.tool_choice == ChatRequest::ToolChoice::kNamed;
  if (chat.tool_choice == ChatRequest::ToolChoice::kNone)
    if (const auto id = model.tokenizer.id_of(kCallToken))
      prepared.request.sampling.banned_ids.push_back(*id);
  SPARROW_TRY(constrain(chat, prompt, asker, prepared));
  return chat.thinking_budget && prompt.may_think ? limit_thinking(chat, prompt, model, prepared) : Ok{};
}

Result<std::unique_ptr<Prepared>> prepare(const Api& api, std::string_view body, const ServedModel& model,
                                          std::string_view tenant, ResponseStore* store) {
  JsonDocument document = SPARROW_TRY(JsonDocument::parse(body, "the request's body", kBodyLimits));
  auto prepared = std::unique_ptr<Prepared>(new Prepared{.api = api});
  SPARROW_TRY(api.read(std::move(document), {.model = model, .tenant = tenant, .store = store}, *prepared));
  if (prepared->media.empty()) SPARROW_TRY(finish(*prepared, {}, model));
  return prepared;
}

Status finish(Prepared& prepared, std::vector<LoadedMedium> media, const ServedModel& model) {
  if (prepared.text) SPARROW_TRY(finish_prompt(prepared, std::move(media), model));
  if (prepared.api.count) {
    prepared.counted = SPARROW_TRY(prepared.api.count(prepared, model));
    return Ok{};
  }
  prepared.answer.stop = prepared.fields.stop;
  prepared.answer.include_stop = prepared.fields.include_stop_in_output;
  prepared.answer.stop_ids = prepared.request.stop_ids;
  SPARROW_TRY(set_max_tokens(prepared, model.defaults));
  return ban_words(prepared.fields.bad_words, model.tokenizer, model.defaults.vocab_size, prepared.request);
}

}  // namespace sparrow::openai
