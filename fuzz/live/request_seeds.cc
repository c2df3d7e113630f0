// SPDX-License-Identifier: Apache-2.0
// The requests that RequestMutator starts from: together they have every field.
#include <array>
#include <boost/json/parse.hpp>

#include "request_mutator.h"

namespace sparrow::fuzz {

std::vector<RequestMutator::Seed> RequestMutator::seeds() {
  struct Text {
    const char *path, *body;
  };
  static constexpr std::array kTexts = {
      Text{
          "/v1/chat/completions",
          R"({"model":"m3","messages":[{"role":"system","content":"Be terse."},{"role":"user","content":"Hello"}],)"
          R"("max_tokens":6,"temperature":0.7,"top_p":0.9,"top_k":40,"min_p":0.05,"seed":7,"stop":["x"],"n":2})"},
      Text{
          "/v1/chat/completions",
          R"({"messages":[{"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]}],)"
          R"("stream":true,"stream_options":{"include_usage":true,"continuous_usage_stats":true},"max_tokens":5,)"
          R"("logprobs":true,"top_logprobs":3,"logit_bias":{"7":-100,"8":1.5},"presence_penalty":1})"},
      Text{
          "/v1/chat/completions",
          R"({"messages":[{"role":"user","content":"Route?"},{"role":"assistant","content":null,"tool_calls":)"
          R"([{"id":"c1","type":"function","function":{"name":"f","arguments":"{\"a\": [1, {\"b\": null}]}"}}]},)"
          R"({"role":"tool","tool_call_id":"c1","content":"ok"}],"tools":[{"type":"function","function":)"
          R"({"name":"f","parameters":{"type":"object","properties":{"a":{"type":"array","items":{}}}}}}],)"
          R"("max_tokens":5})"},
      Text{
          "/v1/chat/completions",
          R"({"messages":[{"role":"user","content":"x"}],"tools":[{"type":"function","function":{"name":"f",)"
          R"("parameters":{"type":"object","properties":{"a":{"type":"string"},"b":{"$ref":"#"}},"required":["a"]}}},)"
          R"({"type":"function","function":{"name":"ping"}}],"tool_choice":"required","max_tokens":30,"stream":true,)"
          R"("chat_template_kwargs":{"thinking_mode":"disabled"}})"},
      Text{
          "/v1/chat/completions",
          R"({"messages":[{"role":"user","content":"x"},{"role":"assistant","content":"y"}],"max_tokens":3,)"
          R"("continue_final_message":true,"add_generation_prompt":false,"min_tokens":1,"prompt_logprobs":2,)"
          R"("stop_token_ids":[5],"ignore_eos":true,"cache_salt":"s","priority":-1,"repetition_penalty":1.2})"},
      Text{
          "/v1/completions",
          R"({"prompt":["a b","c"],"echo":true,"logprobs":2,"max_tokens":3,"stream":true,"n":2,"suffix":""})"},
      Text{"/v1/completions",
           R"({"prompt":[[1,2,3],[4]],"max_tokens":2,"allowed_token_ids":[1,2,300],"temperature":0})"},
      Text{
          "/v1/responses",
          R"({"model":"m3","instructions":"Be brief.","input":[{"role":"user","content":[{"type":"input_text",)"
          R"("text":"hi"}]},{"type":"reasoning","id":"rs_1","summary":[],"content":[{"type":"reasoning_text",)"
          R"("text":"hm"}]},{"type":"function_call","call_id":"c1","name":"f","arguments":"{\"n\":3}"},)"
          R"({"type":"function_call_output","call_id":"c1","output":"four"}],"tools":[{"type":"function",)"
          R"("name":"f","parameters":{"type":"object"},"strict":false}],"tool_choice":"auto",)"
          R"("reasoning":{"effort":"low"},"text":{"format":{"type":"text"}},"max_output_tokens":5,"stream":true})"},
      Text{"/v1/responses",
           R"({"input":"hi","max_output_tokens":3,"store":true,"previous_response_id":null})"},
      Text{
          "/v1/messages",
          R"({"model":"m3","max_tokens":5,"system":[{"type":"text","text":"Be brief."}],"messages":[)"
          R"({"role":"user","content":"hi"},{"role":"assistant","content":[{"type":"thinking","thinking":"hm",)"
          R"("signature":"s"},{"type":"tool_use","id":"t1","name":"f","input":{"n":3}}]},{"role":"user","content":[)"
          R"({"type":"tool_result","tool_use_id":"t1","is_error":true,"content":[{"type":"text","text":"no"}]}]}],)"
          R"("tools":[{"name":"f","input_schema":{"type":"object"}}],"tool_choice":{"type":"auto"},)"
          R"("thinking":{"type":"enabled","budget_tokens":2},"stop_sequences":["x"],"stream":true})"},
      Text{"/v1/messages", R"({"max_tokens":3,"messages":[{"role":"user","content":"x"}],"top_k":5})"},
      Text{"/v1/messages/count_tokens", R"({"messages":[{"role":"user","content":"x"}]})"},
      Text{"/tokenize", R"({"messages":[{"role":"user","content":"hi"}],"return_token_strs":true})"},
      Text{"/tokenize", R"({"prompt":"the fox \ud83d\udc26","add_special_tokens":false})"},
      Text{"/detokenize", R"({"model":"m3","tokens":[0,255,256,300]})"},
  };
  std::vector<Seed> seeds;
  for (const Text& text : kTexts) seeds.push_back({text.path, boost::json::parse(text.body)});
  return seeds;
}

}  // namespace sparrow::fuzz
