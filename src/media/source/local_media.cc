// SPDX-License-Identifier: Apache-2.0
#include "media/source/local_media.h"

#include <fcntl.h>
#include <linux/openat2.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/strf.h"
#include "base/utf8.h"
#include "media/source/ascii.h"

namespace sparrow {
namespace {

constexpr std::string_view kScheme = "file://", kLocalhost = "localhost";
constexpr size_t kMaxPathBytes = 4096;

Error invalid(std::string_view url, std::string_view why) {
  return {Errc::kInvalidArgument, strf("URL {}: {}", excerpt(replace_invalid_utf8(url)), why)};
}

int hex_value(char c) {
  if (is_digit(c)) return c - '0';
  const char small = lower(c);
  return small >= 'a' && small <= 'f' ? small - 'a' + 10 : -1;
}

// Where the kernel has no openat2: every part by itself, and no link at all.
Fd open_without_links(int folder, const std::string& path) {
  Fd at(::fcntl(folder, F_DUPFD_CLOEXEC, 0));
  for (size_t start = 0; at && start < path.size();) {
    const size_t slash = std::min(path.find('/', start), path.size());
    const std::string part = path.substr(start, slash - start);
    const int kind = slash < path.size() ? O_DIRECTORY : 0;
    at = Fd(::openat(at.get(), part.c_str(), O_PATH | O_CLOEXEC | O_NOFOLLOW | kind));
    start = slash + 1;
  }
  return at;
}

// A handle that is not opened yet: opening a device or a pipe can do things.
Fd find_below(int folder, const std::string& path) {
  open_how how{};
  how.flags = O_PATH | O_CLOEXEC;
  how.resolve = RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS;
  Fd found(static_cast<int>(::syscall(SYS_openat2, folder, path.c_str(), &how, sizeof how)));
  if (!found && (errno == ENOSYS || errno == EPERM)) return open_without_links(folder, path);
  return found;
}

// No more than `most` bytes, however the file grows meanwhile.
Result<MediaBytes> read_all(const Fd& file, size_t expected, size_t most) {
  MediaBytes bytes(expected + 1);  // one more: to see the end
  size_t size = 0;
  for (;;) {
    const ssize_t n = ::read(file.get(), bytes.data() + size, bytes.size() - size);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return Error{Errc::kIo, strf("a media file cannot be read: {}", std::strerror(errno))};
    if (n == 0) break;
    size += static_cast<size_t>(n);
    if (size > most) return Error{Errc::kInvalidArgument, strf("a media file of more than {} bytes", most)};
    if (size == bytes.size()) bytes.resize(std::min(size * 2, most + 1));
  }
  bytes.resize(size);
  return bytes;
}

}  // namespace

bool is_file_url(std::string_view url) {
  return lower(url.substr(0, kScheme.size())) == kScheme;
}

Result<std::string> path_of_file_url(std::string_view url) {
  if (!is_file_url(url)) return invalid(url, "not a file:// URL");
  std::string_view rest = url.substr(kScheme.size());
  if (lower(rest.substr(0, kLocalhost.size())) == kLocalhost) rest.remove_prefix(kLocalhost.size());
  if (!rest.starts_with('/')) return invalid(url, "a file:// URL names an absolute path and no other host");
  if (rest.size() > kMaxPathBytes) return invalid(url, "its path is too long");
  std::string path;
  for (size_t i = 0; i < rest.size(); ++i) {
    char c = rest[i];
    if (c == '?' || c == '#') return invalid(url, "a file:// URL has no query and no fragment");
    if (c == '%') {
      const int high = i + 2 < rest.size() ? hex_value(rest[i + 1]) : -1;
      const int low = i + 2 < rest.size() ? hex_value(rest[i + 2]) : -1;
      if (high < 0 || low < 0) return invalid(url, "it has an escape that is none");
      c = static_cast<char>(high * 16 + low);
      i += 2;
    }
    if (c == '\0') return invalid(url, "it has a zero byte");
    path += c;
  }
  return path;
}

Result<LocalMedia> LocalMedia::open(const std::string& folder) {
  const auto refused = [&](std::string_view why) {
    return Error{Errc::kInvalidArgument, strf("--allowed-local-media-path {}: {}", folder, why),
                 "allowed-local-media-path"};
  };
  if (!folder.starts_with('/')) return refused("not an absolute path");
  LocalMedia media;
  media.folder_ = folder.substr(0, folder.find_last_not_of('/') + 1);
  media.fd_ = Fd(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!media.fd_) return refused(std::strerror(errno));
  return media;
}

Result<MediaBytes> LocalMedia::read(const std::string& path, size_t max_bytes) const {
  const Error refused{Errc::kInvalidArgument, strf("file {} is not a file below the allowed path",
                                                   excerpt(replace_invalid_utf8(path)))};
  if (!path.starts_with(folder_ + "/") || path.find('\0') != path.npos) return refused;
  const size_t start = path.find_first_not_of('/', folder_.size());
  if (start == path.npos) return refused;
  const std::string relative = path.substr(start);
  if (("/" + relative + "/").find("/../") != std::string::npos) return refused;
  const Fd found = find_below(fd_.get(), relative);
  struct stat info {};
  if (!found || ::fstat(found.get(), &info) != 0 || !S_ISREG(info.st_mode)) return refused;
  if (static_cast<uint64_t>(info.st_size) > max_bytes)
    return Error{Errc::kInvalidArgument,
                 strf("a media file of {} bytes; at most {} are allowed", info.st_size, max_bytes)};
  // The very file that was found, whatever its path leads to by now.
  const Fd file(::open(strf("/proc/self/fd/{}", found.get()).c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY));
  if (!file) return refused;
  return read_all(file, static_cast<size_t>(info.st_size), max_bytes);
}

}  // namespace sparrow
