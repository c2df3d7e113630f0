// SPDX-License-Identifier: Apache-2.0
#include "text/jinja/builtins/format_method.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "base/strf.h"
#include "text/jinja/value/compare.h"
#include "text/jinja/value/format.h"
#include "text/jinja/value/unicode.h"

namespace sparrow::jinja {

namespace {

constexpr int kMaxWidth = 10'000;

std::string with_commas(std::string digits) {
  const size_t end = std::min(digits.size(), digits.find_first_not_of("0123456789"));
  for (size_t at = end; at > 3; at -= 3) digits.insert(at - 3, ",");
  return digits;
}

// Without its sign.
Result<std::string> float_digits(double d, const FieldSpec& spec) {
  d = std::fabs(d);
  const int precision = spec.precision < 0 ? 6 : spec.precision;
  if (!std::isfinite(d)) return std::string(std::isnan(d) ? "nan" : "inf");
  switch (spec.type) {
    case 'f':
    case 'F':
      return strf("{:.{}f}", d, precision);
    case 'e':
      return strf("{:.{}e}", d, precision);
    case 'E':
      return strf("{:.{}E}", d, precision);
    case 'g':
      return strf("{:.{}g}", d, precision);
    case 'G':
      return strf("{:.{}G}", d, precision);
    case '%':
      return strf("{:.{}f}%", d * 100, precision);
    case 0:
      return spec.precision < 0 ? float_repr(d) : strf("{:.{}g}", d, precision);
    default:
      return template_error(strf("Unknown format code '{}' for object of type 'float'", spec.type));
  }
}

Result<std::string> integer_digits(const Value& v, const FieldSpec& spec) {
  if (v.is(Kind::kBigInt)) return std::string(v.view().substr(v.view()[0] == '-' ? 1 : 0));
  const int64_t i = v.as_integer();
  const uint64_t magnitude = i < 0 ? ~static_cast<uint64_t>(i) + 1 : static_cast<uint64_t>(i);
  switch (spec.type) {
    case 'x':
      return strf("{}{:x}", spec.alternate ? "0x" : "", magnitude);
    case 'X':
      return strf("{}{:X}", spec.alternate ? "0X" : "", magnitude);
    case 'o':
      return strf("{}{:o}", spec.alternate ? "0o" : "", magnitude);
    case 'b':
      return strf("{}{:b}", spec.alternate ? "0b" : "", magnitude);
    case 0:
    case 'd':
    case 'n':
      return strf("{}", magnitude);
    default:
      return template_error(strf("Unknown format code '{}' for object of type 'int'", spec.type));
  }
}

bool is_negative(const Value& v) {
  if (v.is(Kind::kFloat)) return std::signbit(v.number) && !std::isnan(v.number);
  return v.is(Kind::kBigInt) ? v.view()[0] == '-' : v.as_integer() < 0;
}

void append_aligned(std::string_view sign, std::string_view body, const FieldSpec& spec, char align,
                    TextBuilder& out) {
  const size_t size = num_chars(sign) + num_chars(body);
  const auto width = static_cast<size_t>(spec.width);
  const size_t missing = width > size ? width - size : 0;
  const size_t left = align == '<' ? 0 : align == '^' ? missing / 2 : missing;
  if (align == '=') out += sign;
  for (size_t i = 0; i < left; ++i) out += spec.fill;
  if (align != '=') out += sign;
  out += body;
  for (size_t i = left; i < missing; ++i) out += spec.fill;
}

// "[[fill]align][sign][#][0][width][,][.precision][type]".
Result<FieldSpec> parse_spec(std::string_view text) {
  const auto is_align = [](std::string_view c) { return c == "<" || c == ">" || c == "^" || c == "="; };
  FieldSpec spec;
  if (!text.empty()) {
    const size_t first = char_bytes(text);
    if (is_align(text.substr(first, 1))) {
      spec.fill = text.substr(0, first);
      spec.align = text[first];
      text.remove_prefix(first + 1);
    } else if (is_align(text.substr(0, 1))) {
      spec.align = text[0];
      text.remove_prefix(1);
    }
  }
  const auto skip = [&text](std::string_view any) {
    const bool found = !text.empty() && any.find(text[0]) != std::string_view::npos;
    const char c = found ? text[0] : 0;
    if (found) text.remove_prefix(1);
    return c;
  };
  const auto number = [&text](int& out) {
    const auto parsed = std::from_chars(text.data(), text.data() + text.size(), out);
    text.remove_prefix(static_cast<size_t>(parsed.ptr - text.data()));
    return parsed.ec == std::errc() && out >= 0 && out <= kMaxWidth;
  };
  if (const char sign = skip("+- ")) spec.sign = sign;
  spec.alternate = skip("#") != 0;
  if (skip("0") != 0 && spec.align == 0) {
    spec.fill = "0";
    spec.align = '=';
  }
  if (!text.empty() && text[0] >= '0' && text[0] <= '9' && !number(spec.width))
    return template_error("a width in a format is too large");
  spec.comma = skip(",") != 0;
  if (skip(".") != 0 && !number(spec.precision)) return template_error("Format specifier missing precision");
  if (text.size() > 1) return template_error("Invalid format specifier");
  if (!text.empty()) spec.type = text[0];
  return spec;
}

// Which value a field such as {0.name[key]} stands for.
class FieldValues {
 public:
  FieldValues(Context& context, const Args& args) : context_(context), args_(args) {}

  Result<Value> value(std::string_view field) {
    const size_t end = std::min(field.size(), field.find_first_of(".["));
    Value v = SPARROW_TRY(root(field.substr(0, end)));
    for (field.remove_prefix(end); !field.empty();) {
      const bool bracket = field[0] == '[';
      field.remove_prefix(1);
      const size_t stop = std::min(field.size(), bracket ? field.find(']') : field.find_first_of(".["));
      if (bracket && stop == field.size()) return template_error("Missing ']' in format string");
      const std::string_view part = field.substr(0, stop);
      int64_t index = 0;
      const auto parsed = std::from_chars(part.data(), part.data() + part.size(), index);
      const bool is_index = bracket && !part.empty() && parsed.ptr == part.data() + part.size();
      v = is_index  ? SPARROW_TRY(item(context_, v, int_value(index)))
          : bracket ? SPARROW_TRY(item(context_, v, text_value(part)))
                    : SPARROW_TRY(attribute(context_, v, part));
      field.remove_prefix(stop + (bracket ? 1 : 0));
    }
    return v;
  }

 private:
  Result<Value> root(std::string_view name) {
    size_t index = 0;
    const auto parsed = std::from_chars(name.data(), name.data() + name.size(), index);
    const bool numbered = parsed.ec == std::errc() && parsed.ptr == name.data() + name.size();
    if ((numbered && next_ > 0) || (name.empty() && any_numbered_))
      return template_error("format: fields are either all numbered or none is");
    any_numbered_ = any_numbered_ || numbered;
    if (name.empty()) return at(next_++);
    if (numbered) return at(index);
    for (const auto& [known, value] : args_.named)
      if (known == name) return value;
    return template_error(strf("format: there is no argument '{}'", name));
  }
  Result<Value> at(size_t index) {
    if (index < args_.positional.size()) return args_.positional[index];
    return template_error("Replacement index out of range for positional args tuple");
  }

  Context& context_;
  const Args& args_;
  size_t next_ = 0;
  bool any_numbered_ = false;
};

Status append_field(Context& context, FieldValues& values, std::string_view field, TextBuilder& out) {
  const size_t colon = std::min(field.size(), field.find(':'));
  std::string_view name = field.substr(0, colon);
  const size_t bang = name.find('!');
  const std::string_view conversion = bang == std::string_view::npos ? "" : name.substr(bang + 1);
  Value v = SPARROW_TRY(values.value(name.substr(0, bang)));
  if (!conversion.empty()) {
    if (conversion != "s" && conversion != "r")
      return template_error("Unknown conversion specifier in format");
    TextBuilder text(context.heap);
    SPARROW_TRY(conversion == "r" ? append_repr(context.heap, v, text) : append_str(context.heap, v, text));
    v = SPARROW_TRY(context.heap.string(text));
  }
  const FieldSpec spec = SPARROW_TRY(parse_spec(field.substr(std::min(field.size(), colon + 1))));
  SPARROW_TRY(append_formatted(context.heap, v, spec, out));
  return context.heap.spend_text(out.size());
}

}  // namespace

Status append_formatted(Heap& heap, const Value& v, const FieldSpec& spec, TextBuilder& out) {
  if (spec.width > kMaxWidth || spec.precision > kMaxWidth)
    return template_error("a width in a format is too large");
  const bool wants_float =
      spec.type != 0 && std::string_view("fFeEgG%").find(spec.type) != std::string_view::npos;
  const bool plain_bool = v.is(Kind::kBool) && spec.type == 0;
  if (v.is_number() && !plain_bool && spec.type != 's') {
    const bool as_float = v.is(Kind::kFloat) || wants_float;
    std::string digits =
        as_float ? SPARROW_TRY(float_digits(v.as_double(), spec)) : SPARROW_TRY(integer_digits(v, spec));
    if (spec.comma) digits = with_commas(std::move(digits));
    const std::string sign = is_negative(v) ? "-" : spec.sign == '-' ? "" : std::string(1, spec.sign);
    append_aligned(sign, digits, spec, spec.align == 0 ? '>' : spec.align, out);
    return Ok{};
  }
  if (spec.type != 0 && spec.type != 's')
    return template_error(strf("Unknown format code '{}' for object of type '{}'", spec.type, type_name(v)));
  std::string_view text = SPARROW_TRY(str_view(heap, v));
  if (spec.precision >= 0) text = text.substr(0, char_offset(text, static_cast<size_t>(spec.precision)));
  append_aligned("", text, spec, spec.align == 0 || spec.align == '=' ? '<' : spec.align, out);
  return Ok{};
}

Result<Value> brace_format(Context& context, std::string_view format, const Args& args) {
  FieldValues values(context, args);
  TextBuilder out(context.heap);
  for (size_t i = 0; i < format.size();) {
    const char c = format[i];
    if (c != '{' && c != '}') {
      const size_t end = std::min(format.size(), format.find_first_of("{}", i));
      out += format.substr(i, end - i);
      i = end;
    } else if (i + 1 < format.size() && format[i + 1] == c) {
      out += format.substr(i, 1);
      i += 2;
    } else if (c == '}') {
      return template_error("Single '}' encountered in format string");
    } else {
      const size_t end = format.find_first_of("{}", i + 1);
      if (end == std::string_view::npos || format[end] == '{')
        return template_error("a field of a format string has no end, or has a field inside");
      SPARROW_TRY(append_field(context, values, format.substr(i + 1, end - i - 1), out));
      i = end + 1;
    }
  }
  return context.heap.string(out);
}

namespace {

// The printf kind of formatting: "%5.1f%%" % x, "%(name)s" % dict.
class PercentFormat {
 public:
  PercentFormat(Heap& heap, std::string_view format, const Value& values)
      : heap_(heap), format_(format), values_(values), out_(heap) {}

  Result<Value> run() {
    while (at_ < format_.size()) {
      if (format_[at_] != '%') {
        const size_t end = std::min(format_.size(), format_.find('%', at_));
        out_ += format_.substr(at_, end - at_);
        at_ = end;
        continue;
      }
      ++at_;
      SPARROW_TRY(field());
      SPARROW_TRY(heap_.spend_text(out_.size()));
    }
    const bool all_used = is_tuple() ? next_ == values_.list->size
                                     : next_ > 0 || values_.is(Kind::kDict) || values_.is(Kind::kList) ||
                                           values_.is_undefined();
    if (!named_ && !all_used) return template_error("not all arguments converted during string formatting");
    return heap_.string(out_);
  }

 private:
  bool is_tuple() const { return values_.is(Kind::kList) && values_.list->style == ListStyle::kTuple; }
  bool at_one_of(std::string_view chars) const {
    return at_ < format_.size() && chars.find(format_[at_]) != std::string_view::npos;
  }

  Result<Value> take() {
    if (is_tuple() && next_ < values_.list->size) return values_.list->items[next_++];
    if (!is_tuple() && next_++ == 0) return values_;
    return template_error("not enough arguments for format string");
  }

  Result<std::optional<Value>> named_value() {
    if (!at_one_of("(")) return std::optional<Value>();
    const size_t close = format_.find(')', at_);
    if (close == std::string_view::npos) return template_error("incomplete format key");
    if (!values_.is(Kind::kDict)) return template_error("format requires a mapping");
    const Value key = text_value(format_.substr(at_ + 1, close - at_ - 1));
    const Value* found = SPARROW_TRY(find_key(heap_, *values_.dict, key));
    if (found == nullptr) return template_error(strf("format: there is no key '{}'", key.view()));
    named_ = true;
    at_ = close + 1;
    return std::optional<Value>(*found);
  }

  void number(int& into) {
    for (into = 0; at_one_of("0123456789") && into <= kMaxWidth; ++at_)
      into = into * 10 + (format_[at_] - '0');
  }

  // Flags, width, precision and type.
  Result<FieldSpec> spec() {
    FieldSpec spec{.align = '>'};
    for (; at_one_of("-+ 0#"); ++at_) {
      const char flag = format_[at_];
      if (flag == '-') spec.align = '<';
      if (flag == '+' || (flag == ' ' && spec.sign == '-')) spec.sign = flag;
      if (flag == '#') spec.alternate = true;
      if (flag == '0' && spec.align == '>') spec.align = '=';
    }
    number(spec.width);
    if (at_one_of(".")) {
      ++at_;
      number(spec.precision);
    }
    if (at_ >= format_.size()) return template_error("incomplete format");
    spec.type = format_[at_++];
    return spec;
  }

  Status field() {
    const std::optional<Value> named = SPARROW_TRY(named_value());
    FieldSpec spec = SPARROW_TRY(this->spec());
    if (spec.type == '%') {
      out_ += '%';
      return Ok{};
    }
    Value v = named ? *named : SPARROW_TRY(take());
    if (spec.type == 'r') {
      TextBuilder text(heap_);
      SPARROW_TRY(append_repr(heap_, v, text));
      v = SPARROW_TRY(heap_.string(text));
      spec.type = 's';
    }
    if (spec.type == 's') {
      v = SPARROW_TRY(str_value(heap_, v));
      if (spec.align == '=') spec.align = '>';
    } else {
      v = SPARROW_TRY(checked_number(v, spec));
    }
    if (spec.align == '=') spec.fill = "0";
    return append_formatted(heap_, v, spec, out_);
  }

  static Result<Value> checked_number(const Value& v, FieldSpec& spec) {
    if (spec.type == 'i' || spec.type == 'u') spec.type = 'd';
    if (std::string_view("dxXofFeEgG").find(spec.type) == std::string_view::npos)
      return template_error(strf("unsupported format character '{}'", spec.type));
    if (!v.is_number())
      return template_error(strf("%{} format: a real number is required, not {}", spec.type, type_name(v)));
    if (spec.type != 'd' || !v.is(Kind::kFloat)) return v;
    if (!(std::fabs(v.number) < 0x1p63))
      return template_error("cannot convert a float of that size to integer");
    return int_value(static_cast<int64_t>(v.number));
  }

  Heap& heap_;
  std::string_view format_;
  const Value& values_;
  size_t at_ = 0;
  size_t next_ = 0;     // of a tuple's items
  bool named_ = false;  // a field took its value by name
  TextBuilder out_;
};

}  // namespace

Result<Value> percent_format(Heap& heap, std::string_view format, const Value& values) {
  return PercentFormat(heap, format, values).run();
}

}  // namespace sparrow::jinja
