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
      Text{"/tokenize", R"({"messages":[{"role":"user","content":"hi"}],"return_token_strs":true})"},
      Text{"/tokenize", R"({"prompt":"the fox \ud83d\udc26","add_special_tokens":false})"},
      Text{"/detokenize", R"({"model":"m3","tokens":[0,255,256,300]})"},
  };
  std::vector<Seed> seeds;
  for (const Text& text : kTexts) seeds.push_back({text.path, boost::json::parse(text.body)});
  return seeds;
}

}  // namespace sparrow::fuzz
