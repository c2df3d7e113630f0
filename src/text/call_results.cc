// SPDX-License-Identifier: Apache-2.0
#include "text/call_results.h"

#include <deque>
#include <optional>
#include <string_view>
#include <unordered_map>

namespace sparrow {
namespace {

std::string_view text_of(const Json& object, std::string_view name) {
  const auto member = object.find(name);
  return member ? member->string_view() : "";
}

// The calls of an answer, and what has come back of them.
class OpenCalls {
 public:
  bool any_result() const { return num_results_ > 0; }

  void add(const Json& calls) {
    for (size_t i = 0; i < calls.size(); ++i) {
      of_id_[text_of(calls.element(i), "id")].push_back(calls_.size());
      calls_.push_back({calls.element(i), {}});
    }
  }

  Status answer(const Json& message) {
    const std::string_view id = text_of(message, "tool_call_id");
    Call* call = id.empty() ? first_open() : open_with(id);
    if (!call && !id.empty()) call = open_with("");  // a call without an id is known by its place
    if (!call) {
      const auto field = message.find(id.empty() ? "role" : "tool_call_id");
      return field->error(id.empty() ? "must follow a call that has no result yet"
                                     : "must be the id of a call right before it that has no result yet");
    }
    call->result = message;
    ++num_results_;
    return Ok{};
  }

  // The results behind the answer; error where one is missing.
  Status close(std::vector<Json>& messages) {
    for (const Call& call : calls_) {
      if (!call.result)
        return call.call.find("id").value_or(call.call).error("must have a result before the next turn");
      messages.push_back(*call.result);
    }
    *this = {};
    return Ok{};
  }

 private:
  struct Call {
    Json call;
    std::optional<Json> result;
  };

  Call* first_open() {
    while (first_open_ < calls_.size() && calls_[first_open_].result) ++first_open_;
    return first_open_ < calls_.size() ? &calls_[first_open_] : nullptr;
  }

  Call* open_with(std::string_view id) {
    const auto found = of_id_.find(id);
    if (found == of_id_.end()) return nullptr;
    std::deque<size_t>& places = found->second;
    while (!places.empty() && calls_[places.front()].result) places.pop_front();
    return places.empty() ? nullptr : &calls_[places.front()];
  }

  std::vector<Call> calls_;
  std::unordered_map<std::string_view, std::deque<size_t>> of_id_;  // some clients use an id twice
  size_t first_open_ = 0, num_results_ = 0;
};

}  // namespace

Result<std::vector<Json>> in_order_of_calls(const Json& messages) {
  std::vector<Json> out;
  OpenCalls open;
  for (size_t i = 0; i < messages.size(); ++i) {
    const Json message = messages.element(i);
    const std::string_view role = text_of(message, "role");
    if (role == "tool") {
      SPARROW_TRY(open.answer(message));
      continue;
    }
    const auto calls = role == "assistant" ? message.find("tool_calls") : std::nullopt;
    if (open.any_result() || !calls || calls->size() == 0) SPARROW_TRY(open.close(out));
    out.push_back(message);
    if (calls) open.add(*calls);
  }
  if (open.any_result()) SPARROW_TRY(open.close(out));
  return out;
}

}  // namespace sparrow
