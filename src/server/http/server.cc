// SPDX-License-Identifier: Apache-2.0
#include <sys/resource.h>

#include <algorithm>
#include <boost/asio/ip/v6_only.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <csignal>
#include <vector>

#include "base/strf.h"
#include "server/http/http.h"
#include "server/http/worker.h"

namespace sparrow {

namespace {

using boost::system::error_code;
using net::ip::tcp;

constexpr int kBacklog = 4096;
constexpr int kReservedFiles = 256;  // for everything that is not a connection
constexpr int kMaxThreads = 64;
constexpr std::chrono::milliseconds kAcceptRetry{50};

// As many open files as the system grants, at most what is needed. Returns the connections that they allow.
int raise_file_limit(int connections) {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return connections;
  const rlim_t wanted = static_cast<rlim_t>(connections) + kReservedFiles;
  if (limit.rlim_cur < wanted) {
    limit.rlim_cur = std::min(wanted, limit.rlim_max);
    ::setrlimit(RLIMIT_NOFILE, &limit);
    ::getrlimit(RLIMIT_NOFILE, &limit);
  }
  const rlim_t reserved = std::min<rlim_t>(kReservedFiles, limit.rlim_cur / 2);
  return static_cast<int>(std::min<rlim_t>(static_cast<rlim_t>(connections), limit.rlim_cur - reserved));
}

Status validate(const HttpServerOptions& options) {
  const auto invalid = [](const char* field, std::string message) {
    return Error{Errc::kInvalidArgument, std::move(message), field};
  };
  if (options.port < 0 || options.port > 65535)
    return invalid("port", strf("port must be in [0, 65535], got {}", options.port));
  if (options.num_threads < 1 || options.num_threads > kMaxThreads)
    return invalid("threads",
                   strf("server threads must be in [1, {}], got {}", kMaxThreads, options.num_threads));
  if (options.tls_cert_file.empty() != options.tls_key_file.empty())
    return invalid("ssl-keyfile", "TLS needs both ssl-certfile and ssl-keyfile");
  return options.limits.validate();
}

}  // namespace

class HttpServer::Core {
 public:
  Core(HttpServerOptions options, HttpHandler handler);
  Status open();
  Status load_tls();
  void start();
  bool drain(std::chrono::steady_clock::time_point deadline);
  void stop();

  int port = 0;
  HttpServices services;

 private:
  struct Listener {
    explicit Listener(net::io_context& io) : acceptor(io), retry(io) {}
    tcp::acceptor acceptor;
    net::steady_timer retry;  // out of descriptors: some will come back
  };

  Status listen(const tcp::endpoint& endpoint);
  void accept_next(Listener& listener);
  void stop_accepting();

  std::vector<std::unique_ptr<Worker>> workers_;
  std::vector<std::unique_ptr<Listener>> listeners_;  // the first worker's thread, once it runs
  size_t next_worker_ = 0;
  bool running_ = false;
};

HttpServer::Core::Core(HttpServerOptions options, HttpHandler handler) {
  services.options = std::move(options);
  services.handler = std::move(handler);
  for (int i = 0; i < services.options.num_threads; ++i)
    workers_.push_back(std::make_unique<Worker>(services));
}

Status HttpServer::Core::load_tls() {
  const HttpServerOptions& options = services.options;
  services.set_tls(SPARROW_TRY(TlsContext::load(options.tls_cert_file, options.tls_key_file)));
  return Ok{};
}

Status HttpServer::Core::open() {
  HttpServerOptions& options = services.options;
  if (!options.tls_cert_file.empty()) SPARROW_TRY(load_tls());
  std::signal(SIGPIPE, SIG_IGN);
  options.limits.connections = raise_file_limit(options.limits.connections);

  tcp::resolver resolver(workers_[0]->io());
  error_code ec;
  const auto found = resolver.resolve(options.host, "", tcp::resolver::passive, ec);
  if (ec || found.empty())
    return Error{Errc::kInvalidArgument, strf("host {} is not an address of this machine", options.host),
                 "host"};
  // "localhost" is two addresses. One that the machine does not have is no error as long as another works.
  Status last = Ok{};
  for (const auto& entry : found) {
    const int wanted = listeners_.empty() ? options.port : port;
    last = listen(tcp::endpoint(entry.endpoint().address(), static_cast<unsigned short>(wanted)));
  }
  if (listeners_.empty()) return last;
  return Ok{};
}

Status HttpServer::Core::listen(const tcp::endpoint& endpoint) {
  auto listener = std::make_unique<Listener>(workers_[0]->io());
  tcp::acceptor& acceptor = listener->acceptor;
  error_code ec;
  acceptor.open(endpoint.protocol(), ec);
  if (!ec) acceptor.set_option(tcp::acceptor::reuse_address(true), ec);
  // "::" takes IPv4 as well, where the system can.
  error_code ignored;
  if (endpoint.address().is_v6()) acceptor.set_option(net::ip::v6_only(false), ignored);
  if (!ec) acceptor.bind(endpoint, ec);
  if (!ec) acceptor.listen(kBacklog, ec);
  if (ec)
    return Error{Errc::kIo,
                 strf("cannot listen on {} port {}: {}{}", endpoint.address().to_string(), endpoint.port(),
                      ec.message(), ec == net::error::address_in_use ? "; choose another port" : "")};
  port = acceptor.local_endpoint(ignored).port();
  listeners_.push_back(std::move(listener));
  return Ok{};
}

void HttpServer::Core::start() {
  for (const auto& listener : listeners_) accept_next(*listener);
  for (const auto& worker : workers_) worker->start();
  running_ = true;
}

void HttpServer::Core::accept_next(Listener& listener) {
  Worker& worker = *workers_[next_worker_++ % workers_.size()];
  listener.acceptor.async_accept(worker.io(), [this, &listener, &worker](error_code ec, tcp::socket socket) {
    if (ec == net::error::operation_aborted || !listener.acceptor.is_open()) return;
    if (!ec) {
      net::post(worker.io(),
                [&worker, socket = std::move(socket)]() mutable { worker.adopt(std::move(socket)); });
      return accept_next(listener);
    }
    if (ec == net::error::connection_aborted) return accept_next(listener);
    listener.retry.expires_after(kAcceptRetry);
    listener.retry.async_wait([this, &listener](error_code cancelled) {
      if (!cancelled && listener.acceptor.is_open()) accept_next(listener);
    });
  });
}

void HttpServer::Core::stop_accepting() {
  net::post(workers_[0]->io(), [this] {
    error_code ignored;
    for (const auto& listener : listeners_) {
      listener->acceptor.close(ignored);
      listener->retry.cancel();
    }
  });
}

bool HttpServer::Core::drain(std::chrono::steady_clock::time_point deadline) {
  services.leaving = true;
  services.draining = true;
  stop_accepting();
  for (const auto& worker : workers_) net::post(worker->io(), [&worker] { worker->close_idle(); });
  std::unique_lock lock(services.mutex);
  return services.none_left.wait_until(lock, deadline, [this] { return services.num_connections == 0; });
}

void HttpServer::Core::stop() {
  if (!running_) return;
  running_ = false;
  services.leaving = true;
  services.draining = true;
  services.stopping = true;  // a socket that was accepted just now will not be adopted after this
  stop_accepting();
  for (const auto& worker : workers_) net::post(worker->io(), [&worker] { worker->close_all(); });
  for (const auto& worker : workers_) worker->release();
  for (const auto& worker : workers_) worker->join();
}

Result<std::unique_ptr<HttpServer>> HttpServer::start(HttpServerOptions options, HttpHandler handler) {
  SPARROW_TRY(validate(options));
  auto core = std::make_unique<Core>(std::move(options), std::move(handler));
  SPARROW_TRY(core->open());
  core->start();
  return std::unique_ptr<HttpServer>(new HttpServer(std::move(core)));
}

HttpServer::HttpServer(std::unique_ptr<Core> core) : core_(std::move(core)) {}
HttpServer::~HttpServer() {
  stop();
}

int HttpServer::port() const {
  return core_->port;
}

std::string HttpServer::url() const {
  const std::string& host = core_->services.options.host;
  const bool is_ipv6 = host.find(':') != std::string::npos;
  return strf("{}://{}{}{}:{}", core_->services.tls() ? "https" : "http", is_ipv6 ? "[" : "", host,
              is_ipv6 ? "]" : "", core_->port);
}

int HttpServer::num_connections() const {
  return core_->services.num_connections;
}

void HttpServer::announce_drain() {
  core_->services.leaving = true;
}

Status HttpServer::reload_tls() {
  return core_->load_tls();
}

bool HttpServer::drain(std::chrono::steady_clock::time_point deadline) {
  return core_->drain(deadline);
}

void HttpServer::stop() {
  core_->stop();
}

}  // namespace sparrow
