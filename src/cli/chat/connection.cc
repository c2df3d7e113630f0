// SPDX-License-Identifier: Apache-2.0
#include "cli/chat/connection.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "base/strf.h"

namespace sparrow::cli {
namespace {

constexpr int kLookMs = 100;  // how long a stop may go unnoticed
constexpr std::chrono::seconds kConnectTime{15};

// A socket that does not block, and waits that end when they are told to.
class Socket {
 public:
  Socket(int fd, const std::atomic<bool>* stop) : fd_(fd), stop_(stop) {}
  ~Socket() {
    if (fd_ >= 0) ::close(fd_);
  }
  Socket(Socket&& other) noexcept : fd_(std::exchange(other.fd_, -1)), stop_(other.stop_) {}
  Socket& operator=(Socket&&) = delete;

  int fd() const { return fd_; }
  bool stopped() const { return stop_ && stop_->load(); }
  // False: told to stop, or `deadline` is over.
  bool wait(short events, std::chrono::steady_clock::time_point deadline =
                              std::chrono::steady_clock::time_point::max()) const {
    for (;;) {
      if (stopped() || std::chrono::steady_clock::now() >= deadline) return false;
      pollfd waiting{.fd = fd_, .events = events, .revents = 0};
      if (::poll(&waiting, 1, kLookMs) > 0) return true;
    }
  }

 private:
  int fd_;
  const std::atomic<bool>* stop_;
};

class PlainConnection final : public Connection {
 public:
  explicit PlainConnection(Socket socket) : socket_(std::move(socket)) {}

  Io send(std::string_view bytes) override {
    while (!bytes.empty()) {
      const ssize_t n = ::send(socket_.fd(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (n > 0) {
        bytes.remove_prefix(static_cast<size_t>(n));
      } else if (errno != EAGAIN && errno != EINTR) {
        return Io::kEnd;
      } else if (!socket_.wait(POLLOUT)) {
        return Io::kStopped;
      }
    }
    return Io::kDone;
  }

  Io receive(std::string& out) override {
    for (;;) {
      if (!socket_.wait(POLLIN)) return Io::kStopped;
      char buffer[16384];
      const ssize_t n = ::recv(socket_.fd(), buffer, sizeof buffer, 0);
      if (n < 0 && (errno == EINTR || errno == EAGAIN)) continue;
      if (n <= 0) return Io::kEnd;
      out.append(buffer, static_cast<size_t>(n));
      return Io::kDone;
    }
  }

 private:
  Socket socket_;
};

struct FreeSsl {
  void operator()(SSL_CTX* context) const { SSL_CTX_free(context); }
  void operator()(SSL* ssl) const { SSL_free(ssl); }
};

class TlsConnection final : public Connection {
 public:
  TlsConnection(Socket socket, std::unique_ptr<SSL, FreeSsl> ssl)
      : socket_(std::move(socket)), ssl_(std::move(ssl)) {}

  Io handshake() {
    return run([this] { return SSL_connect(ssl_.get()); });
  }
  Io send(std::string_view bytes) override {
    while (!bytes.empty()) {
      size_t n = 0;
      const Io io = run([&] { return SSL_write_ex(ssl_.get(), bytes.data(), bytes.size(), &n); });
      if (io != Io::kDone) return io;
      bytes.remove_prefix(n);
    }
    return Io::kDone;
  }
  Io receive(std::string& out) override {
    char buffer[16384];
    size_t n = 0;
    const Io io = run([&] { return SSL_read_ex(ssl_.get(), buffer, sizeof buffer, &n); });
    out.append(buffer, n);
    return io;
  }
  SSL* ssl() const { return ssl_.get(); }

 private:
  template <typename Call>
  Io run(Call&& call) {
    for (;;) {
      if (socket_.stopped()) return Io::kStopped;
      ERR_clear_error();
      const int result = call();
      if (result > 0) return Io::kDone;
      const int reason = SSL_get_error(ssl_.get(), result);
      if (reason != SSL_ERROR_WANT_READ && reason != SSL_ERROR_WANT_WRITE) return Io::kEnd;
      if (!socket_.wait(reason == SSL_ERROR_WANT_READ ? POLLIN : POLLOUT)) return Io::kStopped;
    }
  }

  Socket socket_;
  std::unique_ptr<SSL, FreeSsl> ssl_;
};

Error stopped_error() {
  return {Errc::kStopped, "stopped"};
}

// An empty string, or why not.
std::string connect_error(const Socket& socket, const addrinfo& to) {
  if (::connect(socket.fd(), to.ai_addr, to.ai_addrlen) == 0) return "";
  if (errno != EINPROGRESS && errno != EINTR) return std::strerror(errno);
  if (!socket.wait(POLLOUT, std::chrono::steady_clock::now() + kConnectTime)) return "no answer";
  int error = 0;
  socklen_t size = sizeof error;
  ::getsockopt(socket.fd(), SOL_SOCKET, SO_ERROR, &error, &size);
  return error == 0 ? "" : std::strerror(error);
}

Result<Socket> connect_to(const HttpUrl& url, const std::atomic<bool>* stop) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* list = nullptr;
  if (const int failed = ::getaddrinfo(url.host.c_str(), url.port.c_str(), &hints, &list))
    return Error{Errc::kIo, strf("{} cannot be found: {}; check --url", url.host, gai_strerror(failed))};
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owner(list, freeaddrinfo);
  std::string reason = "no address";
  for (const addrinfo* at = list; at != nullptr; at = at->ai_next) {
    const int fd = ::socket(at->ai_family, at->ai_socktype | SOCK_CLOEXEC | SOCK_NONBLOCK, at->ai_protocol);
    if (fd < 0) continue;
    Socket socket(fd, stop);
    const int yes = 1;
    ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
    reason = connect_error(socket, *at);
    if (socket.stopped()) return stopped_error();
    if (reason.empty()) return socket;
  }
  return Error{Errc::kIo, strf("no server at {}: {}; start one with sparrow serve MODEL, or check --url",
                               url.authority(), reason)};
}

// OpenSSL knows the places of the system it was built on; others keep their certificates elsewhere.
void trust_system(SSL_CTX* context) {
  SSL_CTX_set_default_verify_paths(context);
  if (std::getenv(X509_get_default_cert_file_env()) || std::getenv(X509_get_default_cert_dir_env())) return;
  for (const char* file : {"/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt",
                           "/etc/ssl/ca-bundle.pem", "/etc/ssl/cert.pem"})
    if (::access(file, R_OK) == 0 && SSL_CTX_load_verify_locations(context, file, nullptr) == 1) return;
}

Result<std::unique_ptr<SSL, FreeSsl>> make_ssl(const HttpUrl& url, const TlsTrust& trust) {
  const std::unique_ptr<SSL_CTX, FreeSsl> context(SSL_CTX_new(TLS_client_method()));
  SPARROW_CHECK(context != nullptr);
  SSL_CTX_set_min_proto_version(context.get(), TLS1_2_VERSION);
  if (!trust.insecure) {
    SSL_CTX_set_verify(context.get(), SSL_VERIFY_PEER, nullptr);
    if (trust.ca_file.empty())
      trust_system(context.get());
    else if (SSL_CTX_load_verify_locations(context.get(), trust.ca_file.c_str(), nullptr) != 1)
      return Error{Errc::kInvalidArgument, strf("--cacert {}: no PEM certificates there", trust.ca_file)};
    // A certificate that is trusted by name needs no issuer.
    X509_VERIFY_PARAM_set_flags(SSL_CTX_get0_param(context.get()), X509_V_FLAG_PARTIAL_CHAIN);
  }
  std::unique_ptr<SSL, FreeSsl> ssl(SSL_new(context.get()));
  SPARROW_CHECK(ssl != nullptr);
  in6_addr address;
  const bool is_address = ::inet_pton(AF_INET, url.host.c_str(), &address) == 1 ||
                          ::inet_pton(AF_INET6, url.host.c_str(), &address) == 1;
  if (is_address) {
    X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(ssl.get()), url.host.c_str());
  } else {
    SSL_set_tlsext_host_name(ssl.get(), url.host.c_str());
    SSL_set1_host(ssl.get(), url.host.c_str());
  }
  return ssl;
}

Error handshake_error(const HttpUrl& url, SSL* ssl) {
  if (const long verified = SSL_get_verify_result(ssl); verified != X509_V_OK)
    return {Errc::kIo, strf("the certificate of {} is not trusted: {}; --cacert FILE names one to trust, "
                            "--insecure trusts any",
                            url.authority(), X509_verify_cert_error_string(verified))};
  const char* reason = ERR_reason_error_string(ERR_peek_last_error());
  return {Errc::kIo, strf("no TLS with {}: {}; is it http://?", url.authority(),
                          reason ? reason : "the connection was closed")};
}

}  // namespace

std::string HttpUrl::authority() const {
  const bool is_v6 = host.find(':') != std::string::npos;
  return is_v6 ? strf("[{}]:{}", host, port) : strf("{}:{}", host, port);
}

Result<std::unique_ptr<Connection>> Connection::open(const HttpUrl& url, const TlsTrust& trust,
                                                     const std::atomic<bool>* stop) {
  Socket socket = SPARROW_TRY(connect_to(url, stop));
  if (!url.tls) return std::unique_ptr<Connection>(new PlainConnection(std::move(socket)));
  auto ssl = SPARROW_TRY(make_ssl(url, trust));
  SSL_set_fd(ssl.get(), socket.fd());
  auto connection = std::make_unique<TlsConnection>(std::move(socket), std::move(ssl));
  const Io io = connection->handshake();
  if (io == Io::kStopped) return stopped_error();
  if (io == Io::kEnd) return handshake_error(url, connection->ssl());
  return std::unique_ptr<Connection>(std::move(connection));
}

}  // namespace sparrow::cli
