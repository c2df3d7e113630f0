// SPDX-License-Identifier: Apache-2.0
// JSON in, typed values out. Every error names the field by its path and shows the value that was there.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"

namespace sparrow {

struct JsonLimits {
  size_t max_bytes = size_t{256} << 20;
  int max_depth = 64;
  bool last_of_equal_keys = false;  // of members of one name the last one counts, which is else an error
};

struct JsonNode;

// One value of a document, with the path that leads to it. Points into the JsonDocument, which must outlive
// it.
class Json {
 public:
  Json(const JsonNode* node, std::string path) : node_(node), path_(std::move(path)) {}

  // "text_config.layer_types[3]"; empty for the whole document.
  const std::string& path() const { return path_; }
  // The value in at most about 60 characters, for messages.
  std::string brief() const;

  bool is_object() const;
  bool is_array() const;
  bool is_string() const;
  bool is_null() const;
  bool is_bool() const;
  bool is_number() const;

  // The digits of a number without fraction or exponent, all of them, however large; nullopt for all else.
  std::optional<std::string> integer_digits() const;
  // The text of a string without a copy; empty for all else.
  std::string_view string_view() const;

  // Elements of an array or members of an object; 0 for all else.
  size_t size() const;
  Json element(size_t i) const;
  std::string_view key(size_t i) const;
  Json member(size_t i) const;

  // The member called `key`. Absent, null, or not in an object: nullopt, so that null means the default
  // everywhere.
  std::optional<Json> find(std::string_view key) const;
  Result<Json> at(std::string_view key) const;

  // The value itself. Integers may be written as 1e6 or 16.0, as long as they are whole.
  Result<int64_t> as_int(int64_t min, int64_t max) const;
  Result<double> as_number() const;
  Result<bool> as_bool() const;
  Result<std::string> as_string() const;
  Status expect_object() const;
  Status expect_array() const;

  // The member called `key`, or the fallback where find() finds nothing.
  Result<int64_t> int_or(std::string_view key, int64_t fallback, int64_t min, int64_t max) const;
  Result<double> number_or(std::string_view key, double fallback) const;
  Result<bool> bool_or(std::string_view key, bool fallback) const;
  Result<std::string> string_or(std::string_view key, std::string_view fallback) const;

  // "hidden_size must be a positive integer, got "abc"".
  Error error(std::string_view expectation) const;

 private:
  const JsonNode* node_;
  std::string path_;
};

class JsonDocument {
 public:
  // Rejects a key that occurs twice in one object: whichever of the two a reader takes, another may take the
  // other one. `source` names the text in messages about its syntax.
  static Result<JsonDocument> parse(std::string_view text, std::string_view source, JsonLimits limits = {});

  JsonDocument(JsonDocument&&) noexcept;
  JsonDocument& operator=(JsonDocument&&) noexcept;
  ~JsonDocument();

  // `path` starts the paths of all values below, for messages that must tell documents apart.
  Json root(std::string path = "") const { return Json(root_.get(), std::move(path)); }

 private:
  explicit JsonDocument(std::unique_ptr<JsonNode> root);

  std::unique_ptr<JsonNode> root_;
};

// The text as a JSON string, with its quotes.
std::string json_quoted(std::string_view text);

}  // namespace sparrow
