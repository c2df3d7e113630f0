// SPDX-License-Identifier: Apache-2.0
#include "text/constraint/schema/formats.h"

#include <utility>

namespace sparrow {
namespace {

// Whoever checks may know no leap years and no leap seconds, so none are written.
#define SPARROW_DATE                                                                                    \
  "[1-9][0-9]{3}-(((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01]))|((0[469]|11)-(0[1-9]|[12][0-9]|30))|(02-" \
  "(0[1-9]|1[0-9]|2[0-8])))"
#define SPARROW_TIME \
  "([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\\.[0-9]{1,6})?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])"
#define SPARROW_LABEL "[A-Za-z0-9]([A-Za-z0-9-]{0,20}[A-Za-z0-9])?"
#define SPARROW_HOST SPARROW_LABEL "(\\." SPARROW_LABEL "){0,4}"
#define SPARROW_BYTE "(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
#define SPARROW_IPV4 SPARROW_BYTE "(\\." SPARROW_BYTE "){3}"
#define SPARROW_HEX "[0-9a-fA-F]"
#define SPARROW_PATH "([A-Za-z0-9._~!$&'()*+,;=:@/-]|%[0-9A-Fa-f]{2})*"

constexpr std::pair<std::string_view, std::string_view> kFormats[] = {
    {"date", SPARROW_DATE},
    {"time", SPARROW_TIME},
    {"date-time", SPARROW_DATE "T" SPARROW_TIME},
    {"duration",
     "P(([0-9]{1,6}Y([0-9]{1,6}M([0-9]{1,6}D)?)?|[0-9]{1,6}M([0-9]{1,6}D)?|[0-9]{1,6}D)(T([0-9]{1,6}H([0-9]{"
     "1,6}M([0-9]"
     "{1,6}S)?)?|[0-9]{1,6}M([0-9]{1,6}S)?|[0-9]{1,6}S))?|T([0-9]{1,6}H([0-9]{1,6}M([0-9]{1,6}S)?)?|[0-9]{1,"
     "6}M([0-9]{1,6}"
     "S)?|[0-9]{1,6}S)|[0-9]{1,6}W)"},
    {"email", "[A-Za-z0-9_+-]+(\\.[A-Za-z0-9_+-]+)*@" SPARROW_HOST},
    {"hostname", SPARROW_HOST},
    {"ipv4", SPARROW_IPV4},
    {"ipv6",
     "(" SPARROW_HEX "{1,4}:){7}" SPARROW_HEX "{1,4}|::|(" SPARROW_HEX "{1,4}:){1,6}:" SPARROW_HEX "{1,4}"},
    {"uuid", SPARROW_HEX "{8}-" SPARROW_HEX "{4}-" SPARROW_HEX "{4}-" SPARROW_HEX "{4}-" SPARROW_HEX "{12}"},
    {"uuid4",
     SPARROW_HEX "{8}-" SPARROW_HEX "{4}-4" SPARROW_HEX "{3}-[89abAB]" SPARROW_HEX "{3}-" SPARROW_HEX "{12}"},
    {"uri", "[A-Za-z][A-Za-z0-9+.-]*://" SPARROW_HOST "(:[0-9]{1,4})?(/" SPARROW_PATH ")?(\\?" SPARROW_PATH
            ")?(#" SPARROW_PATH ")?"},
    {"uri-reference", "(/" SPARROW_LABEL ")*/?(\\?" SPARROW_PATH ")?(#" SPARROW_PATH ")?"},
    {"json-pointer", "(/([A-Za-z0-9_. -]|~0|~1)*)*"},
    // Say what a text is for, not what it looks like.
    {"password", ""},
    {"binary", ""},
    {"path", ""},
    {"file-path", ""},
    {"directory-path", ""},
};

}  // namespace

std::optional<std::string_view> format_pattern(std::string_view format) {
  if (format == "url") format = "uri";
  for (const auto& [name, pattern] : kFormats)
    if (name == format) return pattern;
  return std::nullopt;
}

}  // namespace sparrow
