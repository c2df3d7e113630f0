// SPDX-License-Identifier: Apache-2.0
// /tokenize and /detokenize: text and ids, without the engine.
#include "base/json/json_writer.h"
#include "server/openai/chat_request.h"
#include "server/openai/prepare.h"

namespace sparrow::openai {
namespace {

using Type = Field::Type;
constexpr Field kTokenizeFields[] = {
    {"model", Type::kString},
    {"prompt", Type::kString},
    with_schema("messages", Type::kList, kMessagesSchema),
    with_schema("tools", Type::kList, kToolsSchema),
    {"chat_template_kwargs", Type::kObject},
    with_schema("mm_processor_kwargs", Type::kObject, kMediaOptionsSchema),
    {"add_generation_prompt", Type::kBool},
    {"continue_final_message", Type::kBool},
    {"add_special_tokens", Type::kBool},  // the tokenizer adds none in either case
    {"return_token_strs", Type::kBool},
};
constexpr Field kDetokenizeFields[] = {{"model", Type::kString}, {"tokens", Type::kTokenIds}};

// The text that /tokenize is about: a prompt, or messages as a chat would render them.
Result<PromptText> text_to_tokenize(const Json& body, const ServedModel& model) {
  if (const auto prompt = body.find("prompt")) {
    for (const char* name : {"messages", "tools"})
      if (const auto field = body.find(name)) return field->error("does not go with prompt");
    return PromptText::whole(SPARROW_TRY(prompt->as_string()));
  }
  if (!body.find("messages"))
    return Error{Errc::kInvalidArgument, "prompt is missing; messages would do as well", "prompt"};
  if (!model.chat_template) return Error{Errc::kUnsupported, "this model has no chat template", "messages"};
  ChatInput input{.messages = SPARROW_TRY(body.at("messages"))};
  SPARROW_TRY(check_messages(input.messages));
  input.tools = body.find("tools");
  if (input.tools) SPARROW_TRY(check_tools(*input.tools));
  if (const auto kwargs = body.find("chat_template_kwargs"))
    input.options = SPARROW_TRY(parse_template_options(*kwargs));
  input.continue_final_message = SPARROW_TRY(body.bool_or("continue_final_message", false));
  input.add_generation_prompt =
      SPARROW_TRY(body.bool_or("add_generation_prompt", !input.continue_final_message));
  return model.chat_template->render(input);
}

Status read_tokenize(JsonDocument body, const Asker& asker, Prepared& prepared) {
  const ServedModel& model = asker.model;
  const Json root = body.root();
  SPARROW_TRY(check_fields(root, {kTokenizeFields}, "this request"));
  if (const auto name = root.find("model")) SPARROW_TRY(check_model(SPARROW_TRY(name->as_string()), model));
  prepared.wants_token_texts = SPARROW_TRY(root.bool_or("return_token_strs", false));
  prepared.request.salt = asker.tenant;
  prepared.text = SPARROW_TRY(text_to_tokenize(root, model));
  if (const auto messages = root.find("messages"))
    prepared.media = SPARROW_TRY(read_media_parts(*messages, root.find("mm_processor_kwargs"),
                                                  model.media_settings(), model.media.refusal));
  return Ok{};
}

Result<std::string> write_tokens(const Prepared& prepared, const ServedModel& model) {
  const std::vector<int32_t>& ids = prepared.request.prompts[0];
  JsonWriter json;
  json.begin_object().key("count").integer(ids.size());
  json.key("max_model_len").integer(model.defaults.max_model_tokens);
  json.key("tokens").begin_array();
  for (const int32_t id : ids) json.integer(id);
  json.end_array().key("token_strs");
  if (prepared.wants_token_texts) {
    json.begin_array();
    for (const int32_t id : ids) json.string(SPARROW_TRY(model.tokenizer.decode(std::span(&id, 1))));
    json.end_array();
  } else {
    json.null();
  }
  json.end_object();
  return json.take();
}

}  // namespace

const Api kTokenizeApi{.read = read_tokenize,
                       .prompt_field = "messages",
                       .max_tokens_field = "",
                       .logprobs_field = "",
                       .logprob_bytes = 0,
                       .prompt_logprobs_once = true,
                       .count = write_tokens};

std::span<const Field> tokenize_fields() {
  return kTokenizeFields;
}

std::span<const Field> detokenize_fields() {
  return kDetokenizeFields;
}

Result<std::string> detokenize(std::string_view body, const ServedModel& model) {
  const JsonDocument document = SPARROW_TRY(JsonDocument::parse(body, "the request's body", kBodyLimits));
  const Json root = document.root();
  SPARROW_TRY(check_fields(root, {kDetokenizeFields}, "this request"));
  if (const auto name = root.find("model")) SPARROW_TRY(check_model(SPARROW_TRY(name->as_string()), model));
  const auto ids = SPARROW_TRY(read_token_ids(SPARROW_TRY(root.at("tokens")), model.defaults.vocab_size));
  JsonWriter json;
  json.begin_object().key("prompt").string(SPARROW_TRY(model.tokenizer.decode(ids))).end_object();
  return json.take();
}

}  // namespace sparrow::openai
