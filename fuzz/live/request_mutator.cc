// SPDX-License-Identifier: Apache-2.0
#include "request_mutator.h"

#include <array>
#include <boost/json/serialize.hpp>
#include <limits>

#include "base/strf.h"

namespace sparrow::fuzz {
namespace {

namespace json = boost::json;
using namespace std::string_view_literals;

constexpr std::string_view kJsonType = "Content-Type: application/json\r\n";
constexpr std::array kPaths = {"/v1/chat/completions",
                               "/v1/completions",
                               "/v1/responses",
                               "/v1/responses/resp_1",
                               "/v1/responses/resp_1/cancel",
                               "/v1/responses/resp_1/input_items?limit=x",
                               "/v1/messages",
                               "/v1/messages?beta=true",
                               "/v1/messages/count_tokens",
                               "/tokenize",
                               "/detokenize",
                               "/v1/models",
                               "/v1/models/m3",
                               "/health",
                               "/ready",
                               "/version",
                               "/metrics",
                               "/",
                               "*",
                               "/v1/chat/completions?x=%00",
                               "/v1/../v1/completions",
                               "//tokenize",
                               "http://h/v1/completions",
                               "/%2e%2e/x",
                               "/v1/models/%ff%00"};
constexpr std::array<std::string_view, 10> kMethods = {
    "GET",   "PUT",     "HEAD", "OPTIONS", "DELETE",
    "TRACE", "CONNECT", "post", "P\0ST"sv, "VERYLONGMETHODNAMETHATNOBODYHAS"};
// Fields that requests have, to be put where they are not expected.
constexpr std::array kFields = {"model",
                                "messages",
                                "prompt",
                                "max_tokens",
                                "max_completion_tokens",
                                "temperature",
                                "top_p",
                                "top_k",
                                "min_p",
                                "n",
                                "stream",
                                "stream_options",
                                "stop",
                                "stop_token_ids",
                                "seed",
                                "logprobs",
                                "top_logprobs",
                                "prompt_logprobs",
                                "echo",
                                "tools",
                                "tool_choice",
                                "parallel_tool_calls",
                                "chat_template_kwargs",
                                "reasoning_effort",
                                "response_format",
                                "logit_bias",
                                "presence_penalty",
                                "frequency_penalty",
                                "repetition_penalty",
                                "min_tokens",
                                "ignore_eos",
                                "allowed_token_ids",
                                "priority",
                                "cache_salt",
                                "user",
                                "best_of",
                                "suffix",
                                "continue_final_message",
                                "add_generation_prompt",
                                "role",
                                "content",
                                "tool_calls",
                                "function",
                                "name",
                                "arguments",
                                "parameters",
                                "type",
                                "properties",
                                "required",
                                "items",
                                "anyOf",
                                "$ref",
                                "additionalProperties",
                                "tokens",
                                "return_token_strs",
                                "include_usage",
                                "thinking_mode",
                                "text"};
constexpr std::array<std::string_view, 30> kHeaders = {
    "Content-Length: 0\r\n",
    "Content-Length: 5\r\n",
    "Content-Length: -1\r\n",
    "Content-Length: 18446744073709551616\r\n",
    "Content-Length: 9999999999999\r\n",
    "Content-Length: 0x10\r\n",
    "Content-Length: 1, 1\r\n",
    "Transfer-Encoding: chunked\r\n",
    "Transfer-Encoding: gzip, chunked\r\n",
    "Transfer-Encoding: identity\r\n",
    "Host: other\r\n",
    "Host:\r\n",
    "Expect: 100-continue\r\n",
    "Expect: nonsense\r\n",
    "Connection: close\r\n",
    "Connection: upgrade\r\nUpgrade: websocket\r\n",
    "Authorization: Bearer \xff\xfe\r\n",
    "Authorization: Basic eDp5\r\n",
    "Content-Type: text/plain\r\n",
    "Content-Type: multipart/form-data\r\n",
    "Content-Encoding: gzip\r\n",
    "Origin: http://evil\r\nAccess-Control-Request-Method: POST\r\n",
    "X-Request-Id: a\tb\r\n",
    "X-Folded: a\r\n b\r\n",
    "NoColon\r\n",
    "Bad Name: x\r\n",
    ": no name\r\n",
    "X-Nul: a\0b\r\n"sv,
    "X-Bare: a\nInjected: b\r\n",
    "\r\n",
};

// Texts that stand where a value should.
constexpr std::array kBrokenValues = {"NaN",
                                      "Infinity",
                                      "-",
                                      "01",
                                      "1e999",
                                      "\"\\ud800\"",
                                      "\"\\x\"",
                                      "'a'",
                                      "[1,]",
                                      "{\"a\":1,}",
                                      "// c\n1",
                                      "\"\xff\"",
                                      "\"\x01\"",
                                      "1.",
                                      ".5",
                                      "+1",
                                      "undefined",
                                      "\xef\xbb\xbf"
                                      "1"};

void collect(json::value& value, std::vector<json::value*>& out) {
  out.push_back(&value);
  if (auto* array = value.if_array())
    for (json::value& element : *array) collect(element, out);
  if (auto* object = value.if_object())
    for (auto& member : *object) collect(member.value(), out);
}

std::string post(std::string_view path, std::string_view body, std::string_view headers) {
  return strf("POST {} HTTP/1.1\r\nHost: t\r\n{}Content-Length: {}\r\n\r\n{}", path, headers, body.size(),
              body);
}

}  // namespace

json::value RequestMutator::any_value() {
  switch (below(16)) {
    case 0:
      return nullptr;
    case 1:
      return chance(50);
    case 2:
      return pick(std::array<int64_t, 12>{0, -1, 1, 2, 31, 127, 128, 513, 2147483647, 2147483648, -2147483649,
                                          9007199254740993});
    case 3:
      return pick(std::array{std::numeric_limits<int64_t>::min(), std::numeric_limits<int64_t>::max()});
    case 4:
      return std::numeric_limits<uint64_t>::max();
    case 5:
      return pick(std::array{0.5, -0.0, 1e308, -1e308, 1e-320, 2.0000001, 1e15, 0.1});
    case 6:
      return json::string(below(3000), 'a');
    case 7:
      return pick(std::array{"", "x", "true", "1", "null", "\xf0\x9f\x90\xa6", "<mm:think>", "[e~[",
                             "]<]minimax[>[", "</tool_call>", "m3", "user", "assistant", "tool", "system",
                             "function"});
    case 8:
      return json::string("a\0b", 3);
    case 9:
      return json::array{};
    case 10:
      return json::object{};
    case 11:
      return json::array(1 + below(600), 1);
    case 12: {
      json::value deep = 1;
      for (size_t depth = below(90); depth > 0; --depth) deep = json::array{std::move(deep)};
      return deep;
    }
    case 13: {
      json::value deep = "x";
      for (size_t depth = below(70); depth > 0; --depth)
        deep = json::object{{pick(kFields), std::move(deep)}};
      return deep;
    }
    default: {  // some value of some seed
      json::value copy = pick(seeds_).body;
      std::vector<json::value*> nodes;
      collect(copy, nodes);
      return *pick(nodes);
    }
  }
}

void RequestMutator::mutate_members(json::object& object) {
  auto member = object.begin() + static_cast<std::ptrdiff_t>(below(object.size()));
  switch (below(4)) {
    case 0:
      if (!object.empty()) object.erase(member);
      break;
    case 1:
      object[pick(kFields)] = any_value();
      break;
    case 2:  // under another name
      if (!object.empty()) {
        json::value value = member->value();
        object.erase(member);
        object[pick(kFields)] = std::move(value);
      }
      break;
    default:  // two members change places
      if (!object.empty()) {
        auto other = object.begin() + static_cast<std::ptrdiff_t>(below(object.size()));
        std::swap(member->value(), other->value());
      }
  }
}

void RequestMutator::mutate_elements(json::array& array) {
  if (array.empty()) return array.push_back(any_value());
  auto element = array.begin() + static_cast<std::ptrdiff_t>(below(array.size()));
  switch (below(3)) {
    case 0:
      array.erase(element);
      break;
    case 1: {
      json::value copy = *element;
      for (size_t count = 1 + below(chance(10) ? 300 : 3); count > 0; --count) array.push_back(copy);
      break;
    }
    default:
      array.insert(element, any_value());
  }
}

void RequestMutator::mutate(json::value& body) {
  std::vector<json::value*> nodes;
  collect(body, nodes);
  json::value& node = *pick(nodes);
  switch (below(6)) {
    case 0:
    case 1:
      node = any_value();
      break;
    case 2:  // in another type
      if (node.is_string())
        node = json::array{node};
      else if (node.is_primitive())
        node = json::string(json::serialize(node));
      else
        node = json::object{{"a", node}};
      break;
    default:
      if (node.is_object())
        mutate_members(node.get_object());
      else if (node.is_array())
        mutate_elements(node.get_array());
      else
        node = any_value();
  }
}

void RequestMutator::flip_bytes(std::string& bytes) {
  for (size_t count = 1 + below(4); count > 0 && !bytes.empty(); --count)
    bytes[below(bytes.size())] = static_cast<char>(below(256));
}

void RequestMutator::mutate_text(std::string& text) {
  switch (below(7)) {
    case 0:
      flip_bytes(text);
      break;
    case 1:
      text.resize(below(text.size() + 1));
      break;
    case 2:  // a name twice
      if (text.starts_with("{\"")) text.insert(1, strf("\"{}\":1,", pick(kFields)));
      break;
    case 3: {
      const size_t colon = text.find(':', below(text.size() + 1));
      if (colon != text.npos) text.insert(colon + 1, pick(kBrokenValues));
      break;
    }
    case 4:
      text.insert(below(text.size() + 1), below(2000), ' ');
      break;
    case 5:
      text.insert(below(text.size() + 1), std::string(below(200), chance(50) ? '[' : '{'));
      break;
    default:
      text += pick(std::array{"\0"sv, "x"sv, "{}"sv, "\n\n"sv, "]"sv});
  }
}

std::string RequestMutator::chunked(const std::string& body) {
  std::string out;
  for (size_t at = 0; at < body.size();) {
    const size_t size = std::min(body.size() - at, 1 + below(200));
    out += strf("{:x}{}\r\n", size, chance(10) ? ";a=b" : "") + body.substr(at, size) + "\r\n";
    at += size;
  }
  return out + (chance(10) ? "0\r\nTrailer: x\r\n\r\n" : "0\r\n\r\n");
}

void RequestMutator::break_http(MutatedRequest& request, const std::string& path, const std::string& body) {
  request.framed = false;
  std::string& bytes = request.bytes;
  const size_t line_end = bytes.find("\r\n");
  switch (below(11)) {
    case 0: {
      const std::string_view method = pick(kMethods);
      bytes.replace(0, 4, method);
      request.head = method == "HEAD";
      break;
    }
    case 1:
      bytes.replace(5, path.size(), chance(10) ? std::string(below(20000), 'a') : pick(kPaths));
      break;
    case 2:
      bytes.replace(line_end - 8, 8,
                    pick(std::array{"HTTP/1.0", "HTTP/2.0", "HTTP/0.9", "HTTP/1.1x", "http/1.1", ""}));
      break;
    case 3:
    case 4:
      bytes.insert(line_end + 2, pick(kHeaders));
      break;
    case 5: {
      std::string many;
      for (size_t i = below(300); i > 0; --i) many += strf("X-{}: {}\r\n", i, std::string(below(200), 'v'));
      bytes.insert(line_end + 2, many);
      break;
    }
    case 6:
      bytes = strf("POST {} HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n", path) + chunked(body);
      if (chance(50)) flip_bytes(bytes);
      break;
    case 7:  // several at once
      for (size_t count = below(3); count > 0; --count) bytes += bytes;
      break;
    case 8:
      bytes.resize(below(bytes.size()));
      break;
    case 9:
      bytes.insert(0, pick(std::array{"\r\n", "\r\n\r\n\r\n", "\n", " ", "\x16\x03\x01\x02",
                                      "PRI * HTTP/2.0\r\n\r\n"}));
      break;
    default:
      flip_bytes(bytes);
  }
}

MutatedRequest RequestMutator::next() {
  const Seed& seed = pick(seeds_);
  json::value value = seed.body;
  const bool breaks_http = chance(25);
  for (size_t count = below(3) + (breaks_http ? 0 : 1); count > 0; --count) mutate(value);
  // Without a limit the answer is as long as the context: a few of those are enough.
  if (value.is_object() && seed.body.as_object().contains("max_tokens") && !chance(5))
    value.get_object()["max_tokens"] = chance(90) ? json::value(1 + below(5)) : any_value();
  std::string body = json::serialize(value);
  if (chance(15)) mutate_text(body);
  const std::string path = chance(10) ? pick(seeds_).path : seed.path;
  MutatedRequest request{.bytes = post(path, body, kJsonType)};
  if (breaks_http) break_http(request, path, body);
  return request;
}

}  // namespace sparrow::fuzz
