// SPDX-License-Identifier: Apache-2.0
#include "cli/terminal/history.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "base/strf.h"
#include "base/utf8.h"

namespace sparrow::cli {
namespace {

constexpr size_t kMaxFileBytes = 16 << 20;

std::string encoded(std::string_view entry) {
  std::string line;
  for (const char c : entry) {
    if (c == '\\')
      line += "\\\\";
    else if (c == '\n')
      line += "\\n";
    else
      line += c;
  }
  return line;
}

std::string decoded(std::string_view line) {
  std::string entry;
  for (size_t i = 0; i < line.size(); ++i) {
    const bool escaped = line[i] == '\\' && i + 1 < line.size();
    if (escaped) ++i;
    entry += escaped && line[i] == 'n' ? '\n' : line[i];
  }
  return replace_invalid_utf8(entry);
}

Error file_error(const std::filesystem::path& file, std::string_view reason) {
  return {Errc::kIo, strf("the history is not kept: {}: {}", file.string(), reason)};
}

// An open file of our own, mode 0600.
class OwnFile {
 public:
  OwnFile(const std::filesystem::path& path, int flags)
      : fd_(::open(path.c_str(), flags | O_CREAT | O_CLOEXEC | O_NONBLOCK, 0600)) {
    struct stat info {};
    if (fd_ < 0 || ::fstat(fd_, &info) != 0) return;
    is_regular_ = S_ISREG(info.st_mode);
    size_ = static_cast<size_t>(info.st_size);
    if (is_regular_ && (info.st_mode & 077) != 0) ::fchmod(fd_, 0600);
  }
  ~OwnFile() {
    if (fd_ >= 0) ::close(fd_);
  }
  OwnFile(const OwnFile&) = delete;
  OwnFile& operator=(const OwnFile&) = delete;

  bool is_open() const { return fd_ >= 0; }
  bool is_regular() const { return is_regular_; }
  size_t size() const { return size_; }

  std::string read() const {
    std::string text;
    char buffer[65536];
    for (ssize_t n; text.size() < kMaxFileBytes && (n = ::read(fd_, buffer, sizeof buffer)) > 0;)
      text.append(buffer, static_cast<size_t>(n));
    return text;
  }
  bool write(std::string_view text) const {
    return ::write(fd_, text.data(), text.size()) == static_cast<ssize_t>(text.size());
  }

 private:
  int fd_;
  bool is_regular_ = false;
  size_t size_ = 0;
};

}  // namespace

Status History::load(const std::filesystem::path& file) {
  std::error_code failed;
  if (std::filesystem::create_directories(file.parent_path(), failed); failed)
    return file_error(file, failed.message());
  const OwnFile opened(file, O_RDWR);
  if (!opened.is_open()) return file_error(file, std::strerror(errno));
  if (!opened.is_regular()) return file_error(file, "not a regular file");
  if (opened.size() > kMaxFileBytes) return file_error(file, "larger than 16 MiB");
  const std::string text = opened.read();
  size_t num_lines = 0;
  for (std::string_view rest = text; !rest.empty(); ++num_lines) {
    const size_t end = std::min(rest.find('\n'), rest.size());
    if (end > 0) entries_.push_back(decoded(rest.substr(0, end)));
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
  if (entries_.size() > kMaxEntries)
    entries_.erase(entries_.begin(), entries_.end() - static_cast<ptrdiff_t>(kMaxEntries));
  file_ = file;
  if (num_lines <= 2 * kMaxEntries) return Ok{};
  // Written anew now and then, beside it first, so that a crash loses nothing.
  std::string kept;
  for (const std::string& entry : entries_) kept += encoded(entry) + "\n";
  const std::filesystem::path shorter = file.string() + strf(".{}", ::getpid());
  if (!OwnFile(shorter, O_WRONLY | O_TRUNC).write(kept)) return file_error(shorter, std::strerror(errno));
  std::filesystem::rename(shorter, file, failed);
  return Ok{};
}

void History::add(std::string_view entry) {
  if (entry.empty() || (!entries_.empty() && entries_.back() == entry)) return;
  entries_.emplace_back(entry);
  if (entries_.size() > kMaxEntries) entries_.erase(entries_.begin());
  // One write of one line: several programs may add at the same time.
  if (!file_.empty()) OwnFile(file_, O_WRONLY | O_APPEND).write(encoded(entry) + "\n");
}

std::filesystem::path state_file(std::string_view name) {
  const char* state = std::getenv("XDG_STATE_HOME");
  if (state && *state == '/') return std::filesystem::path(state) / "sparrow" / name;
  const char* home = std::getenv("HOME");
  if (!home || *home != '/') return {};
  return std::filesystem::path(home) / ".local/state/sparrow" / name;
}

}  // namespace sparrow::cli
