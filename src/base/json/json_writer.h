// SPDX-License-Identifier: Apache-2.0
// JSON out. Keys keep the order in which they are written, text stays UTF-8, numbers come back as the same
// number.
#pragma once

#include <concepts>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

namespace sparrow {

class Json;

// The text as a JSON string with its quotes. Only what JSON forbids inside a string is escaped; bytes that
// are not UTF-8 become U+FFFD, so that what is written can always be read.
void append_json_string(std::string& out, std::string_view text);

// The shortest digits that read back as the same double, laid out as Python does: 1.0, 0.7, 1e+16, 1e-05.
// JSON has no NaN and no infinity: they become null.
void append_json_number(std::string& out, double value);

// Writes one document piece by piece. The caller keeps it well formed: a key before each member of an object,
// one value after each key, every begin_* with its end_*.
class JsonWriter {
 public:
  enum class Style {
    kCompact,   // {"a":1,"b":[2,3]}
    kSpaced,    // {"a": 1, "b": [2, 3]}, as Python's json.dumps writes it
    kIndented,  // a line for each member and element, two spaces further in
  };

  explicit JsonWriter(Style style = Style::kCompact) : style_(style) {}

  JsonWriter& begin_object() { return open('{'); }
  JsonWriter& end_object() { return close('}'); }
  JsonWriter& begin_array() { return open('['); }
  JsonWriter& end_array() { return close(']'); }
  JsonWriter& key(std::string_view name);

  JsonWriter& string(std::string_view text);
  JsonWriter& number(double value);
  JsonWriter& boolean(bool value) { return raw(value ? "true" : "false"); }
  JsonWriter& null() { return raw("null"); }
  template <std::integral T>
  JsonWriter& integer(T value) {
    static_assert(!std::same_as<T, bool>, "booleans have a function of their own");
    if constexpr (std::signed_integral<T>) return signed_integer(value);
    return unsigned_integer(value);
  }
  // A value that is JSON text already.
  JsonWriter& raw(std::string_view json);

  const std::string& text() const { return out_; }
  // The document; the writer is empty again.
  std::string take() {
    needs_comma_ = false;
    return take_part();
  }
  // What was written since the last call; the document goes on.
  std::string take_part() { return std::exchange(out_, {}); }

 private:
  JsonWriter& open(char bracket);
  JsonWriter& close(char bracket);
  JsonWriter& signed_integer(int64_t value);
  JsonWriter& unsigned_integer(uint64_t value);
  void separate();
  void new_line();

  Style style_;
  bool needs_comma_ = false;  // the next key or element follows another one
  bool after_key_ = false;    // the next value belongs on the line of its key
  int depth_ = 0;
  std::string out_;
};

// A value that was read, with all that is in it. Numbers come back as the same number, but for one that is
// too large for a double: it stays too large, so that whoever reads it refuses it.
void write_json(const Json& value, JsonWriter& out);

}  // namespace sparrow
