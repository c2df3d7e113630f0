// SPDX-License-Identifier: Apache-2.0
// AnswerForm: what an answer has to look like, as a request says it: OpenAI's response_format, vLLM's
// structured_outputs and its older guided_* fields.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/json/json.h"
#include "base/result.h"
#include "text/constraint/grammar.h"

namespace sparrow {

struct AnswerForm {
  enum class Kind { kJsonObject, kJsonSchema, kRegex, kChoice, kGrammar };

  Kind kind = Kind::kJsonObject;
  std::string field;                 // that says so, for messages
  std::string text;                  // of the pattern, the grammar or the schema
  std::vector<std::string> choices;  // of kChoice
};

// nullopt: any text will do. Error: the field does not say what it should, or two of them say something.
Result<std::optional<AnswerForm>> read_answer_form(const Json& body);

// A tool that may be called.
struct CallableTool {
  std::string name;
  std::string parameters;  // their schema, as JSON; empty: there are none
  std::string field;       // where they stand in the request
  bool strict = false;     // what cannot be held to is an error; else it is left to the model
};

// What an answer may be: a text of the form, or calls of the tools as M3 writes them.
struct AnswerRule {
  std::optional<AnswerForm> form;
  std::vector<CallableTool> tools;
  bool several = false;   // calls in one answer
  bool any_text = false;  // any text, and then calls or none; there is no form

  std::string key() const;  // equal for what is the same
};

Result<std::shared_ptr<const Grammar>> grammar_of(const AnswerRule& rule);

}  // namespace sparrow
