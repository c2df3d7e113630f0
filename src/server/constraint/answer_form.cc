// SPDX-License-Identifier: Apache-2.0
#include "server/constraint/answer_form.h"

#include <array>
#include <utility>

#include "base/json/json_writer.h"
#include "base/strf.h"
#include "base/utf8.h"
#include "server/fields/field.h"
#include "text/constraint/gbnf.h"
#include "text/constraint/regex/regex.h"
#include "text/constraint/schema/json_schema.h"
#include "text/constraint/vocabulary.h"
#include "text/output/tool_markup.h"

namespace sparrow {
namespace {

constexpr size_t kMaxChoices = 10'000, kMaxSchemaBytes = size_t{1} << 19;
constexpr JsonLimits kSchemaLimits{.max_bytes = kMaxSchemaBytes, .max_depth = 128};

std::string json_text(const Json& value) {
  JsonWriter out;
  write_json(value, out);
  return out.take_part();
}

using Kind = AnswerForm::Kind;

// A schema as an object, or as JSON in a string.
Result<AnswerForm> schema_form(const Json& schema) {
  AnswerForm form{.kind = Kind::kJsonSchema, .field = schema.path()};
  if (schema.is_string())
    form.text = schema.string_view();
  else if (schema.is_object() || schema.is_bool())
    form.text = json_text(schema);
  else
    return schema.error("must be a JSON schema");
  return form;
}

Result<AnswerForm> text_form(const Json& text, Kind kind) {
  return AnswerForm{.kind = kind, .field = text.path(), .text = SPARROW_TRY(text.as_string())};
}

Result<AnswerForm> choice_form(const Json& list) {
  if (!list.is_array() || list.size() == 0 || list.size() > kMaxChoices)
    return list.error(strf("must be a list of 1 to {} strings", kMaxChoices));
  AnswerForm form{.kind = Kind::kChoice, .field = list.path()};
  for (size_t i = 0; i < list.size(); ++i) form.choices.push_back(SPARROW_TRY(list.element(i).as_string()));
  return form;
}

Result<std::optional<AnswerForm>> read_response_format(const Json& format) {
  const Json type = SPARROW_TRY(format.at("type"));
  const auto check = [&](std::span<const std::string_view> known) {
    return check_members(format, known, "a response_format of this type");
  };
  if (type.string_view() == "text") {
    SPARROW_TRY(check(std::array<std::string_view, 1>{"type"}));
    return std::optional<AnswerForm>();
  }
  if (type.string_view() == "json_object") {
    SPARROW_TRY(check(std::array<std::string_view, 2>{"type", "schema"}));  // which some clients send along
    if (const auto schema = format.find("schema")) return std::optional(SPARROW_TRY(schema_form(*schema)));
    return std::optional(AnswerForm{.kind = Kind::kJsonObject, .field = format.path()});
  }
  if (type.string_view() != "json_schema") return type.error("must be text, json_object or json_schema");
  SPARROW_TRY(check(std::array<std::string_view, 2>{"type", "json_schema"}));
  const Json described = SPARROW_TRY(format.at("json_schema"));
  static constexpr std::array<std::string_view, 4> kFields = {"name", "description", "schema", "strict"};
  SPARROW_TRY(check_members(described, kFields, "a json_schema"));
  SPARROW_TRY(described.bool_or("strict", false));  // it is kept to in either case
  return std::optional(SPARROW_TRY(schema_form(SPARROW_TRY(described.at("schema")))));
}

Result<std::optional<AnswerForm>> read_structured(const Json& outputs) {
  SPARROW_TRY(outputs.expect_object());
  std::optional<AnswerForm> form;
  for (size_t i = 0; i < outputs.size(); ++i) {
    const std::string_view key = outputs.key(i);
    const Json value = outputs.member(i);
    if (value.is_null() || key == "disable_fallback") continue;  // there is nothing to fall back to
    if ((key == "disable_any_whitespace" || key == "disable_additional_properties") && value.is_bool() &&
        !value.as_bool().value())
      continue;
    const bool object = key == "json_object";
    if (object && !SPARROW_TRY(value.as_bool())) continue;
    if (form) return outputs.error("must ask for one thing only");
    if (object)
      form = AnswerForm{.kind = Kind::kJsonObject, .field = outputs.path()};
    else if (key == "json")
      form = SPARROW_TRY(schema_form(value));
    else if (key == "regex")
      form = SPARROW_TRY(text_form(value, Kind::kRegex));
    else if (key == "choice")
      form = SPARROW_TRY(choice_form(value));
    else if (key == "grammar")
      form = SPARROW_TRY(text_form(value, Kind::kGrammar));
    else
      return value.error("is not supported: json, regex, choice, grammar and json_object are");
  }
  return form;
}

}  // namespace

Result<std::optional<AnswerForm>> read_answer_form(const Json& body) {
  std::optional<AnswerForm> form;
  const auto add = [&](std::optional<AnswerForm> one) -> Status {
    if (one && form)
      return Error{Errc::kInvalidArgument,
                   strf("{} and {} both say what the answer must look like", form->field, one->field),
                   one->field};
    if (one) form = std::move(one);
    return Ok{};
  };
  if (const auto format = body.find("response_format"))
    SPARROW_TRY(add(SPARROW_TRY(read_response_format(*format))));
  if (const auto outputs = body.find("structured_outputs"))
    SPARROW_TRY(add(SPARROW_TRY(read_structured(*outputs))));
  if (const auto schema = body.find("guided_json")) SPARROW_TRY(add(SPARROW_TRY(schema_form(*schema))));
  if (const auto regex = body.find("guided_regex"))
    SPARROW_TRY(add(SPARROW_TRY(text_form(*regex, Kind::kRegex))));
  if (const auto choice = body.find("guided_choice")) SPARROW_TRY(add(SPARROW_TRY(choice_form(*choice))));
  if (const auto grammar = body.find("guided_grammar"))
    SPARROW_TRY(add(SPARROW_TRY(text_form(*grammar, Kind::kGrammar))));
  return form;
}

namespace {

Result<NodeId> schema_node(Grammar& grammar, const std::string& text, ValueStyle style) {
  const JsonDocument document = SPARROW_TRY(JsonDocument::parse(text, "the schema", kSchemaLimits));
  return add_schema(grammar, document.root(), style);
}

Result<NodeId> form_node(Grammar& grammar, const AnswerForm& form) {
  switch (form.kind) {
    case Kind::kJsonObject:
      return add_json_object(grammar);
    case Kind::kJsonSchema:
      return schema_node(grammar, form.text, ValueStyle::kJson);
    case Kind::kRegex:
      return add_regex(grammar, form.text, {});
    case Kind::kChoice:
      return grammar.words(form.choices);
    case Kind::kGrammar:
      return add_gbnf(grammar, form.text);
  }
  return grammar.nothing();
}

// Errors name what the client sent.
Error in_field(const Error& error, const std::string& field, const std::string& what) {
  return {Errc::kInvalidArgument, strf("{}: {}", what, error.message), field};
}

// What is between the tags of a call.
Result<NodeId> arguments_node(Grammar& grammar, const CallableTool& tool) {
  if (tool.parameters.empty()) return grammar.empty();
  auto node = schema_node(grammar, tool.parameters, ValueStyle::kToolCall);
  if (node.ok()) return node;
  if (!tool.strict) return add_elements(grammar);  // as the model likes
  return in_field(node.error(), tool.field, strf("the parameters of the tool {}", excerpt(tool.name, 60)));
}

Result<NodeId> calls_node(Grammar& grammar, const std::vector<CallableTool>& tools, bool several) {
  const std::string marker(1, kMarkerByte);
  std::vector<NodeId> calls;
  for (const CallableTool& tool : tools) {
    const std::string tag = strf("<{} name=\"{}\">", kInvokeTag, tool.name);
    if (const TagScan scan = scan_tag(tag); scan.match != TagMatch::kTag || scan.length != tag.size() ||
                                            scan.tag.call_name != tool.name ||
                                            valid_utf8_prefix(tag) != tag.size())
      return Error{Errc::kInvalidArgument,
                   strf("the tool {} has a name that the model cannot write", excerpt(tool.name)), "tools"};
    calls.push_back(
        grammar.sequence({grammar.literal(marker + tag), SPARROW_TRY(arguments_node(grammar, tool)),
                          grammar.literal(strf("{}</{}>\n", marker, kInvokeTag))}));
  }
  const NodeId all = grammar.repeat(grammar.choice(calls), 1, several ? Grammar::kNoLimit : 1);
  return grammar.sequence({grammar.literal(strf("{}{}\n", marker, kCallsOpenByte)), all,
                           grammar.literal(strf("{}{}", marker, kCallsCloseByte))});
}

}  // namespace

std::string AnswerRule::key() const {
  std::string key = strf("{} {}", several, any_text);
  if (form) key += strf("\nform {} {} {}", static_cast<int>(form->kind), form->text.size(), form->text);
  if (form)
    for (const std::string& choice : form->choices) key += strf("\n{} {}", choice.size(), choice);
  for (const CallableTool& tool : tools)
    key += strf("\ntool {} {} {}\n{}", tool.strict, tool.name.size(), tool.name, tool.parameters);
  return key;
}

Result<std::shared_ptr<const Grammar>> grammar_of(const AnswerRule& rule) {
  auto grammar = std::make_shared<Grammar>();
  std::vector<NodeId> ways;
  if (rule.form) {
    const auto node = form_node(*grammar, *rule.form);
    if (!node.ok()) return in_field(node.error(), rule.form->field, rule.form->field);
    ways.push_back(node.value());
  }
  NodeId calls = grammar->nothing();
  if (!rule.tools.empty()) calls = SPARROW_TRY(calls_node(*grammar, rule.tools, rule.several));
  ways.push_back(rule.any_text
                     ? grammar->sequence({add_text_without(*grammar, kToolMarker), grammar->optional(calls)})
                     : calls);
  const std::string field = rule.form ? rule.form->field : "tools";
  if (const auto done = grammar->finish(grammar->choice(ways)); !done.ok())
    return in_field(done.error(), field, field);
  return std::shared_ptr<const Grammar>(std::move(grammar));
}

}  // namespace sparrow
