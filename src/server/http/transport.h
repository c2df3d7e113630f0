// SPDX-License-Identifier: Apache-2.0
// How bytes of a connection move: plain or TLS, over a socket that never blocks. Connections see nothing
// else.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

#include "base/result.h"

namespace sparrow {

class Transport {
 public:
  enum class Io {
    kDone,
    kWantRead,   // try again when the socket can be read; TLS says so for writes too
    kWantWrite,  // try again when the socket can be written
    kClosed,     // by the peer, in order or not; nothing more will come or go
  };
  struct Moved {
    Io io;
    size_t bytes;  // at least one with kDone, else none
  };

  virtual ~Transport() = default;
  virtual Io handshake() = 0;
  virtual Moved read(char* into, size_t size) = 0;
  virtual Moved write(std::string_view bytes) = 0;
  // Bytes that read() gives without the socket becoming readable again.
  virtual bool has_unread() const = 0;
  // Says that nothing more will be written. Best effort: does not wait for the peer.
  virtual void finish() = 0;
};

// `fd` stays with the caller, is in non-blocking mode and outlives the transport.
std::unique_ptr<Transport> make_plain_transport(int fd);

// Certificate and key of a server; TLS 1.2 and later. Shared by all connections, on any thread.
class TlsContext {
 public:
  static Result<std::unique_ptr<TlsContext>> load(const std::string& cert_file, const std::string& key_file);
  ~TlsContext();
  TlsContext(const TlsContext&) = delete;
  TlsContext& operator=(const TlsContext&) = delete;

  // nullptr: out of memory.
  std::unique_ptr<Transport> accept(int fd) const;

 private:
  explicit TlsContext(void* ssl_ctx) : ssl_ctx_(ssl_ctx) {}
  void* ssl_ctx_;  // SSL_CTX; OpenSSL's headers stay in tls.cc
};

// Whom a client believes. Shared by all connections, on any thread.
class TlsTrust {
 public:
  // The certificates of a PEM file; empty: those of the system.
  static Result<std::unique_ptr<TlsTrust>> load(const std::string& ca_file);
  ~TlsTrust();
  TlsTrust(const TlsTrust&) = delete;
  TlsTrust& operator=(const TlsTrust&) = delete;

  // The handshake fails where the other side cannot prove that it is `host`, a name or an IP address.
  // nullptr: out of memory.
  std::unique_ptr<Transport> connect(int fd, const std::string& host, bool is_address) const;

 private:
  explicit TlsTrust(void* ssl_ctx) : ssl_ctx_(ssl_ctx) {}
  void* ssl_ctx_;
};

}  // namespace sparrow
