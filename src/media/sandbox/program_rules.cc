// SPDX-License-Identifier: Apache-2.0
#include "media/sandbox/program_rules.h"

#include <fcntl.h>
#include <linux/landlock.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include <cstdint>
#include <filesystem>

#include "media/sandbox/confine.h"

namespace sparrow {
namespace {

// Where programs and what they need to start lie.
constexpr const char* kSystemPaths[] = {
    "/usr", "/bin", "/lib", "/lib32", "/lib64", "/etc/ld.so.cache", "/etc/alternatives"};

constexpr uint64_t kReadFile = LANDLOCK_ACCESS_FS_READ_FILE | LANDLOCK_ACCESS_FS_EXECUTE;
constexpr uint64_t kRead = kReadFile | LANDLOCK_ACCESS_FS_READ_DIR;
// What the first Landlock knows. Its successors know more ways to change files, which all need one that is
// open for writing or a folder that may be changed.
constexpr uint64_t kAnyAccess = kRead | LANDLOCK_ACCESS_FS_WRITE_FILE | LANDLOCK_ACCESS_FS_REMOVE_DIR |
                                LANDLOCK_ACCESS_FS_REMOVE_FILE | LANDLOCK_ACCESS_FS_MAKE_CHAR |
                                LANDLOCK_ACCESS_FS_MAKE_DIR | LANDLOCK_ACCESS_FS_MAKE_REG |
                                LANDLOCK_ACCESS_FS_MAKE_SOCK | LANDLOCK_ACCESS_FS_MAKE_FIFO |
                                LANDLOCK_ACCESS_FS_MAKE_BLOCK | LANDLOCK_ACCESS_FS_MAKE_SYM;

// What is not there needs no rule.
bool allow_reading(int rules, const std::string& path) {
  const Fd found(::open(path.c_str(), O_PATH | O_CLOEXEC));
  struct stat info {};
  if (!found || ::fstat(found.get(), &info) != 0) return true;
  const landlock_path_beneath_attr rule{.allowed_access = S_ISDIR(info.st_mode) ? kRead : kReadFile,
                                        .parent_fd = found.get()};
  return ::syscall(SYS_landlock_add_rule, rules, LANDLOCK_RULE_PATH_BENEATH, &rule, 0) == 0;
}

// A program that was put elsewhere: /opt/ffmpeg for /opt/ffmpeg/bin/ffmpeg, which may have its libraries
// there, else the file alone.
std::string home_of(const std::string& program) {
  std::error_code failed;
  const std::filesystem::path real = std::filesystem::canonical(program, failed);
  if (failed) return program;
  const std::filesystem::path folder = real.parent_path();
  return folder.filename() == "bin" ? folder.parent_path().string() : real.string();
}

// An empty Fd: this kernel cannot.
Fd file_rules(const std::string& program) {
  const landlock_ruleset_attr handled{.handled_access_fs = kAnyAccess};
  Fd rules(static_cast<int>(::syscall(SYS_landlock_create_ruleset, &handled, sizeof handled, 0)));
  if (!rules) return rules;
  bool complete = allow_reading(rules.get(), home_of(program));
  for (const char* path : kSystemPaths) complete = complete && allow_reading(rules.get(), path);
  return complete ? std::move(rules) : Fd();
}

}  // namespace

ProgramRules::ProgramRules(const std::string& program) : files_(file_rules(program)) {}

bool ProgramRules::apply() const {
  return drop_privileges() && (!files_ || ::syscall(SYS_landlock_restrict_self, files_.get(), 0) == 0) &&
         calls_.install();
}

}  // namespace sparrow
