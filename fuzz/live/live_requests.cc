// SPDX-License-Identifier: Apache-2.0
// Mutated requests to a running server, on several connections at once. Every answer must be well-formed HTTP
// that holds JSON or events of the right shape, or the connection is closed; the server must answer its
// health check all the time, give every block back, and end as it should. A request that is answered wrongly
// is printed with its number, which brings it back; a stream without its end must be one that the server's
// log calls abandoned by its client.
#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <map>
#include <mutex>
#include <optional>
#include <sstream>
#include <string>
#include <thread>

#include "answer_check.h"
#include "base/strf.h"
#include "machine_clock.h"
#include "report.h"
#include "request_mutator.h"
#include "server_process.h"
#include "support/temp_dir.h"

namespace {

using namespace sparrow;
using fuzz::MutatedRequest;
using fuzz::RequestMutator;
using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kPatience{120'000};  // sanitizers on a busy machine
constexpr int kConnections = 8;

double milliseconds_since(Clock::time_point start) {
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

class Connection {
 public:
  explicit Connection(int port) : fd_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in to{.sin_family = AF_INET,
                   .sin_port = htons(static_cast<uint16_t>(port)),
                   .sin_addr = {},
                   .sin_zero = {}};
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    const timeval patience{.tv_sec = kPatience.count() / 1000, .tv_usec = 0};
    const int on = 1;
    ::setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
    ::setsockopt(fd_, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    connected_ = ::connect(fd_, reinterpret_cast<const sockaddr*>(&to), sizeof(to)) == 0;
  }
  ~Connection() { ::close(fd_); }
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  bool connected() const { return connected_; }
  void send(std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t n = ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (n <= 0) return;  // the server has closed: what it said is still there
      bytes.remove_prefix(static_cast<size_t>(n));
    }
  }
  void finish_sending() { ::shutdown(fd_, SHUT_WR); }
  // False: the server has closed, or says nothing for too long.
  bool receive(std::string& in, bool& silent) {
    char buffer[16 << 10];
    const ssize_t n = ::recv(fd_, buffer, sizeof(buffer), 0);
    silent = n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK);
    if (n > 0) in.append(buffer, static_cast<size_t>(n));
    return n > 0;
  }

 private:
  int fd_;
  bool connected_;
};

// The id that the server has given to a request, by which its log knows it.
std::string request_id(std::string_view answer) {
  constexpr std::string_view kField = "\r\nX-Request-Id: ";
  const size_t at = answer.find(kField);
  if (at == answer.npos) return "-";
  answer.remove_prefix(at + kField.size());
  return std::string(answer.substr(0, answer.find("\r\n")));
}

struct Totals {
  std::mutex mutex;
  std::map<std::string, int64_t> outcomes;
  std::vector<std::string> failures;
  std::map<std::string, uint64_t> cut_streams;  // numbers of the requests by their ids
  struct {
    double ms = 0;
    uint64_t number = 0;
    std::string id;
  } slowest;

  void add(const std::string& outcome) {
    const std::lock_guard lock(mutex);
    ++outcomes[outcome];
  }
  void answered(double ms, uint64_t number, std::string_view answer) {
    const std::lock_guard lock(mutex);
    if (ms > slowest.ms) slowest = {ms, number, request_id(answer)};
  }
  void cut_off(uint64_t number, std::string_view answer) {
    const std::lock_guard lock(mutex);
    cut_streams.emplace(request_id(answer), number);
  }
  void fail(std::string what) {
    const std::lock_guard lock(mutex);
    if (failures.size() < 20) failures.push_back(std::move(what));
  }
};

// What one connection has to say to one request after another.
class Speaker {
 public:
  Speaker(int port, Totals& totals) : port_(port), totals_(totals) {}

  void ask(const MutatedRequest& request, uint64_t number) {
    if (!request.framed || !connection_) connection_.emplace(port_);
    if (!connection_->connected()) return totals_.fail(strf("request {}: cannot connect", number));
    const auto start = Clock::now();
    connection_->send(request.bytes);
    if (!request.framed) connection_->finish_sending();
    std::string in;
    const std::string wrong = request.framed ? read_one(in) : read_all(in, request.head, number);
    totals_.answered(milliseconds_since(start), number, in);
    if (!wrong.empty())
      totals_.fail(strf("request {}: {}\n--- sent\n{}\n--- got\n{}\n", number, wrong,
                        request.bytes.substr(0, 4000), in.substr(0, 4000)));
    if (!request.framed || !wrong.empty()) connection_.reset();
  }

 private:
  std::string read_one(std::string& in) {
    for (;;) {
      const fuzz::AnswerCheck check = fuzz::check_answer(in, /*to_head=*/false);
      if (check.state == fuzz::AnswerCheck::State::kWrong) return check.wrong;
      if (check.state == fuzz::AnswerCheck::State::kWhole) {
        totals_.add(strf("{}", check.status));
        if (check.size != in.size()) return "more than one answer";
        if (check.closes) connection_.reset();
        return "";
      }
      bool silent = false;
      if (!connection_->receive(in, silent))
        return silent ? "no answer in time" : "closed before the answer was whole";
    }
  }

  // The bytes may be several requests, or none that has an end.
  std::string read_all(std::string& in, bool to_head, uint64_t number) {
    bool silent = false;
    while (connection_->receive(in, silent)) continue;
    if (silent) return "not closed in time";
    int num_answers = 0;
    for (std::string_view rest = in; !rest.empty(); ++num_answers) {
      const fuzz::AnswerCheck check = fuzz::check_answer(rest, to_head);
      if (check.state == fuzz::AnswerCheck::State::kWrong) return check.wrong;
      if (check.state == fuzz::AnswerCheck::State::kMore) {
        if (!check.is_stream) return "an answer was cut off";
        totals_.add("stream cut off");  // its reader has closed its side, which counts as gone
        totals_.cut_off(number, rest);
        return "";
      }
      totals_.add(strf("{}", check.status));
      rest.remove_prefix(check.size);
    }
    if (num_answers == 0) totals_.add("closed");
    return "";
  }

  const int port_;
  Totals& totals_;
  std::optional<Connection> connection_;
};

struct Probe {
  Clock::time_point asked, answered;
  double waiting_ms = 0;  // of the server's thread, and of ours, in line for a CPU
  double running_ms = 0;  // of the server's thread
  double ms() const { return std::chrono::duration<double, std::milli>(answered - asked).count(); }
};

// Asks for the health all the time, on one connection.
class HealthProbe {
 public:
  // While nobody else asks: finds the thread that answers.
  HealthProbe(const load::ServerProcess& server, Totals& totals)
      : server_(server), totals_(totals), connection_(server.port()) {
    constexpr int kQuietProbes = 50;
    const std::map<int, load::ThreadTime> before = server.threads();
    for (int i = 0; i < kQuietProbes; ++i) ask();
    double most = 0;
    for (const auto& [id, time] : server.threads())
      if (before.contains(id) && time.running_ms - before.at(id).running_ms > most) {
        most = time.running_ms - before.at(id).running_ms;
        thread_ = id;
      }
  }

  void run(const std::atomic<bool>& over) {
    while (!over) {
      const load::ThreadTime its = server_.thread(thread_), ours = load::ThreadTime::read(kOurs);
      Probe probe{.asked = Clock::now()};
      if (!ask()) return;
      probe.answered = Clock::now();
      const load::ThreadTime its_end = server_.thread(thread_), ours_end = load::ThreadTime::read(kOurs);
      probe.waiting_ms = its_end.waiting_ms - its.waiting_ms + ours_end.waiting_ms - ours.waiting_ms;
      probe.running_ms = its_end.running_ms - its.running_ms;
      probes.push_back(probe);
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
  }

  std::vector<Probe> probes;

 private:
  static constexpr const char* kOurs = "/proc/thread-self";

  bool ask() {
    connection_.send("GET /health HTTP/1.1\r\nHost: t\r\n\r\n");
    std::string in;
    bool silent = false, whole = false;
    while (!whole && connection_.receive(in, silent)) {
      const fuzz::AnswerCheck check = fuzz::check_answer(in, false);
      whole = check.state == fuzz::AnswerCheck::State::kWhole && check.status == 200;
    }
    if (!whole) totals_.fail("the health check was not answered: " + in);
    return whole;
  }

  const load::ServerProcess& server_;
  Totals& totals_;
  Connection connection_;
  int thread_ = 0;
};

// Prints what a sanitizer or a failed check had to say.
bool log_is_clean(const std::string& path) {
  constexpr int kMostLines = 60;
  std::ifstream file(path);
  int printed = 0;
  for (std::string line; std::getline(file, line);) {
    const bool reports = line.find("Sanitizer") != line.npos || line.find("runtime error") != line.npos ||
                         line.find("check failed") != line.npos;
    if ((printed > 0 || reports) && printed++ < kMostLines) std::printf("log: %s\n", line.c_str());
  }
  return printed == 0;
}

// What the server's log has to say about streams that were cut off, and about the slowest request.
void check_log_lines(const std::string& path, Totals& totals) {
  std::ifstream file(path);
  std::map<std::string, uint64_t> unknown = totals.cut_streams;
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string word;
    for (int i = 0; i < 8 && words >> word; ++i) continue;  // time status method path ms bytes peer id
    if (word == totals.slowest.id)
      std::printf("slowest: request %llu, %.0f ms; log: %s\n",
                  static_cast<unsigned long long>(totals.slowest.number), totals.slowest.ms, line.c_str());
    const auto cut = unknown.find(word);
    if (cut == unknown.end()) continue;
    std::printf("cut off: request %llu; log: %s\n", static_cast<unsigned long long>(cut->second),
                line.c_str());
    if (!line.ends_with(" finish=abandoned incomplete"))
      totals.fail(strf("request {}: its stream was cut off, and its client had not gone", cut->second));
    unknown.erase(cut);
  }
  for (const auto& [id, number] : unknown)
    totals.fail(strf("request {}: its stream was cut off, and the log does not know {}", number, id));
}

void report_health(const std::vector<Probe>& probes, const fuzz::MachineClock& clock, double max_ms,
                   Totals& totals) {
  std::vector<double> all = {0}, own = {0}, running = {0}, late = clock.all_ms();
  Probe worst;
  for (const Probe& probe : probes) {
    all.push_back(probe.ms());
    // Two views of the same: the scheduler does not know of the times in which the whole machine stood still.
    const double machine_ms = std::max(probe.waiting_ms, clock.late_ms(probe.asked, probe.answered));
    own.push_back(std::max(probe.ms() - machine_ms, 0.0));
    running.push_back(probe.running_ms);
    if (probe.ms() > worst.ms()) worst = probe;
  }
  late.push_back(0);
  const auto print = [](const char* name, std::vector<double>& ms) {
    std::printf("%s p50 %.2f ms, p99 %.2f ms, p99.9 %.2f ms, max %.2f ms\n", name, load::quantile(ms, 0.5),
                load::quantile(ms, 0.99), load::quantile(ms, 0.999), load::quantile(ms, 1));
  };
  std::printf("health: %zu probes\n", probes.size());
  print("  from question to answer:              ", all);
  print("  without what the machine took:        ", own);
  print("  the server's thread ran meanwhile for:", running);
  print("  a thread that sleeps 1 ms was late by:", late);
  std::printf(
      "  the longest: %.2f ms, of it %.2f ms in line for a CPU, %.2f ms of the server's thread; the sleeper "
      "was "
      "late by %.2f ms of it\n",
      worst.ms(), worst.waiting_ms, worst.running_ms, clock.late_ms(worst.asked, worst.answered));
  if (max_ms > 0 && own.back() > max_ms) totals.fail("a health check took too long");
}

struct Options {
  std::string program;
  uint64_t first = 0, count = 200'000;
  double max_health_ms = 0;  // 0: told, not judged
};

bool run(const Options& options, const std::filesystem::path& folder) {
  const std::string log = folder / "log";
  if (std::system(
          strf("'{}' make-model --preset tiny --out '{}/m' >/dev/null 2>&1", options.program, folder.string())
              .c_str()) != 0)
    return false;
  load::ServerProcess server({.program = options.program,
                              .model = folder / "m",
                              .flags = {"--max-model-len", "768", "--max-num-seqs", "8", "--threads", "1",
                                        "--served-model-name", "m3", "--allowed-hosts", "*"},
                              .log = log});
  const std::vector<RequestMutator::Seed> seeds = RequestMutator::seeds();
  Totals totals;
  std::atomic<uint64_t> next{options.first};
  std::atomic<bool> over{false};
  HealthProbe health(server, totals);
  fuzz::MachineClock clock;
  std::thread probe([&] { health.run(over); });
  const auto start = Clock::now();
  std::vector<std::thread> speakers;
  for (int i = 0; i < kConnections; ++i)
    speakers.emplace_back([&] {
      Speaker speaker(server.port(), totals);
      for (uint64_t number; (number = next++) < options.first + options.count && server.running();)
        speaker.ask(RequestMutator(seeds, number).next(), number);
    });
  for (std::thread& speaker : speakers) speaker.join();
  over = true;
  probe.join();
  clock.stop();
  const double seconds = milliseconds_since(start) / 1000;

  if (server.wait_until_idle(60) < 0) totals.fail("work or blocks are left when all is over");
  const int exit_code = server.stop();
  if (exit_code != 0) totals.fail(strf("the server ended with {}", exit_code));
  if (!log_is_clean(log)) totals.fail("the server's log has a report");
  std::printf(
      "%llu requests in %.1f s, %.0f a second; answers:", static_cast<unsigned long long>(options.count),
      seconds, static_cast<double>(options.count) / seconds);
  for (const auto& [outcome, count] : totals.outcomes)
    std::printf("  %s: %lld", outcome.c_str(), static_cast<long long>(count));
  std::printf("\n");
  check_log_lines(log, totals);
  report_health(health.probes, clock, options.max_health_ms, totals);
  for (const std::string& failure : totals.failures) std::printf("%s\n", failure.c_str());
  return totals.failures.empty();
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2 || argc > 5) {
    std::fprintf(stderr, "usage: %s SPARROW [REQUESTS [NUMBER_OF_THE_FIRST [MOST_MS_OF_A_HEALTH_CHECK]]]\n",
                 argv[0]);
    return 2;
  }
  Options options{.program = argv[1]};
  if (argc > 2) options.count = std::strtoull(argv[2], nullptr, 10);
  if (argc > 3) options.first = std::strtoull(argv[3], nullptr, 10);
  if (argc > 4) options.max_health_ms = std::strtod(argv[4], nullptr);
  // AddressSanitizer empties its quarantine a tenth at a time, on whichever thread frees next: 10 to 20 ms
  // with the usual 256 MB, which is nothing that the server does.
  ::setenv("ASAN_OPTIONS", "quarantine_size_mb=16", /*overwrite=*/0);
  const test::TempDir folder;
  const bool ok = run(options, folder.path());
  std::printf(ok ? "passed\n" : "FAILED\n");
  return ok ? 0 : 1;
}
