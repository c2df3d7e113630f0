// SPDX-License-Identifier: Apache-2.0
#include "server/describe/schemas.h"

namespace sparrow {
namespace {

// Members that nobody knows may be null: that is how clients spell "absent".
constexpr NamedSchema kSchemas[] = {
    {"Message", R"({"type":"object","required":["role"],"properties":{
"role":{"enum":["root","system","developer","user","assistant","tool"]},
"content":{"$ref":"#/components/schemas/Content"},
"name":{"$ref":"#/components/schemas/TextOrNothing"},
"tool_call_id":{"$ref":"#/components/schemas/TextOrNothing"},
"tool_calls":{"anyOf":[{"type":"array","items":{"$ref":"#/components/schemas/ToolCall"}},
{"type":"null"},{"const":""},{"type":"object","maxProperties":0}]},
"reasoning":{"$ref":"#/components/schemas/TextOrNothing"},
"reasoning_content":{"$ref":"#/components/schemas/TextOrNothing"},
"reasoning_details":{},"cache_control":{},"refusal":{},"function_call":{},"audio":{},"annotations":{},"parsed":{}},
"additionalProperties":{"type":"null"}})"},
    {"TextOrNothing",
     R"({"anyOf":[{"type":["string","null"]},{"type":"array","maxItems":0},{"type":"object","maxProperties":0}]})"},
    {"Content",
     R"({"anyOf":[{"type":["string","null"]},{"type":"array","items":{"$ref":"#/components/schemas/Part"}}]})"},
    {"Part", R"({"anyOf":[{"type":"string"},{"type":"object","required":["type"],"properties":{
"type":{"enum":["text","input_text","output_text","refusal","thinking","reasoning"]}}}]})"},
    {"ToolCall", R"({"type":"object","required":["function"],"properties":{
"id":{},"type":{"enum":["function",null]},"index":{},
"function":{"type":"object","required":["name"],"properties":{"name":{"type":"string"},
"arguments":{"type":["string","object","null"]},"parsed_arguments":{}},
"additionalProperties":{"type":"null"}}},"additionalProperties":{"type":"null"}})"},
    {"Tool", R"({"type":"object","required":["function"],"properties":{
"type":{"enum":["function",null]},"cache_control":{},"defer_loading":{"type":["boolean","null"]},
"function":{"type":"object","required":["name"],"properties":{
"name":{"type":"string","minLength":1,"maxLength":256},"description":{"type":["string","null"]},
"parameters":{"type":["object","null"]},"strict":{"type":["boolean","null"]}},
"additionalProperties":{"type":"null"}}},"additionalProperties":{"type":"null"}})"},
    {"ToolChoice", R"({"anyOf":[{"enum":["none","auto","required",null]},
{"type":"object","required":["type"],"properties":{"type":{"enum":["function","allowed_tools"]},
"function":{"type":["object","null"]},"allowed_tools":{"type":["object","null"]}},
"additionalProperties":{"type":"null"}}]})"},
    {"StreamOptions", R"({"type":["object","null"],"properties":{"include_usage":{"type":["boolean","null"]},
"continuous_usage_stats":{"type":["boolean","null"]},"include_obfuscation":{"enum":[false,null]}},
"additionalProperties":{"type":"null"}})"},
    {"Error", R"({"type":"object","required":["error"],"properties":{"error":{"type":"object",
"required":["message","type"],"properties":{"message":{"type":"string"},"type":{"type":"string"},
"param":{"type":["string","null"]},"code":{"type":["string","null"]}}}}})"},
    {"Usage",
     R"({"type":"object","required":["prompt_tokens","completion_tokens","total_tokens"],"properties":{
"prompt_tokens":{"type":"integer"},"completion_tokens":{"type":"integer"},"total_tokens":{"type":"integer"}}})"},
    {"ChatCompletion", R"({"type":"object","required":["id","object","created","model","choices","usage"],
"properties":{"id":{"type":"string"},"object":{"const":"chat.completion"},"created":{"type":"integer"},
"model":{"type":"string"},"choices":{"type":"array","items":{"type":"object",
"required":["index","message","finish_reason"],"properties":{"index":{"type":"integer"},
"message":{"type":"object","required":["role","content"],"properties":{"role":{"const":"assistant"},
"content":{"type":["string","null"]},"reasoning":{"type":["string","null"]},
"reasoning_content":{"type":["string","null"]},
"tool_calls":{"type":"array","items":{"$ref":"#/components/schemas/ToolCall"}}}},
"logprobs":{"type":["object","null"]},"finish_reason":{"enum":["stop","length","tool_calls"]},
"stop_reason":{"type":["string","integer","null"]}}}},"usage":{"$ref":"#/components/schemas/Usage"}}})"},
    {"Completion", R"({"type":"object","required":["id","object","created","model","choices","usage"],
"properties":{"id":{"type":"string"},"object":{"const":"text_completion"},"created":{"type":"integer"},
"model":{"type":"string"},"choices":{"type":"array","items":{"type":"object",
"required":["index","text","finish_reason"],"properties":{"index":{"type":"integer"},"text":{"type":"string"},
"logprobs":{"type":["object","null"]},"finish_reason":{"enum":["stop","length"]},
"stop_reason":{"type":["string","integer","null"]}}}},"usage":{"$ref":"#/components/schemas/Usage"}}})"},
    {"Model", R"({"type":"object","required":["id","object","created","owned_by","root","max_model_len"],
"properties":{"id":{"type":"string"},"object":{"const":"model"},"created":{"type":"integer"},
"owned_by":{"type":"string"},"root":{"type":"string"},"parent":{"type":"null"},
"max_model_len":{"type":"integer"}}})"},
    {"ModelList", R"({"type":"object","required":["object","data"],"properties":{"object":{"const":"list"},
"data":{"type":"array","items":{"$ref":"#/components/schemas/Model"}}}})"},
    {"Tokens", R"({"type":"object","required":["count","max_model_len","tokens"],"properties":{
"count":{"type":"integer"},"max_model_len":{"type":"integer"},
"tokens":{"type":"array","items":{"type":"integer"}},
"token_strs":{"anyOf":[{"type":"null"},{"type":"array","items":{"type":"string"}}]}}})"},
    {"Text", R"({"type":"object","required":["prompt"],"properties":{"prompt":{"type":"string"}}})"},
    {"Any", R"({"type":"object"})"},
};

}  // namespace

std::span<const NamedSchema> fixed_schemas() {
  return kSchemas;
}

}  // namespace sparrow
