// SPDX-License-Identifier: Apache-2.0
// The reader: body -> chat.
#include <algorithm>
#include <array>

#include "base/strf.h"
#include "server/fields/field.h"
#include "server/openai/chat_request.h"
#include "server/responses/items.h"
#include "server/responses/responses.h"
#include "server/responses/tools.h"

namespace sparrow::responses {
namespace {

// Members that are translated here. All others are the chat's, but for those that this API calls otherwise.
constexpr std::array<std::string_view, 25> kOwnFields = {
    "input",
    "instructions",
    "tools",
    "tool_choice",
    "max_output_tokens",
    "max_tool_calls",
    "reasoning",
    "text",
    "include",
    "truncation",
    "store",
    "background",
    "previous_response_id",
    "conversation",
    "prompt",
    "top_logprobs",
    "context_management",
    "prompt_cache_options",
    "client_metadata",
    "moderation",
    "access_programs",
    "image",
    "service_tier",
    "stream_options",
    "metadata",
};

constexpr std::array kOtherNames = {
    OtherName{"messages", "input"},
    OtherName{"max_tokens", "max_output_tokens"},
    OtherName{"max_completion_tokens", "max_output_tokens"},
    OtherName{"response_format", "text.format"},
    OtherName{"reasoning_effort", "reasoning.effort"},
    OtherName{"functions", "tools"},
    OtherName{"function_call", "tool_choice"},
    OtherName{"n", "one request for each answer"},
    OtherName{"logprobs", "/v1/chat/completions"},
    OtherName{"prompt_logprobs", "/v1/chat/completions"},
    OtherName{"continue_final_message", "/v1/chat/completions"},
    OtherName{"add_generation_prompt", "/v1/chat/completions"},
};

// What is not here, whatever its value.
Status check_refused(const Json& body) {
  struct Refused {
    std::string_view name, reason;
  };
  static constexpr std::array kRefused = {
      Refused{"conversation", "is not supported: use previous_response_id, or send the items again"},
      Refused{"prompt", "is not supported: there are no stored prompts"},
      Refused{"context_management", "is not supported: the client decides what stays in the context"},
      Refused{"moderation", "is not supported"},
      Refused{"access_programs", "is not supported"},
      Refused{"image", "is not supported: answers are text"},
  };
  for (const Refused& refused : kRefused)
    if (const auto field = body.find(refused.name); field && !is_nothing(*field))
      return field->error(refused.reason);
  if (const auto truncation = body.find("truncation"); truncation && truncation->string_view() != "disabled")
    return truncation->error("must be disabled: what does not fit is refused, and never left out");
  if (const auto count = body.find("top_logprobs"))
    if (SPARROW_TRY(count->as_number()) != 0)
      return count->error("must be 0: log-probabilities are in answers of /v1/chat/completions");
  return Ok{};
}

// Fields that change nothing about the answer, but must be what they should be.
Status check_neutral(const Json& body) {
  if (const auto count = body.find("max_tool_calls")) SPARROW_TRY(count->as_int(0, int64_t{1} << 31));
  for (const char* name : {"prompt_cache_options", "client_metadata", "metadata"})
    if (const auto field = body.find(name)) SPARROW_TRY(field->expect_object());
  static constexpr std::array<std::string_view, 4> kTiers = {"auto", "default", "flex", "priority"};
  if (const auto tier = body.find("service_tier");
      tier && std::find(kTiers.begin(), kTiers.end(), tier->string_view()) == kTiers.end())
    return tier->error("must be auto, default, flex or priority, which are all the same here");
  if (const auto options = body.find("stream_options")) {
    static constexpr std::array<std::string_view, 2> kOptions = {"include_obfuscation",
                                                                 "reasoning_summary_delivery"};
    SPARROW_TRY(check_members(*options, kOptions, "stream_options"));
    SPARROW_TRY(options->bool_or("include_obfuscation", false));
  }
  return Ok{};
}

// What an answer may be asked to hold beyond the usual. Most of it is of tools that are not here, so that
// there is never any.
Result<bool> wants_packed_thoughts(const Json& body) {
  const auto include = body.find("include");
  if (!include) return false;
  SPARROW_TRY(include->expect_array());
  bool packed = false;
  for (size_t i = 0; i < include->size(); ++i) {
    const std::string value = SPARROW_TRY(include->element(i).as_string());
    if (value == "message.output_text.logprobs")
      return include->element(i).error(
          "is not supported: log-probabilities are in answers of /v1/chat/completions");
    packed |= value == "reasoning.encrypted_content";
  }
  return packed;
}

Status translate_reasoning(const Json& reasoning, ChatBody& chat) {
  static constexpr std::array<std::string_view, 5> kFields = {"effort", "summary", "generate_summary",
                                                              "context", "mode"};
  SPARROW_TRY(check_members(reasoning, kFields, "reasoning"));
  for (const char* name : {"summary", "generate_summary"})  // the thought itself is there
    if (const auto field = reasoning.find(name)) SPARROW_TRY(field->as_string());
  if (const auto effort = reasoning.find("effort"))
    write_json(*effort, chat.member("reasoning_effort", effort->path()));
  return Ok{};
}

Status translate_format(const Json& text, ChatBody& chat) {
  static constexpr std::array<std::string_view, 2> kFields = {"format", "verbosity"};
  static constexpr std::array<std::string_view, 3> kVerbosities = {"low", "medium", "high"};
  SPARROW_TRY(check_members(text, kFields, "text"));
  if (const auto verbosity = text.find("verbosity");
      verbosity &&
      std::find(kVerbosities.begin(), kVerbosities.end(), verbosity->string_view()) == kVerbosities.end())
    return verbosity->error("must be low, medium or high, which are all the same here");
  const auto format = text.find("format");
  if (!format) return Ok{};
  const Json type = SPARROW_TRY(format->at("type"));
  JsonWriter& json = chat.member("response_format", format->path()).begin_object();
  write_json(type, json.key("type"));
  if (type.string_view() == "json_schema") {
    json.key("json_schema").begin_object();
    chat.name("response_format.json_schema", format->path());
    for (size_t i = 0; i < format->size(); ++i)
      if (format->key(i) != "type") write_json(format->member(i), json.key(format->key(i)));
    json.end_object();
  } else {
    static constexpr std::array<std::string_view, 1> kType = {"type"};
    SPARROW_TRY(check_members(*format, kType, "this format"));
  }
  json.end_object();
  return Ok{};
}

// The items of the response that this one goes on from.
Status add_previous(const Json& id, const openai::Asker& asker, ItemReader& items) {
  const std::string name = SPARROW_TRY(id.as_string());
  if (!asker.store || !asker.store->enabled())
    return id.error("is not supported: this server stores no responses (--response-memory 0)");
  const auto previous = asker.store->find(std::string(asker.tenant), name);
  if (!previous) return id.error("must be the id of a response that is stored");
  if (previous->cancel) return id.error("must be the id of a response that has ended");
  SPARROW_TRY(items.add_stored(previous->input));
  return items.add_stored(previous->output);
}

Status translate_messages(const Json& body, const openai::Asker& asker, ItemReader& items, ChatBody& chat) {
  if (const auto instructions = body.find("instructions")) {
    items.messages().push_back(
        {.role = "system", .origin = "instructions", .content_origin = "instructions"});
    items.messages().back().add_text(SPARROW_TRY(instructions->as_string()));
  }
  if (const auto id = body.find("previous_response_id")) SPARROW_TRY(add_previous(*id, asker, items));
  const Json input = SPARROW_TRY(body.at("input"));
  SPARROW_TRY(items.add_input(input));
  if (input.is_array() && input.size() == 0) return input.error("must hold at least one item");
  chat.add_messages(items.messages());
  return Ok{};
}

Status translate(const Json& body, const openai::Asker& asker, ItemReader& items, ToolTable& tools,
                 ChatBody& chat) {
  SPARROW_TRY(chat.copy_rest(body, kOwnFields, kOtherNames));
  SPARROW_TRY(check_refused(body));
  SPARROW_TRY(check_neutral(body));
  SPARROW_TRY(translate_messages(body, asker, items, chat));
  if (const auto list = body.find("tools")) SPARROW_TRY(tools.translate(*list, chat));
  if (const auto choice = body.find("tool_choice")) SPARROW_TRY(translate_tool_choice(*choice, chat));
  if (const auto reasoning = body.find("reasoning")) SPARROW_TRY(translate_reasoning(*reasoning, chat));
  if (const auto text = body.find("text")) SPARROW_TRY(translate_format(*text, chat));
  if (const auto tokens = body.find("max_output_tokens"))
    write_json(*tokens, chat.member("max_completion_tokens", tokens->path()));
  return Ok{};
}

// What the response says of its request, with what stood for what was left out.
std::vector<std::pair<std::string, std::string>> echoes_of(const Json& body,
                                                           const openai::Prepared& prepared) {
  struct Echo {
    const char *name, *otherwise;
  };
  static constexpr std::array kEchoes = {
      Echo{"background", "false"},
      Echo{"instructions", "null"},
      Echo{"max_output_tokens", "null"},
      Echo{"max_tool_calls", "null"},
      Echo{"metadata", "{}"},
      Echo{"parallel_tool_calls", "true"},
      Echo{"previous_response_id", "null"},
      Echo{"prompt_cache_key", "null"},
      Echo{"reasoning", R"({"effort":null,"summary":null})"},
      Echo{"safety_identifier", "null"},
      Echo{"text", R"({"format":{"type":"text"}})"},
      Echo{"tool_choice", R"("auto")"},
      Echo{"tools", "[]"},
      Echo{"user", "null"},
  };
  std::vector<std::pair<std::string, std::string>> out;
  for (const Echo& echo : kEchoes) {
    const auto field = body.find(echo.name);
    out.emplace_back(echo.name, field ? json_text(*field) : echo.otherwise);
  }
  const SamplingParams& sampling = prepared.request.sampling;
  for (const auto& [name, value] :
       {std::pair("temperature", sampling.temperature), std::pair("top_p", sampling.top_p)})
    out.emplace_back(name, JsonWriter().number(value).take());
  out.emplace_back("service_tier", R"("default")");
  out.emplace_back("top_logprobs", "0");
  out.emplace_back("truncation", R"("disabled")");
  return out;
}

Status check_can_be_stored(const openai::Asker& asker, const StoredItems& input) {
  if (!asker.store || !asker.store->enabled())
    return Error{Errc::kUnsupported, "this server stores no responses (--response-memory 0)"};
  return asker.store->check_size(StoredResponse{.input = input}.bytes());
}

// Whether the response is stored: unless the client says no, or it cannot be.
Result<bool> is_stored(const Json& body, const Status& can_be) {
  const bool wanted = SPARROW_TRY(body.bool_or("store", can_be.ok()));
  if (wanted && !can_be.ok()) return body.find("store")->error("must be false: " + can_be.error().message);
  return wanted;
}

Status check_background(const Json& body, bool is_stored, const Status& can_be, openai::Prepared& prepared) {
  prepared.in_background = SPARROW_TRY(body.bool_or("background", false));
  if (!prepared.in_background) return Ok{};
  const Json background = SPARROW_TRY(body.at("background"));
  if (!can_be.ok()) return background.error("must be false: " + can_be.error().message);
  if (!is_stored) return background.error("needs store: true, because the client comes back for the answer");
  if (SPARROW_TRY(body.bool_or("stream", false)))
    return background.error("must be false with stream: who listens does not come back");
  return Ok{};
}

Status read(JsonDocument body, const openai::Asker& asker, openai::Prepared& prepared) {
  const Json root = body.root();
  SPARROW_TRY(root.expect_object());
  ChatBody chat;
  ItemReader items(asker);
  ToolTable tools;
  SPARROW_TRY(translate(root, asker, items, tools, chat));
  const Status can_be_stored = check_can_be_stored(asker, items.items());
  const bool stores = SPARROW_TRY(is_stored(root, can_be_stored));
  SPARROW_TRY(check_background(root, stores, can_be_stored, prepared));
  const bool packs_thoughts = SPARROW_TRY(wants_packed_thoughts(root));
  JsonDocument document =
      SPARROW_TRY(JsonDocument::parse(chat.take(), "the request's body", openai::kTranslatedLimits));
  if (const Status status = openai::kChatApi.read(std::move(document), asker, prepared); !status.ok())
    return chat.translated(status.error());
  for (MediaSource& source : prepared.media)
    for (std::string& field : source.fields) field = chat.origin_of(field);
  if (tools.has_left_out() && !prepared.warning) prepared.warning = "hosted-tools-left-out";
  ResponseOptions options{
      .echoes = echoes_of(root, prepared), .packs_thoughts = packs_thoughts, .tools = std::move(tools)};
  if (stores) {
    options.store = asker.store;
    options.key = asker.tenant;
    options.input = std::move(items.items());
  }
  prepared.writer = make_writer(std::move(options));
  return Ok{};
}

Result<std::string> write_count(const openai::Prepared& prepared, const openai::ServedModel&) {
  JsonWriter json;
  json.begin_object().key("object").string("response.input_tokens");
  return json.key("input_tokens").integer(prepared.num_prompt_tokens()).end_object().take();
}

}  // namespace

const openai::Api kResponsesApi{.read = read,
                                .prompt_field = "input",
                                .max_tokens_field = "max_output_tokens",
                                .logprobs_field = "top_logprobs",
                                .logprob_bytes = 110,
                                .prompt_logprobs_once = true};

const openai::Api kCountApi{.read = read,
                            .prompt_field = "input",
                            .max_tokens_field = "max_output_tokens",
                            .logprobs_field = "top_logprobs",
                            .logprob_bytes = 0,
                            .prompt_logprobs_once = true,
                            .count = write_count};

}  // namespace sparrow::responses
