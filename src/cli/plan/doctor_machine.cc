// SPDX-License-Identifier: Apache-2.0
// What the doctor finds out about processors, memory, limits and ports.
#include <netdb.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstring>
#include <memory>
#include <optional>
#include <sstream>

#include "base/threads/cpu_limits.h"
#include "cli/args/byte_size.h"
#include "cli/plan/doctor.h"
#include "ops/ops.h"

namespace sparrow::cli {
namespace {

using Level = Finding::Level;

constexpr int64_t kGiB = int64_t{1} << 30;
constexpr int64_t kLittleMemory = 2 * kGiB;
constexpr rlim_t kFewFiles = 4096;  // a stream holds one, and clients come in hundreds

// Files of proc and sys have no size: read until the end.
std::optional<std::string> read_file(const std::filesystem::path& path) {
  const std::unique_ptr<FILE, int (*)(FILE*)> file(std::fopen(path.c_str(), "r"), &std::fclose);
  if (!file) return std::nullopt;
  std::string text;
  char part[4096];
  for (size_t n; (n = std::fread(part, 1, sizeof part, file.get())) > 0;) text.append(part, n);
  return text;
}

// The value of "key : value" or "key: value", first occurrence.
std::string field_of(const std::string& text, std::string_view key) {
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    const size_t colon = line.find(':');
    if (colon == std::string::npos || line.compare(0, key.size(), key) != 0) continue;
    if (line.find_last_not_of(" \t", colon - 1) + 1 != key.size()) continue;
    const size_t start = line.find_first_not_of(" \t", colon + 1);
    return start == std::string::npos ? "" : line.substr(start);
  }
  return "";
}

std::optional<int64_t> leading_number(const std::string& text) {
  int64_t value = 0;
  const auto [end, failed] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (failed != std::errc{}) return std::nullopt;
  return value;
}

// Instruction sets that kernels are written for: which this processor and system have, and which not.
std::string instruction_sets(CpuIsa best) {
  __builtin_cpu_init();
  std::string names;
  const auto add = [&](bool has, const char* name) {
    names += strf("{}{}{}", names.empty() ? "" : ", ", has ? "" : "no ", name);
  };
  add(__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"), "AVX2");
  add(__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw"), "AVX-512");
  add(__builtin_cpu_supports("avx512bf16"), "AVX-512 BF16");
  add(best == CpuIsa::kAmx, "AMX");
  return names;
}

Finding examine_cpu(const std::filesystem::path& root) {
  const std::string name = field_of(read_file(root / "proc/cpuinfo").value_or(""), "model name");
  const CpuIsa isa = ops::detect_cpu_isa();
  Finding finding{
      Level::kOk, "cpu",
      strf("{}: {}; {} kernels", name.empty() ? "?" : name, instruction_sets(isa), ops::name_of(isa))};
  if (isa == CpuIsa::kScalar) {
    finding.level = Level::kWarn;
    finding.next = "kernels need AVX2 and FMA; without them every step is many times slower";
  }
  return finding;
}

// Threads follow the limits by themselves; what they are is said, so that a slow server can be understood.
Finding examine_cores(const std::filesystem::path& root) {
  const CpuLimits limits = cpu_limits(root);
  const long machine = sysconf(_SC_NPROCESSORS_ONLN);
  std::string text = strf("{} thread{}", limits.threads(), limits.threads() == 1 ? "" : "s");
  if (limits.affinity < machine)
    text += strf("; affinity leaves {} of {} processors", limits.affinity, machine);
  if (limits.quota > 0) text += strf("; the control group allows {:.3g} at a time", limits.quota);
  Finding finding{Level::kOk, "cores", text};
  if (limits.quota > 0 && limits.quota < 1) {
    finding.level = Level::kWarn;
    finding.next = "raise the quota (cpu.max, docker --cpus): even one thread is paused again and again";
  }
  return finding;
}

Finding examine_memory(const std::filesystem::path& root) {
  const std::string info = read_file(root / "proc/meminfo").value_or("");
  const int64_t total = leading_number(field_of(info, "MemTotal")).value_or(0) * 1024;
  const int64_t available = leading_number(field_of(info, "MemAvailable")).value_or(0) * 1024;
  if (total == 0) return {Level::kWarn, "memory", "unknown: no /proc/meminfo"};
  for (const auto& folder : control_groups(root)) {
    const auto limit = leading_number(read_file(folder / "memory.max").value_or(""));
    if (limit && *limit < total)
      return {Level::kWarn, "memory",
              strf("{}, but the control group allows {}", byte_string(total), byte_string(*limit)),
              strf("--kv-cache-memory {}M: otherwise the machine's whole memory sets the cache's size",
                   *limit / 4 / (1 << 20))};
  }
  Finding finding{Level::kOk, "memory", strf("{}, {} available", byte_string(total), byte_string(available))};
  if (available < kLittleMemory) {
    finding.level = Level::kWarn;
    finding.next = "little is left: end other programs, or give a small --kv-cache-memory";
  }
  return finding;
}

Finding examine_huge_pages(const std::filesystem::path& root) {
  const std::string path = "sys/kernel/mm/transparent_hugepage/enabled";
  const std::string modes = read_file(root / path).value_or("");
  const size_t open = modes.find('['), close = modes.find(']');
  if (open == std::string::npos || close == std::string::npos)
    return {Level::kWarn, "huge pages", "this kernel has none",
            "the cache works with small pages, but a little slower"};
  const std::string mode = modes.substr(open + 1, close - open - 1);
  if (mode != "never") return {Level::kOk, "huge pages", mode};
  return {Level::kWarn, "huge pages", mode, strf("echo madvise | sudo tee /{}", path)};
}

Finding examine_open_files() {
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  Finding finding{Level::kOk, "open files",
                  limit.rlim_cur == RLIM_INFINITY ? "no limit" : strf("{}", limit.rlim_cur)};
  if (limit.rlim_cur < kFewFiles) {
    finding.level = Level::kWarn;
    finding.next = strf("ulimit -n {}: each connection takes one", std::min<rlim_t>(limit.rlim_max, 65536));
  }
  return finding;
}

Finding examine_locked_memory() {
  rlimit limit{};
  getrlimit(RLIMIT_MEMLOCK, &limit);
  return {Level::kOk, "locked memory",
          limit.rlim_cur == RLIM_INFINITY ? "no limit" : byte_string(static_cast<int64_t>(limit.rlim_cur))};
}

// Every instruction set has kernels for all of them.
Finding examine_formats() {
  return {Level::kOk, "formats", "the CPU runs weights in f32, bf16, MXFP8 and MXFP4, as they are stored"};
}

}  // namespace

std::vector<Finding> examine_machine(const std::filesystem::path& root) {
  return {examine_cpu(root),        examine_formats(),    examine_cores(root),    examine_memory(root),
          examine_huge_pages(root), examine_open_files(), examine_locked_memory()};
}

Finding examine_port(const std::string& host, int port) {
  const std::string address = strf("{}:{}", host, port);
  addrinfo hints{}, *found = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
  if (const int code = getaddrinfo(host.c_str(), strf("{}", port).c_str(), &hints, &found); code != 0)
    return {Level::kFail, "port", strf("{}: {}", address, gai_strerror(code)),
            "--host with an address of this machine"};
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owner(found, &freeaddrinfo);
  const int fd = socket(found->ai_family, found->ai_socktype, found->ai_protocol);
  // A server that has just ended must not count: the one that comes asks for the same.
  const int yes = 1;
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  const int error = bind(fd, found->ai_addr, found->ai_addrlen) == 0 && listen(fd, 1) == 0 ? 0 : errno;
  close(fd);
  if (error == 0) return {Level::kOk, "port", address + " is free"};
  return {Level::kWarn, "port", strf("{}: {}", address, std::strerror(error)),
          error == EADDRINUSE ? strf("a server runs there already; another port: --port {}", port + 1)
                              : "another --host or --port"};
}

}  // namespace sparrow::cli
