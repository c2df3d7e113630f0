// SPDX-License-Identifier: Apache-2.0
// Boost.JSON's parser does the reading; the tree is our own, so that repeated keys are seen and numbers keep
// every digit.
#include "base/json/json.h"

#include <algorithm>
#include <boost/json/basic_parser_impl.hpp>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <exception>
#include <set>
#include <utility>
#include <variant>

#include "base/utf8.h"

namespace sparrow {

using JsonMember = std::pair<std::string, JsonNode>;

// An integer beyond 64 bits, which a double would round.
struct JsonBigInt {
  std::string digits;
};

struct JsonNode {
  std::variant<std::monostate, bool, int64_t, double, std::string, std::vector<JsonNode>,
               std::vector<JsonMember>, JsonBigInt>
      value;
};

namespace {

using JsonArray = std::vector<JsonNode>;
using JsonObject = std::vector<JsonMember>;

// Builds the tree from the parser's events. Every event returns whether to go on.
class TreeBuilder {
 public:
  explicit TreeBuilder(bool last_of_equal_keys) : keeps_last_(last_of_equal_keys) {}

  static constexpr size_t max_object_size = static_cast<size_t>(-1);
  static constexpr size_t max_array_size = static_cast<size_t>(-1);
  static constexpr size_t max_key_size = static_cast<size_t>(-1);
  static constexpr size_t max_string_size = static_cast<size_t>(-1);
  using error_code = boost::json::error_code;
  using string_view = boost::json::string_view;

  bool on_document_begin(error_code&) { return true; }
  bool on_document_end(error_code&) { return true; }
  bool on_array_begin(error_code&) { return open(JsonNode{JsonArray()}); }
  bool on_array_end(size_t, error_code&) { return close(); }
  bool on_object_begin(error_code&) { return open(JsonNode{JsonObject()}); }
  bool on_object_end(size_t, error_code& ec) {
    if (has_repeated_key(std::get<JsonObject>(open_.back().value))) {
      ec = boost::json::make_error_code(boost::json::error::syntax);
      return false;
    }
    return close();
  }

  bool on_key_part(string_view s, size_t, error_code&) { return append(s); }
  bool on_key(string_view s, size_t, error_code&) {
    append(s);
    std::get<JsonObject>(open_.back().value).emplace_back(std::exchange(text_, {}), JsonNode{});
    return true;
  }
  bool on_string_part(string_view s, size_t, error_code&) { return append(s); }
  bool on_string(string_view s, size_t, error_code&) {
    append(s);
    return add(JsonNode{std::exchange(text_, {})});
  }
  bool on_number_part(string_view s, error_code&) { return append(s); }
  bool on_int64(int64_t i, string_view, error_code&) {
    text_.clear();
    return add(JsonNode{i});
  }
  bool on_uint64(uint64_t u, string_view, error_code&) {
    text_.clear();
    return add(u <= INT64_MAX ? JsonNode{static_cast<int64_t>(u)} : JsonNode{JsonBigInt{strf("{}", u)}});
  }
  // The parser's own conversion may be off by one unit in the last place.
  bool on_double(double approximate, string_view s, error_code&) {
    append(s);
    if (text_.find_first_of(".eE") == std::string::npos)
      return add(JsonNode{JsonBigInt{std::exchange(text_, {})}});
    double exact = approximate;
    std::from_chars(text_.data(), text_.data() + text_.size(), exact);
    text_.clear();
    return add(JsonNode{exact});
  }
  bool on_bool(bool b, error_code&) { return add(JsonNode{b}); }
  bool on_null(error_code&) { return add(JsonNode{}); }
  bool on_comment_part(string_view, error_code&) { return true; }
  bool on_comment(string_view, error_code&) { return true; }

  JsonNode take_root() { return std::move(root_); }
  const std::optional<std::string>& repeated_key() const { return repeated_key_; }

 private:
  bool append(string_view s) {
    text_.append(s.data(), s.size());
    return true;
  }
  bool open(JsonNode container) {
    open_.push_back(std::move(container));
    return true;
  }
  bool close() {
    JsonNode done = std::move(open_.back());
    open_.pop_back();
    return add(std::move(done));
  }
  bool add(JsonNode node) {
    if (open_.empty()) {
      root_ = std::move(node);
    } else if (auto* array = std::get_if<JsonArray>(&open_.back().value)) {
      array->push_back(std::move(node));
    } else {
      std::get<JsonObject>(open_.back().value).back().second = std::move(node);
    }
    return true;
  }
  bool has_repeated_key(JsonObject& object) {
    if (keeps_last_) {
      std::set<std::string> later;
      const auto repeats = [&](const JsonMember& member) { return !later.insert(member.first).second; };
      object.erase(object.begin(), std::remove_if(object.rbegin(), object.rend(), repeats).base());
      return false;
    }
    std::vector<std::string_view> keys;
    keys.reserve(object.size());
    for (const JsonMember& member : object) keys.push_back(member.first);
    std::sort(keys.begin(), keys.end());
    const auto repeated = std::adjacent_find(keys.begin(), keys.end());
    if (repeated == keys.end()) return false;
    repeated_key_ = std::string(*repeated);
    return true;
  }

  bool keeps_last_;
  JsonNode root_;
  std::vector<JsonNode> open_;  // containers from the root to the value being read
  std::string text_;            // of the key, string or number being read
  std::optional<std::string> repeated_key_;
};

std::string position(std::string_view text, size_t byte) {
  const std::string_view before = text.substr(0, std::min(byte, text.size()));
  const auto line = 1 + std::count(before.begin(), before.end(), '\n');
  const size_t newline = before.rfind('\n');
  const size_t column = newline == std::string_view::npos ? before.size() + 1 : before.size() - newline;
  return strf("line {}, column {}", line, column);
}

// Stops once `out` is longer than `limit`: values can be megabytes long.
void render(const JsonNode& node, size_t limit, std::string& out) {
  if (out.size() > limit) return;
  if (const auto* b = std::get_if<bool>(&node.value)) {
    out += *b ? "true" : "false";
  } else if (const auto* i = std::get_if<int64_t>(&node.value)) {
    out += strf("{}", *i);
  } else if (const auto* d = std::get_if<double>(&node.value)) {
    out += strf("{}", *d);
  } else if (const auto* big = std::get_if<JsonBigInt>(&node.value)) {
    out += big->digits.substr(0, limit + 1);
  } else if (const auto* s = std::get_if<std::string>(&node.value)) {
    out += json_quoted(std::string_view(*s).substr(0, limit + 1));
  } else if (const auto* array = std::get_if<JsonArray>(&node.value)) {
    out += '[';
    for (size_t k = 0; k < array->size() && out.size() <= limit; ++k) {
      if (k > 0) out += ", ";
      render((*array)[k], limit, out);
    }
    out += ']';
  } else if (const auto* object = std::get_if<JsonObject>(&node.value)) {
    out += '{';
    for (size_t k = 0; k < object->size() && out.size() <= limit; ++k) {
      if (k > 0) out += ", ";
      out += json_quoted(std::string_view((*object)[k].first).substr(0, limit + 1)) + ": ";
      render((*object)[k].second, limit, out);
    }
    out += '}';
  } else {
    out += "null";
  }
}

// Paths are for messages: keys can be megabytes long too.
std::string join(const std::string& path, std::string_view key) {
  const std::string shown(key.substr(0, kMaxExcerptBytes + 1));
  return excerpt(path.empty() ? shown : path + "." + shown);
}

}  // namespace

std::string json_quoted(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      out += strf("\\u{:04x}", static_cast<unsigned>(c));
    } else {
      out += c;
    }
  }
  return out + '"';
}

std::string Json::brief() const {
  constexpr size_t kLimit = 60;
  std::string out;
  render(*node_, kLimit, out);
  return excerpt(std::move(out), kLimit);
}

bool Json::is_object() const {
  return std::holds_alternative<JsonObject>(node_->value);
}
bool Json::is_array() const {
  return std::holds_alternative<JsonArray>(node_->value);
}
bool Json::is_string() const {
  return std::holds_alternative<std::string>(node_->value);
}

bool Json::is_null() const {
  return std::holds_alternative<std::monostate>(node_->value);
}
bool Json::is_bool() const {
  return std::holds_alternative<bool>(node_->value);
}
bool Json::is_number() const {
  return std::holds_alternative<int64_t>(node_->value) || std::holds_alternative<double>(node_->value) ||
         std::holds_alternative<JsonBigInt>(node_->value);
}

std::optional<std::string> Json::integer_digits() const {
  if (const auto* i = std::get_if<int64_t>(&node_->value)) return strf("{}", *i);
  if (const auto* big = std::get_if<JsonBigInt>(&node_->value)) return big->digits;
  return std::nullopt;
}

std::string_view Json::string_view() const {
  const auto* s = std::get_if<std::string>(&node_->value);
  return s != nullptr ? std::string_view(*s) : std::string_view();
}

size_t Json::size() const {
  if (const auto* array = std::get_if<JsonArray>(&node_->value)) return array->size();
  if (const auto* object = std::get_if<JsonObject>(&node_->value)) return object->size();
  return 0;
}

Json Json::element(size_t i) const {
  SPARROW_CHECK(is_array());
  return Json(&std::get<JsonArray>(node_->value).at(i), excerpt(strf("{}[{}]", path_, i)));
}

std::string_view Json::key(size_t i) const {
  SPARROW_CHECK(is_object());
  return std::get<JsonObject>(node_->value).at(i).first;
}

Json Json::member(size_t i) const {
  SPARROW_CHECK(is_object());
  const JsonMember& member = std::get<JsonObject>(node_->value).at(i);
  return Json(&member.second, join(path_, member.first));
}

std::optional<Json> Json::find(std::string_view key) const {
  const auto* object = std::get_if<JsonObject>(&node_->value);
  if (object == nullptr) return std::nullopt;
  for (const JsonMember& member : *object) {
    if (member.first != key) continue;
    if (std::holds_alternative<std::monostate>(member.second.value)) return std::nullopt;
    return Json(&member.second, join(path_, key));
  }
  return std::nullopt;
}

Result<Json> Json::at(std::string_view key) const {
  SPARROW_TRY(expect_object());
  if (auto found = find(key)) return *found;
  const std::string path = join(path_, key);
  return Error{Errc::kInvalidArgument, strf("{} is missing", path), path};
}

Error Json::error(std::string_view expectation) const {
  return {Errc::kInvalidArgument,
          strf("{} {}, got {}", path_.empty() ? "the document" : path_, expectation, brief()), path_};
}

Result<int64_t> Json::as_int(int64_t min, int64_t max) const {
  std::optional<int64_t> value;
  if (const auto* i = std::get_if<int64_t>(&node_->value)) value = *i;
  // Beyond 2^53 a double no longer tells which integer was meant.
  if (const auto* d = std::get_if<double>(&node_->value); d != nullptr && std::fabs(*d) <= 0x1p53)
    if (*d == std::trunc(*d)) value = static_cast<int64_t>(*d);
  if (value && *value >= min && *value <= max) return *value;
  return error(strf("must be an integer from {} to {}", min, max));
}

Result<double> Json::as_number() const {
  if (const auto* i = std::get_if<int64_t>(&node_->value)) return static_cast<double>(*i);
  double d = 0;
  if (const auto* found = std::get_if<double>(&node_->value)) d = *found;
  const auto* big = std::get_if<JsonBigInt>(&node_->value);
  // Too large for a double leaves infinity, which is refused like any other.
  if (big != nullptr) d = std::strtod(big->digits.c_str(), nullptr);
  const bool is_float = big != nullptr || std::holds_alternative<double>(node_->value);
  if (is_float && std::isfinite(d)) return d;
  return error("must be a number");
}

Result<bool> Json::as_bool() const {
  if (const auto* b = std::get_if<bool>(&node_->value)) return *b;
  return error("must be true or false");
}

Result<std::string> Json::as_string() const {
  if (const auto* s = std::get_if<std::string>(&node_->value)) return *s;
  return error("must be a string");
}

Status Json::expect_object() const {
  if (is_object()) return Ok{};
  return error("must be an object");
}

Status Json::expect_array() const {
  if (is_array()) return Ok{};
  return error("must be a list");
}

Result<int64_t> Json::int_or(std::string_view key, int64_t fallback, int64_t min, int64_t max) const {
  const auto found = find(key);
  return found ? found->as_int(min, max) : Result<int64_t>(fallback);
}

Result<double> Json::number_or(std::string_view key, double fallback) const {
  const auto found = find(key);
  return found ? found->as_number() : Result<double>(fallback);
}

Result<bool> Json::bool_or(std::string_view key, bool fallback) const {
  const auto found = find(key);
  return found ? found->as_bool() : Result<bool>(fallback);
}

Result<std::string> Json::string_or(std::string_view key, std::string_view fallback) const {
  const auto found = find(key);
  return found ? found->as_string() : Result<std::string>(std::string(fallback));
}

JsonDocument::JsonDocument(std::unique_ptr<JsonNode> root) : root_(std::move(root)) {}
JsonDocument::JsonDocument(JsonDocument&&) noexcept = default;
JsonDocument& JsonDocument::operator=(JsonDocument&&) noexcept = default;
JsonDocument::~JsonDocument() = default;

Result<JsonDocument> JsonDocument::parse(std::string_view text, std::string_view source, JsonLimits limits) {
  if (text.size() > limits.max_bytes)
    return Error{Errc::kCorrupt,
                 strf("{} is {} bytes long; at most {} are allowed", source, text.size(), limits.max_bytes)};
  boost::json::parse_options options;
  options.max_depth = static_cast<size_t>(limits.max_depth);
  std::string reason;
  size_t at = 0;
  try {
    boost::json::basic_parser<TreeBuilder> parser(options, limits.last_of_equal_keys);
    boost::json::error_code ec;
    at = parser.write_some(/*more=*/false, text.data(), text.size(), ec);
    if (ec == boost::json::error::too_deep)
      return Error{Errc::kCorrupt, strf("{} is nested more than {} levels deep at {}", source,
                                        limits.max_depth, position(text, at))};
    if (!ec && at == text.size())
      return JsonDocument(std::make_unique<JsonNode>(parser.handler().take_root()));
    const auto& repeated = parser.handler().repeated_key();
    reason = repeated ? strf("key {} occurs twice in one object", json_quoted(excerpt(*repeated)))
             : ec     ? ec.message()
                      : "text after the end of the document";
  } catch (const std::exception& e) {
    reason = e.what();
  }
  return Error{Errc::kCorrupt, strf("{} is not valid JSON: {} at {}", source, reason, position(text, at))};
}

}  // namespace sparrow
