// SPDX-License-Identifier: Apache-2.0
// A worker that does what its job says, for the most part things that no decoder should.
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <new>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "media/picture/picture_work.h"
#include "media/sandbox/wire.h"
#include "media/sandbox/worker.h"

namespace {

using namespace sparrow;
using Output = std::span<std::byte>;

std::string start_report;  // what it had before it was locked up

std::string what_is_there() {
  std::string report;
  if (DIR* const folder = ::opendir("/proc/self/fd")) {
    const int own = ::dirfd(folder);
    while (const dirent* entry = ::readdir(folder))
      if (entry->d_name[0] != '.' && std::atoi(entry->d_name) != own)
        report += std::string(entry->d_name) + " ";
    ::closedir(folder);
  }
  report += "environment";
  for (char** variable = environ; *variable; ++variable) report += std::string(" ") + *variable;
  return report;
}

size_t answer(Output output, std::string_view text) {
  std::memcpy(output.data(), text.data(), text.size());
  return text.size();
}

void send_reply(const ReplyMessage& reply, size_t size = sizeof(ReplyMessage)) {
  [[maybe_unused]] const ssize_t sent = ::write(kWorkerSocket, &reply, size);
}

// Not inlined, and more to do after the call: it stays a recursion.
[[gnu::noinline]] int dive(int depth) {
  volatile char page[4096] = {};
  page[depth % 4096] = 1;
  return depth < 0 ? 0 : dive(depth + 1) + page[0];
}

size_t take_memory() {
  std::vector<std::vector<char>> taken;
  for (;;) taken.emplace_back(size_t{16} << 20, 'x');
}

// Not through malloc: whatever the kernel gives.
size_t take_pages(Output output) {
  size_t mapped = 0;
  constexpr size_t kPiece = size_t{16} << 20;
  for (; mapped < (size_t{1} << 40); mapped += kPiece)
    if (::mmap(nullptr, kPiece, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0) ==
        MAP_FAILED)
      break;
  return answer(output, std::to_string(mapped));
}

const std::map<std::string_view, std::function<size_t(Output)>>& deeds() {
  const auto call = [](auto... arguments) {
    return [=](Output) { return ::syscall(arguments...) >= 0 ? size_t{0} : size_t{0}; };
  };
  static const std::map<std::string_view, std::function<size_t(Output)>> all{
      {"segv",
       [](Output) -> size_t {
         volatile size_t* volatile nowhere = nullptr;
         return *nowhere;
       }},
      {"abort", [](Output) -> size_t { std::abort(); }},
      {"exit", [](Output) -> size_t { ::_exit(0); }},
      {"stack", [](Output) -> size_t { return static_cast<size_t>(dive(0)); }},
      {"spin",
       [](Output) -> size_t {
         volatile bool on = true;
         while (on) continue;
         return 0;
       }},
      {"sleep",
       [](Output) -> size_t {  // as a deadlock does
         for (int word = 0;;) ::syscall(SYS_futex, &word, 0 /* wait */, 0, nullptr, nullptr, 0);
       }},
      {"throw", [](Output) -> size_t { throw std::runtime_error("a library's\nown words"); }},
      {"memory", [](Output) { return take_memory(); }},
      {"pages", take_pages},
      {"report", [](Output output) { return answer(output, start_report); }},
      // What is forbidden.
      {"open", call(SYS_openat, AT_FDCWD, "/etc/passwd", O_RDONLY)},
      {"read a descriptor",
       [](Output) -> size_t {
         char c;
         return ::read(0, &c, 1) >= 0;
       }},
      {"write a descriptor", [](Output) -> size_t { return ::write(2, "!", 1) >= 0; }},
      {"socket", call(SYS_socket, AF_INET, SOCK_STREAM, 0)},
      {"connect", call(SYS_connect, kWorkerSocket, nullptr, 0)},
      {"execve", call(SYS_execve, "/bin/true", nullptr, nullptr)},
      {"fork", call(SYS_clone, SIGCHLD, 0, 0, 0, 0)},
      {"kill", call(SYS_kill, 1, 0)},
      {"ptrace", call(SYS_ptrace, PTRACE_TRACEME, 0, 0, 0)},
      {"code", call(SYS_mmap, nullptr, 4096, PROT_READ | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)},
      {"map a file", call(SYS_mmap, nullptr, 4096, PROT_READ, MAP_PRIVATE, kWorkerSocket, 0)},
      {"make code",
       [](Output output) -> size_t { return ::mprotect(output.data(), 4096, PROT_READ | PROT_EXEC) == 0; }},
      {"other numbers", call(0x40000000 | SYS_socket, AF_INET, SOCK_STREAM, 0)},
      // Lies.
      {"too long", [](Output output) { return output.size() + 1; }},
      {"far too long", [](Output) { return ~size_t{0}; }},
      {"another job", [](Output) { return send_reply({.id = 7'777'777}), size_t{0}; }},
      {"no message", [](Output) { return send_reply({}, 3), size_t{0}; }},
      {"no such error", [](Output) { return send_reply({.id = 1, .error = 4711}), size_t{0}; }},
      {"flood",
       [](Output) -> size_t {
         for (;;) send_reply({.id = 7'777'777});
       }},
  };
  return all;
}

Result<size_t> work(std::span<const std::byte> options, std::span<const std::byte> input, Output output) {
  const std::string_view name(reinterpret_cast<const char*>(options.data()), options.size());
  if (name == "reverse") {
    if (output.size() < input.size()) return Error{Errc::kInvalidArgument, "no room"};
    for (size_t i = 0; i < input.size(); ++i) output[i] = input[input.size() - 1 - i];
    return input.size();
  }
  if (name == "refuse") return Error{Errc::kUnsupported, "no \x1b[31mpicture\x80"};
  return deeds().at(name)(output);
}

}  // namespace

int main(int argc, char** argv) {
  // In the place of ffmpeg, one that never ends.
  if (argc > 1 && std::string_view(argv[1]) == "-nostdin") return ::pause();
  if (argc > 1) return std::string_view(argv[1]) == "pictures" ? run_media_worker(decode_picture) : 1;
  start_report = what_is_there();
  deeds();
  return sparrow::run_media_worker(work);
}
