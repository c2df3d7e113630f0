// SPDX-License-Identifier: Apache-2.0
// Template source -> tokens, with jinja2's whitespace rules under trim_blocks and lstrip_blocks.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace sparrow::jinja {

enum class TokenKind {
  kData,           // text between tags
  kVariableBegin,  // {{
  kVariableEnd,
  kBlockBegin,  // {%
  kBlockEnd,
  kName,
  kString,    // text: the value, escapes resolved
  kInteger,   // text: digits in base 10, without underscores
  kFloat,     // text: without underscores
  kOperator,  // text: the operator
  kEof,
};

struct Token {
  TokenKind kind;
  int line;
  std::string text;

  bool is_name(std::string_view name) const { return kind == TokenKind::kName && text == name; }
  bool is_operator(std::string_view op) const { return kind == TokenKind::kOperator && text == op; }
  // How messages call it.
  std::string described() const;
};

// Always ends in kEof. The source must be valid UTF-8.
Result<std::vector<Token>> tokenize(std::string_view source);

// An error at a line of the template.
Error syntax_error(int line, const std::string& message);

}  // namespace sparrow::jinja
