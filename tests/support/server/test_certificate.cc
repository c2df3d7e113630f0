// SPDX-License-Identifier: Apache-2.0
#include "support/server/test_certificate.h"

#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>

#include <cstdio>
#include <memory>

#include "base/check.h"
#include "support/server/raw_client.h"

namespace sparrow::test {

void write_certificate(const std::string& cert_file, const std::string& key_file) {
  EVP_PKEY* key = EVP_EC_gen("P-256");
  X509* cert = X509_new();
  SPARROW_CHECK(key && cert);
  ASN1_INTEGER_set(X509_get_serialNumber(cert), 1);
  X509_gmtime_adj(X509_getm_notBefore(cert), -60);
  X509_gmtime_adj(X509_getm_notAfter(cert), 3600);
  X509_set_pubkey(cert, key);
  X509_NAME* name = X509_get_subject_name(cert);
  X509_NAME_add_entry_by_txt(name, "CN", MBSTRING_ASC, reinterpret_cast<const unsigned char*>("localhost"),
                             -1, -1, 0);
  X509_set_issuer_name(cert, name);
  SPARROW_CHECK(X509_sign(cert, key, EVP_sha256()) > 0);
  std::FILE* cert_out = std::fopen(cert_file.c_str(), "wb");
  std::FILE* key_out = std::fopen(key_file.c_str(), "wb");
  SPARROW_CHECK(cert_out && key_out);
  PEM_write_X509(cert_out, cert);
  PEM_write_PrivateKey(key_out, key, nullptr, nullptr, 0, nullptr, nullptr);
  std::fclose(cert_out);
  std::fclose(key_out);
  X509_free(cert);
  EVP_PKEY_free(key);
}

TlsAnswer ask_over_tls(int port, std::string_view request, int min_version, int max_version) {
  TlsAnswer answer;
  const RawClient client(port);
  const std::unique_ptr<SSL_CTX, decltype(&SSL_CTX_free)> ctx(SSL_CTX_new(TLS_client_method()), SSL_CTX_free);
  SSL_CTX_set_security_level(ctx.get(), 0);  // old versions must fail for the server's reasons
  SSL_CTX_set_min_proto_version(ctx.get(), min_version);
  SSL_CTX_set_max_proto_version(ctx.get(), max_version);
  static constexpr unsigned char kOffered[] = "\x02h2\x08http/1.1";
  SSL_CTX_set_alpn_protos(ctx.get(), kOffered, sizeof(kOffered) - 1);
  const std::unique_ptr<SSL, decltype(&SSL_free)> ssl(SSL_new(ctx.get()), SSL_free);
  SSL_set_fd(ssl.get(), client.fd());
  if (SSL_connect(ssl.get()) != 1) return answer;
  answer.handshake = true;
  answer.version = SSL_get_version(ssl.get());
  if (X509* const shown = SSL_get1_peer_certificate(ssl.get())) {
    unsigned char* der = nullptr;
    const int der_size = i2d_X509(shown, &der);
    answer.certificate.assign(reinterpret_cast<const char*>(der), static_cast<size_t>(der_size));
    OPENSSL_free(der);
    X509_free(shown);
  }
  const unsigned char* chosen = nullptr;
  unsigned size = 0;
  SSL_get0_alpn_selected(ssl.get(), &chosen, &size);
  if (chosen) answer.protocol.assign(reinterpret_cast<const char*>(chosen), size);
  SSL_write(ssl.get(), request.data(), static_cast<int>(request.size()));
  char buffer[16 << 10];
  for (int n; (n = SSL_read(ssl.get(), buffer, sizeof(buffer))) > 0;)
    answer.bytes.append(buffer, static_cast<size_t>(n));
  return answer;
}

}  // namespace sparrow::test
