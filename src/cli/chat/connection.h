// SPDX-License-Identifier: Apache-2.0
// Connection: a client's connection to a server, plain or TLS, that can be told to stop at any moment.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "base/result.h"

namespace sparrow::cli {

struct HttpUrl {
  std::string host, port, path;  // path: without a slash at its end
  bool tls = false;

  // host:port as it stands in a URL.
  std::string authority() const;
};

// Whom a client accepts as the server.
struct TlsTrust {
  std::string ca_file;    // PEM; instead of the system's certificates
  bool insecure = false;  // anybody
};

class Connection {
 public:
  // `stop` is set by a signal handler; null: nobody stops it. An error is one line, with what to do next.
  static Result<std::unique_ptr<Connection>> open(const HttpUrl& url, const TlsTrust& trust,
                                                  const std::atomic<bool>* stop);
  virtual ~Connection() = default;

  enum class Io : uint8_t { kDone, kEnd, kStopped };
  virtual Io send(std::string_view bytes) = 0;
  // Appends what comes next. kEnd: nothing more will.
  virtual Io receive(std::string& out) = 0;
};

}  // namespace sparrow::cli
