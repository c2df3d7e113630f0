// SPDX-License-Identifier: Apache-2.0
// Self-signed certificates made on the spot, and a TLS client that accepts them.
#pragma once

#include <string>
#include <string_view>

namespace sparrow::test {

// Writes an EC key and a certificate for "localhost" in PEM.
void write_certificate(const std::string& cert_file, const std::string& key_file);

struct TlsAnswer {
  bool handshake = false;
  std::string version, protocol;  // "TLSv1.3"; what ALPN chose
  std::string certificate;        // the server's, DER
  std::string bytes;              // until the server closed
};

// Connects with versions from `min_version` to `max_version` (TLS1_2_VERSION, ...; 0: any), sends the request
// and reads the answer.
TlsAnswer ask_over_tls(int port, std::string_view request, int min_version = 0, int max_version = 0);

}  // namespace sparrow::test
