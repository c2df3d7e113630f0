// SPDX-License-Identifier: Apache-2.0
// TLS over OpenSSL, straight on the socket: no buffers of ours between the two.
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>

#include "base/strf.h"
#include "server/http/transport.h"

namespace sparrow {

namespace {

class TlsTransport final : public Transport {
 public:
  TlsTransport(SSL* ssl, int fd) : ssl_(ssl), fd_(fd) {}
  ~TlsTransport() override { SSL_free(ssl_); }
  TlsTransport(const TlsTransport&) = delete;
  TlsTransport& operator=(const TlsTransport&) = delete;

  Io handshake() override {
    ERR_clear_error();
    return outcome(SSL_do_handshake(ssl_));
  }

  Moved read(char* into, size_t size) override {
    size_t n = 0;
    ERR_clear_error();
    const Io io = outcome(SSL_read_ex(ssl_, into, size, &n));
    return {io, n};
  }

  Moved write(std::string_view bytes) override {
    if (bytes.empty()) return {Io::kDone, 0};
    size_t n = 0;
    ERR_clear_error();
    const Io io = outcome(SSL_write_ex(ssl_, bytes.data(), bytes.size(), &n));
    return {io, n};
  }

  bool has_unread() const override { return SSL_has_pending(ssl_) == 1; }

  void finish() override {
    ERR_clear_error();
    if (!broken_) SSL_shutdown(ssl_);
    ::shutdown(fd_, SHUT_WR);
  }

 private:
  Io outcome(int result) {
    if (result > 0) return Io::kDone;
    switch (SSL_get_error(ssl_, result)) {
      case SSL_ERROR_WANT_READ:
        return Io::kWantRead;
      case SSL_ERROR_WANT_WRITE:
        return Io::kWantWrite;
      case SSL_ERROR_ZERO_RETURN:
        return Io::kClosed;
      default:
        broken_ = true;  // after a fatal error OpenSSL allows no further call, SSL_shutdown included
        return Io::kClosed;
    }
  }

  SSL* ssl_;
  int fd_;
  bool broken_ = false;
};

int choose_protocol(SSL*, const unsigned char** out, unsigned char* out_size, const unsigned char* offered,
                    unsigned offered_size, void*) {
  static constexpr unsigned char kHttp11[] = "\x08http/1.1";
  unsigned char* chosen = nullptr;
  if (SSL_select_next_proto(&chosen, out_size, kHttp11, sizeof(kHttp11) - 1, offered, offered_size) !=
      OPENSSL_NPN_NEGOTIATED)
    return SSL_TLSEXT_ERR_NOACK;
  *out = chosen;
  return SSL_TLSEXT_ERR_OK;
}

Error tls_error(const char* field, const std::string& file, const char* what) {
  ERR_clear_error();
  return Error{Errc::kInvalidArgument, strf("{} {} {}", field, file, what), field};
}

Status check_readable(const char* field, const std::string& file) {
  std::error_code ec;
  if (!std::filesystem::is_regular_file(file, ec))
    return Error{Errc::kNotFound, strf("{} {} is not a file", field, file), field};
  if (FILE* opened = std::fopen(file.c_str(), "rb")) {
    std::fclose(opened);
    return Ok{};
  }
  return Error{Errc::kIo, strf("{} {} cannot be read: {}", field, file, std::strerror(errno)), field};
}

// An encrypted key would otherwise make OpenSSL ask at the terminal.
int no_passphrase(char*, int, int, void*) {
  return 0;
}

}  // namespace

Result<std::unique_ptr<TlsContext>> TlsContext::load(const std::string& cert_file,
                                                     const std::string& key_file) {
  if (cert_file.empty() || key_file.empty())
    return Error{Errc::kInvalidArgument, "TLS needs both ssl-certfile and ssl-keyfile"};
  SPARROW_TRY(check_readable("ssl-certfile", cert_file));
  SPARROW_TRY(check_readable("ssl-keyfile", key_file));
  SSL_CTX* ctx = SSL_CTX_new(TLS_server_method());
  if (!ctx) return tls_error("ssl-certfile", cert_file, "cannot be used: OpenSSL has no memory");
  std::unique_ptr<TlsContext> context(new TlsContext(ctx));
  SSL_CTX_set_min_proto_version(ctx, TLS1_2_VERSION);
  SSL_CTX_set_options(ctx, SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION | SSL_OP_CIPHER_SERVER_PREFERENCE);
  // Idle connections give their 34 KB of record buffers back; a write may go on from another address.
  SSL_CTX_set_mode(
      ctx, SSL_MODE_RELEASE_BUFFERS | SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
  SSL_CTX_set_alpn_select_cb(ctx, choose_protocol, nullptr);
  SSL_CTX_set_default_passwd_cb(ctx, no_passphrase);
  if (SSL_CTX_use_certificate_chain_file(ctx, cert_file.c_str()) != 1)
    return tls_error("ssl-certfile", cert_file, "holds no PEM certificate that can be used");
  if (SSL_CTX_use_PrivateKey_file(ctx, key_file.c_str(), SSL_FILETYPE_PEM) != 1) {
    const bool mismatch = ERR_GET_REASON(ERR_peek_last_error()) == X509_R_KEY_VALUES_MISMATCH;
    return tls_error("ssl-keyfile", key_file,
                     mismatch ? "does not belong to the certificate in ssl-certfile"
                              : "holds no PEM private key without passphrase");
  }
  if (SSL_CTX_check_private_key(ctx) != 1)
    return tls_error("ssl-keyfile", key_file, "does not belong to the certificate in ssl-certfile");
  return context;
}

TlsContext::~TlsContext() {
  SSL_CTX_free(static_cast<SSL_CTX*>(ssl_ctx_));
}

std::unique_ptr<Transport> TlsContext::accept(int fd) const {
  SSL* ssl = SSL_new(static_cast<SSL_CTX*>(ssl_ctx_));
  if (!ssl) return nullptr;
  if (SSL_set_fd(ssl, fd) != 1) {
    SSL_free(ssl);
    return nullptr;
  }
  SSL_set_accept_state(ssl);
  return std::make_unique<TlsTransport>(ssl, fd);
}

Result<std::unique_ptr<TlsTrust>> TlsTrust::load(const std::string& ca_file) {
  SSL_CTX* ctx = SSL_CTX_new(TLS_client_method());
  if (!ctx) return tls_error("certificates", ca_file, "cannot be used: OpenSSL has no memory");
  std::unique_ptr<TlsTrust> trust(new TlsTrust(ctx));
  SSL_CTX_set_min_proto_version(ctx, TLS1_2_VERSION);
  SSL_CTX_set_verify(ctx, SSL_VERIFY_PEER, nullptr);
  SSL_CTX_set_mode(ctx, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
  static constexpr unsigned char kHttp11[] = "\x08http/1.1";
  SSL_CTX_set_alpn_protos(ctx, kHttp11, sizeof(kHttp11) - 1);
  if (!ca_file.empty()) {
    if (SSL_CTX_load_verify_locations(ctx, ca_file.c_str(), nullptr) != 1)
      return tls_error("certificates", ca_file, "holds no PEM certificate that can be used");
    return trust;
  }
  // OpenSSL looks where the distribution that built it keeps them; the program may run on another.
  SSL_CTX_set_default_verify_paths(ctx);
  for (const char* bundle : {"/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt",
                             "/etc/ssl/ca-bundle.pem", "/etc/ssl/cert.pem"})
    if (SSL_CTX_load_verify_locations(ctx, bundle, nullptr) == 1) break;
  ERR_clear_error();
  return trust;
}

TlsTrust::~TlsTrust() {
  SSL_CTX_free(static_cast<SSL_CTX*>(ssl_ctx_));
}

std::unique_ptr<Transport> TlsTrust::connect(int fd, const std::string& host, bool is_address) const {
  SSL* ssl = SSL_new(static_cast<SSL_CTX*>(ssl_ctx_));
  if (!ssl) return nullptr;
  auto transport = std::make_unique<TlsTransport>(ssl, fd);
  SSL_set_connect_state(ssl);
  const bool named =
      is_address ? X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(ssl), host.c_str()) == 1
                 : SSL_set1_host(ssl, host.c_str()) == 1 && SSL_set_tlsext_host_name(ssl, host.c_str()) == 1;
  if (!named || SSL_set_fd(ssl, fd) != 1) return nullptr;
  SSL_set_hostflags(ssl, X509_CHECK_FLAG_NO_PARTIAL_WILDCARDS);
  return transport;
}

}  // namespace sparrow
