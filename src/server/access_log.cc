// SPDX-License-Identifier: Apache-2.0
#include "server/access_log.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <ctime>
#include <mutex>
#include <utility>

#include "base/json/json_writer.h"
#include "base/strf.h"

namespace sparrow {

namespace {

constexpr size_t kMaxTextBytes = 256;  // of each thing that a peer chose
constexpr size_t kMaxQueuedBytes = size_t{4} << 20;
constexpr std::chrono::seconds kClosingTime{1};

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

// Not through a FILE: its lock would be held as long as nobody reads.
void write_all(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::write(fd, bytes.data(), bytes.size());
    if (n < 0 && errno != EINTR) return;
    bytes.remove_prefix(static_cast<size_t>(std::max<ssize_t>(n, 0)));
  }
}

std::string lost_line(int64_t count, LogFormat format) {
  const std::string time = timestamp(std::chrono::system_clock::now());
  if (format == LogFormat::kHuman) return strf("{} {} lines are lost: the log was not read\n", time, count);
  JsonWriter writer;
  writer.begin_object().key("time").string(time).key("lost_lines").integer(count).end_object();
  return writer.take() + '\n';
}

}  // namespace

std::string access_line(const AccessRecord& record, LogFormat format,
                        std::chrono::system_clock::time_point now) {
  return format == LogFormat::kJson ? json_line(record, now) : human_line(record, now);
}

struct AccessLog::Queue {
  std::mutex mutex;
  std::condition_variable changed;
  std::string lines;
  int64_t num_lost = 0;
  bool closing = false, closed = false;
};

AccessLog::AccessLog(int fd, LogFormat format) : format_(format), queue_(std::make_shared<Queue>()) {
  thread_ = std::thread([queue = queue_, fd, format] { run(*queue, fd, format); });
}

AccessLog::~AccessLog() {
  std::unique_lock lock(queue_->mutex);
  queue_->closing = true;
  queue_->changed.notify_all();
  const bool closed = queue_->changed.wait_for(lock, kClosingTime, [&] { return queue_->closed; });
  lock.unlock();
  closed ? thread_.join() : thread_.detach();
}

void AccessLog::write(const AccessRecord& record) const {
  write_line(access_line(record, format_, std::chrono::system_clock::now()));
}

void AccessLog::write_line(std::string_view line) const {
  const std::lock_guard lock(queue_->mutex);
  if (queue_->lines.size() + line.size() > kMaxQueuedBytes) {
    ++queue_->num_lost;
    return;
  }
  queue_->lines += line;
  queue_->changed.notify_one();
}

void AccessLog::run(Queue& queue, int fd, LogFormat format) {
  std::string lines;
  std::unique_lock lock(queue.mutex);
  for (;;) {
    queue.changed.wait(lock, [&] { return queue.closing || !queue.lines.empty(); });
    if (queue.lines.empty()) break;
    lines.clear();
    lines.swap(queue.lines);
    if (const int64_t lost = std::exchange(queue.num_lost, 0); lost > 0) lines += lost_line(lost, format);
    lock.unlock();
    write_all(fd, lines);
    lock.lock();
  }
  queue.closed = true;
  queue.changed.notify_all();
}

}  // namespace sparrow
