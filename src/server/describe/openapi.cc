// SPDX-License-Identifier: Apache-2.0
#include "server/describe/openapi.h"

#include <algorithm>
#include <cmath>

#include "base/json/json_writer.h"
#include "base/strf.h"
#include "server/describe/schemas.h"
#include "server/openai/chat_request.h"
#include "server/openai/completion_request.h"
#include "server/openai/prepare.h"

namespace sparrow {
namespace {

using Type = Field::Type;

void write_type(JsonWriter& json, std::string_view type) {
  json.key("type").begin_array().string(type).string("null").end_array();
}

void write_bound(JsonWriter& json, std::string_view key, double bound) {
  if (std::abs(bound) == Field::kMost) return;
  json.key(key);
  bound == std::trunc(bound) ? json.integer(static_cast<int64_t>(bound)) : json.number(bound);
}

// "a|b" as a list, in which null stands for the default.
void write_values(JsonWriter& json, const Field& field) {
  json.key("enum").begin_array();
  for (std::string_view left = field.values; !left.empty();) {
    const std::string_view word = left.substr(0, left.find('|'));
    field.type == Type::kBool ? json.raw(word) : json.string(word);
    left.remove_prefix(std::min(left.size(), word.size() + 1));
  }
  json.null().end_array();
}

// The value of a field, or null.
void write_field(JsonWriter& json, const Field& field, int vocab_size) {
  json.key(field.name);
  if (!field.schema.empty()) {
    json.begin_object().key("anyOf").begin_array().raw(field.schema);
    json.raw(R"({"type":"null"})").end_array().end_object();
    return;
  }
  json.begin_object();
  if (!field.values.empty()) {
    write_values(json, field);
    json.end_object();
    return;
  }
  switch (field.type) {
    case Type::kBool:
      write_type(json, "boolean");
      break;
    case Type::kInteger:
    case Type::kNumber:
      write_type(json, field.type == Type::kInteger ? "integer" : "number");
      write_bound(json, "minimum", field.min);
      write_bound(json, "maximum", field.max);
      break;
    case Type::kString:
      write_type(json, "string");
      break;
    case Type::kObject:
      write_type(json, "object");
      break;
    case Type::kList:
      write_type(json, "array");
      break;
    case Type::kTokenIds:
      write_type(json, "array");
      json.key("items").begin_object().key("type").string("integer").key("minimum").integer(0);
      json.key("maximum").integer(vocab_size - 1).end_object();
      break;
    case Type::kRefused:
      json.key("type").string("null");
      break;
    case Type::kAny:
      break;
  }
  json.end_object();
}

struct RequestSchema {
  std::string_view name, required;
  std::span<const Field> tables[2];
};

void write_request(JsonWriter& json, const RequestSchema& request, int vocab_size) {
  json.key(request.name).begin_object().key("type").string("object");
  if (!request.required.empty()) json.key("required").begin_array().string(request.required).end_array();
  json.key("properties").begin_object();
  for (const std::span<const Field> table : request.tables)
    for (const Field& field : table) write_field(json, field, vocab_size);
  json.end_object();
  // What nobody knows may be null.
  json.key("additionalProperties").raw(R"({"type":"null"})").end_object();
}

void write_reference(JsonWriter& json, std::string_view schema) {
  json.begin_object().key("schema").begin_object();
  json.key("$ref").string(strf("#/components/schemas/{}", schema)).end_object().end_object();
}

void write_responses(JsonWriter& json, const Operation& operation) {
  json.key("responses").begin_object().key("200").begin_object().key("description").string("The answer.");
  json.key("content").begin_object();
  if (operation.answer.empty()) {
    json.key("text/plain").raw("{}");
  } else {
    json.key("application/json");
    write_reference(json, operation.answer);
    // With "stream": true.
    if (!operation.body.empty()) json.key("text/event-stream").raw("{}");
  }
  json.end_object().end_object();
  json.key("default")
      .begin_object()
      .key("description")
      .string("What is wrong.")
      .key("content")
      .begin_object();
  json.key("application/json");
  write_reference(json, operation.path.starts_with("/v1/messages") ? "Any" : "Error");
  json.end_object().end_object().end_object();
}

void write_operation(JsonWriter& json, const Operation& operation) {
  std::string method(operation.method);
  std::transform(method.begin(), method.end(), method.begin(),
                 [](char c) { return static_cast<char>(c | 0x20); });
  json.key(method).begin_object().key("summary").string(operation.summary);
  if (operation.path.find_first_of("{*") != operation.path.npos)
    json.key("parameters").raw(R"([{"name":"id","in":"path","required":true,"schema":{"type":"string"}}])");
  if (operation.is_open) json.key("security").raw("[]");
  if (!operation.body.empty()) {
    json.key("requestBody").begin_object().key("required").boolean(true).key("content").begin_object();
    json.key("application/json");
    write_reference(json, operation.body);
    json.end_object().end_object();
  }
  write_responses(json, operation);
  json.end_object();
}

// One member for each path, with all methods of it.
void write_paths(JsonWriter& json, std::span<const Operation> operations) {
  const auto is_new = [&](size_t i) {
    return std::none_of(operations.begin(), operations.begin() + static_cast<ptrdiff_t>(i),
                        [&](const Operation& other) { return other.path == operations[i].path; });
  };
  json.key("paths").begin_object();
  for (size_t i = 0; i < operations.size(); ++i) {
    if (!is_new(i)) continue;
    std::string path(operations[i].path);
    if (const size_t gap = path.find_first_of("{*"); gap != path.npos)
      path.replace(gap, path[gap] == '{' ? 2 : 1, "{id}");
    json.key(path).begin_object();
    for (const Operation& operation : operations)
      if (operation.path == operations[i].path) write_operation(json, operation);
    json.end_object();
  }
  json.end_object();
}

}  // namespace

std::string openapi_json(std::span<const Operation> operations, const openai::Defaults& defaults,
                         std::string_view version, bool has_keys) {
  const RequestSchema requests[] = {
      {"ChatCompletionRequest", "messages", {openai::shared_fields(), openai::chat_fields()}},
      {"CompletionRequest", "prompt", {openai::shared_fields(), openai::completion_fields()}},
      {"TokenizeRequest", "", {openai::tokenize_fields(), {}}},
      {"DetokenizeRequest", "tokens", {openai::detokenize_fields(), {}}},
  };
  JsonWriter json;
  json.begin_object().key("openapi").string("3.1.0");
  json.key("info").begin_object().key("title").string("Sparrow").key("version").string(version).end_object();
  if (has_keys) json.key("security").raw(R"([{"key":[]}])");
  write_paths(json, operations);
  json.key("components").begin_object();
  if (has_keys) json.key("securitySchemes").raw(R"({"key":{"type":"http","scheme":"bearer"}})");
  json.key("schemas").begin_object();
  for (const RequestSchema& request : requests) write_request(json, request, defaults.vocab_size);
  for (const NamedSchema& schema : fixed_schemas()) json.key(schema.name).raw(schema.schema);
  json.end_object().end_object().end_object();
  return json.take();
}

}  // namespace sparrow
