// SPDX-License-Identifier: Apache-2.0
#include "server/access_log.h"

#include <algorithm>
#include <ctime>

#include "base/json_writer.h"
#include "base/strf.h"

namespace sparrow {

namespace {

constexpr size_t kMaxTextBytes = 256;  // of each thing that a peer chose

// "2026-11-15T08:30:00.123Z"
std::string timestamp(std::chrono::system_clock::time_point now) {
  const auto since_epoch = now.time_since_epoch();
  const auto millis = std::chrono::duration_cast<std::chrono::milliseconds>(since_epoch).count();
  const std::time_t seconds = millis / 1000;
  std::tm t{};
  gmtime_r(&seconds, &t);
  return strf("{:04}-{:02}-{:02}T{:02}:{:02}:{:02}.{:03}Z", t.tm_year + 1900, t.tm_mon + 1, t.tm_mday,
              t.tm_hour, t.tm_min, t.tm_sec, millis % 1000);
}

std::string_view shortened(std::string_view text) {
  return text.substr(0, kMaxTextBytes);
}

// Plain where a reader cannot be misled, quoted where there are spaces, quotes or anything past ASCII.
void append_word(std::string& out, std::string_view text) {
  text = shortened(text);
  const bool plain = !text.empty() && std::all_of(text.begin(), text.end(), [](char c) {
    return c > 0x20 && c < 0x7f && c != '"' && c != '\\';
  });
  if (plain)
    out += text;
  else if (text.empty())
    out += '-';
  else
    append_json_string(out, text);
}

std::string human_line(const AccessRecord& record, std::chrono::system_clock::time_point now) {
  std::string out = strf("{} {:3} ", timestamp(now), record.status);
  append_word(out, record.request.method);
  out += ' ';
  append_word(out, record.request.path);
  out += strf(" {:.1f}ms {}B {} ", record.seconds * 1e3, record.response_bytes, record.request.peer);
  append_word(out, record.request.request_id);
  for (const auto& note : record.notes) {
    out += ' ' + note.name + '=';
    append_word(out, note.text);
  }
  if (!record.complete) out += " incomplete";
  if (!record.failure.empty()) {
    out += " failure=";
    append_word(out, record.failure);
  }
  out += '\n';
  return out;
}

std::string json_line(const AccessRecord& record, std::chrono::system_clock::time_point now) {
  JsonWriter writer;
  writer.begin_object();
  writer.key("time").string(timestamp(now));
  writer.key("status").integer(record.status);
  writer.key("method").string(shortened(record.request.method));
  writer.key("path").string(shortened(record.request.path));
  writer.key("seconds").number(record.seconds);
  writer.key("bytes").integer(record.response_bytes);
  writer.key("peer").string(record.request.peer);
  writer.key("request_id").string(record.request.request_id);
  writer.key("complete").boolean(record.complete);
  for (const auto& note : record.notes) {
    writer.key(note.name);
    note.is_number ? writer.raw(note.text) : writer.string(shortened(note.text));
  }
  if (!record.failure.empty()) writer.key("failure").string(shortened(record.failure));
  writer.end_object();
  return writer.take() + '\n';
}

}  // namespace

std::string access_line(const AccessRecord& record, LogFormat format,
                        std::chrono::system_clock::time_point now) {
  return format == LogFormat::kJson ? json_line(record, now) : human_line(record, now);
}

void AccessLog::write(const AccessRecord& record) const {
  const std::string line = access_line(record, format_, std::chrono::system_clock::now());
  std::fwrite(line.data(), 1, line.size(), file_);
  std::fflush(file_);
}

}  // namespace sparrow
