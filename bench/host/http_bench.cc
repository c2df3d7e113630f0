// SPDX-License-Identifier: Apache-2.0
// Loads the HTTP server with a handler that does nothing: requests over keep-alive, open streams, idle
// connections. Server and clients are two processes on the same machine.
//   http_bench requests [CONNECTIONS] [SECONDS]
//   http_bench streams  [CONNECTIONS] [EVENTS]
//   http_bench idle     [CONNECTIONS]
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/check.h"
#include "server/http/http.h"

namespace {

using namespace sparrow;
using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kStep{25};  // of an engine that gives every stream one event
constexpr size_t kEventBytes = 200;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

double rss_megabytes() {
  std::FILE* file = std::fopen("/proc/self/statm", "r");
  long total = 0, resident = 0;
  if (file && std::fscanf(file, "%ld %ld", &total, &resident) != 2) resident = 0;
  if (file) std::fclose(file);
  return static_cast<double>(resident) * static_cast<double>(::sysconf(_SC_PAGESIZE)) / 1e6;
}

double cpu_seconds() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
         1e-6 * static_cast<double>(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec);
}

// Wakes every stream once a step, as an engine does.
class Pulse {
 public:
  Pulse() : thread_([this] { run(); }) {}
  ~Pulse() {
    stopped_ = true;
    thread_.join();
  }
  void add(Waker waker) {
    const std::lock_guard lock(mutex_);
    wakers_.push_back(std::move(waker));
  }

 private:
  void run() {
    for (auto next = Clock::now(); !stopped_; std::this_thread::sleep_until(next += kStep)) {
      const std::lock_guard lock(mutex_);
      for (const Waker& waker : wakers_) waker.wake();
    }
  }

  std::atomic<bool> stopped_{false};
  std::mutex mutex_;
  std::vector<Waker> wakers_;
  std::thread thread_;
};

net::awaitable<void> answer(Exchange& exchange, Pulse& pulse) {
  if (exchange.request().path != "/stream") {
    HttpResponse response{.body = R"({"object":"list","data":[{"id":"demo","object":"model"}]})"};
    co_await exchange.respond(std::move(response));
    co_return;
  }
  pulse.add(exchange.waker());
  const int events = std::atoi(query_value(exchange.request().query, "n").value_or("0").c_str());
  const std::string event = "data: " + std::string(kEventBytes - 8, 'x') + "\n\n";
  if (!co_await exchange.begin_stream("text/event-stream")) co_return;
  for (int i = 0; i < events; ++i) {
    if (co_await exchange.wait() == WaitResult::kPeerGone) co_return;
    if (!co_await exchange.write(event)) co_return;
  }
  co_await exchange.end_stream();
}

int connect_to(int port) {
  const int fd = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  SPARROW_CHECK(fd >= 0 && ::connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0);
  const int on = 1;
  ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  return fd;
}

void send_all(int fd, const std::string& bytes) {
  SPARROW_CHECK(::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(bytes.size()));
}

std::vector<int> connect_all(int port, int connections, int epoll) {
  std::vector<int> fds;
  for (int i = 0; i < connections; ++i) {
    fds.push_back(connect_to(port));
    epoll_event event{.events = EPOLLIN, .data = {.fd = fds.back()}};
    ::epoll_ctl(epoll, EPOLL_CTL_ADD, fds.back(), &event);
  }
  return fds;
}

// Answers are small and come whole: one read is one answer.
int client_of_requests(int port, int connections, int run_seconds) {
  const int epoll = ::epoll_create1(0);
  const std::string request =
      "GET /v1/models HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer sk-x\r\n\r\n";
  for (const int fd : connect_all(port, connections, epoll)) send_all(fd, request);
  int64_t answers = 0;
  char buffer[4096];
  const auto start = Clock::now();
  while (seconds_since(start) < run_seconds) {
    epoll_event events[64];
    const int n = ::epoll_wait(epoll, events, 64, 100);
    for (int i = 0; i < n; ++i) {
      const ssize_t got = ::recv(events[i].data.fd, buffer, sizeof(buffer), 0);
      SPARROW_CHECK(got > 15 && std::memcmp(buffer, "HTTP/1.1 200 OK", 15) == 0);
      ++answers;
      send_all(events[i].data.fd, request);
    }
  }
  std::printf("%d connections: %.0f requests/s\n", connections,
              static_cast<double>(answers) / seconds_since(start));
  return 0;
}

int client_of_streams(int port, int connections, int num_events) {
  const int epoll = ::epoll_create1(0);
  const auto start = Clock::now();
  for (const int fd : connect_all(port, connections, epoll))
    send_all(fd, "GET /stream?n=" + std::to_string(num_events) +
                     " HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n");
  int open = connections;
  int64_t bytes = 0;
  char buffer[64 << 10];
  while (open > 0) {
    epoll_event events[64];
    const int n = ::epoll_wait(epoll, events, 64, 10'000);
    SPARROW_CHECK(n > 0);
    for (int i = 0; i < n; ++i) {
      const ssize_t got = ::recv(events[i].data.fd, buffer, sizeof(buffer), 0);
      bytes += std::max<ssize_t>(got, 0);
      if (got > 0) continue;
      ::close(events[i].data.fd);
      --open;
    }
  }
  const double expected = static_cast<double>(kEventBytes) * num_events * connections;
  std::printf("%d streams of %d events: %.1f s, all complete: %s\n", connections, num_events,
              seconds_since(start), static_cast<double>(bytes) >= expected ? "yes" : "NO");
  return 0;
}

int client_of_nothing(int port, int connections) {
  const int epoll = ::epoll_create1(0);
  connect_all(port, connections, epoll);
  std::this_thread::sleep_for(std::chrono::seconds(2));
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string mode = argc > 1 ? argv[1] : "";
  if (mode != "requests" && mode != "streams" && mode != "idle") {
    std::fprintf(stderr, "usage: %s requests|streams|idle [CONNECTIONS] [SECONDS or EVENTS]\n", argv[0]);
    return 2;
  }
  const int connections = argc > 2             ? std::atoi(argv[2])
                          : mode == "requests" ? 64
                          : mode == "streams"  ? 1000
                                               : 10'000;
  const int amount = argc > 3 ? std::atoi(argv[3]) : mode == "requests" ? 5 : 200;
  int port_pipe[2];
  SPARROW_CHECK(::pipe(port_pipe) == 0);
  const pid_t client = ::fork();
  if (client == 0) {
    int port = 0;
    SPARROW_CHECK(::read(port_pipe[0], &port, sizeof(port)) == sizeof(port));
    const int status = mode == "requests"  ? client_of_requests(port, connections, amount)
                       : mode == "streams" ? client_of_streams(port, connections, amount)
                                           : client_of_nothing(port, connections);
    std::fflush(stdout);
    ::_exit(status);
  }
  Pulse pulse;
  HttpServerOptions options;
  options.port = 0;
  auto server = HttpServer::start(options, [&](Exchange& exchange) { return answer(exchange, pulse); });
  SPARROW_CHECK(server.ok());
  const double rss_before = rss_megabytes();
  const int port = (*server)->port();
  SPARROW_CHECK(::write(port_pipe[1], &port, sizeof(port)) == sizeof(port));
  double rss_most = 0;
  int most_connections = 0, status = 0;
  while (::waitpid(client, &status, WNOHANG) == 0) {
    rss_most = std::max(rss_most, rss_megabytes());
    most_connections = std::max(most_connections, (*server)->num_connections());
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  std::printf("server: %d connections at most, %.1f MB resident at most (%.1f before), %.2f s of CPU\n",
              most_connections, rss_most, rss_before, cpu_seconds());
  return status == 0 ? 0 : 1;
}
