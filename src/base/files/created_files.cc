// SPDX-License-Identifier: Apache-2.0
#include "base/files/created_files.h"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

#include "base/check.h"
#include "base/files/mapped_file.h"

namespace sparrow {

namespace fs = std::filesystem;

std::atomic<const CreatedFiles::Created*> CreatedFiles::last_of_all{nullptr};

Result<CreatedFiles> CreatedFiles::create(const fs::path& dir, uint64_t bytes) {
  constexpr double kMiB = 1024.0 * 1024;
  if (dir.empty()) return Error{Errc::kInvalidArgument, "the folder to write to has an empty name"};
  CreatedFiles files(dir);
  std::error_code ec;
  fs::path path;
  for (const fs::path& name : dir) {
    path /= name;
    if (fs::exists(path, ec)) continue;
    if (fs::create_directory(path, ec)) files.push(path);
    if (ec) return Error{Errc::kIo, strf("cannot create {}: {}", quoted(dir), ec.message())};
  }
  const fs::space_info space = fs::space(dir, ec);
  if (!ec && space.available < bytes)
    return Error{
        Errc::kIo,
        strf("{} needs {:.1f} MiB and its disk has {:.1f} MiB left: free some, or name a folder elsewhere",
             quoted(dir), static_cast<double>(bytes) / kMiB, static_cast<double>(space.available) / kMiB)};
  return files;
}

CreatedFiles::~CreatedFiles() {
  if (!last_) return;
  remove(last_.get());
  last_of_all = nullptr;
}

Result<fs::path> CreatedFiles::add(std::string_view name) {
  fs::path path = dir_ / name;
  const int file = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
  if (file < 0 && errno == EEXIST)
    return Error{
        Errc::kInvalidArgument,
        strf("{} exists already: name a new folder, or remove what an interrupted run has left there",
             quoted(path))};
  if (file < 0)
    return Error{Errc::kIo,
                 strf("cannot create {}: {}", quoted(path), std::generic_category().message(errno))};
  ::close(file);
  push(path);
  return path;
}

void CreatedFiles::keep() {
  last_of_all = nullptr;
  last_.reset();
}

void CreatedFiles::remove_when_interrupted() {
  struct sigaction action {};
  action.sa_handler = [](int signal) {
    remove_before_exit();
    ::raise(signal);  // its usual end: see the flags
  };
  action.sa_flags = SA_RESETHAND | SA_NODEFER;
  sigemptyset(&action.sa_mask);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGQUIT}) {
    struct sigaction before {};
    SPARROW_CHECK(sigaction(signal, nullptr, &before) == 0);
    if (before.sa_handler != SIG_IGN) SPARROW_CHECK(sigaction(signal, &action, nullptr) == 0);  // nohup
  }
}

// Only calls that POSIX allows in a handler.
void CreatedFiles::remove(const Created* last) {
  for (; last != nullptr; last = last->before.get())
    if (::unlink(last->path.c_str()) != 0) ::rmdir(last->path.c_str());
}

void CreatedFiles::push(std::string path) {
  last_.reset(new Created{std::move(path), std::move(last_)});
  last_of_all = last_.get();
}

}  // namespace sparrow
