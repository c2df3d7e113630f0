// SPDX-License-Identifier: Apache-2.0
#include "comm/net/auth.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <string_view>

#include "base/check.h"
#include "base/strf.h"
#include "comm/net/frame.h"

namespace sparrow {
namespace {

using Nonce = std::array<std::byte, 32>;
using Proof = std::array<std::byte, 32>;
using Opening = std::array<std::byte, 8>;  // "SPARROW" and the protocol

constexpr std::byte kYes{1}, kNo{0};

Opening opening() {
  Opening bytes{};
  std::memcpy(bytes.data(), "SPARROW", 7);
  bytes[7] = std::byte{kProtocol};
  return bytes;
}

Nonce random_nonce() {
  Nonce nonce{};
  SPARROW_CHECK_EQ(RAND_bytes(reinterpret_cast<unsigned char*>(nonce.data()), int{nonce.size()}), 1);
  return nonce;
}

// `side` keeps one side's proof from serving as the other's.
Proof prove(const std::string& token, std::string_view side, const Nonce& listener, const Nonce& connector) {
  std::string message(side);
  message.append(reinterpret_cast<const char*>(listener.data()), listener.size());
  message.append(reinterpret_cast<const char*>(connector.data()), connector.size());
  Proof proof{};
  unsigned length = 0;
  HMAC(EVP_sha256(), token.data(), static_cast<int>(token.size()),
       reinterpret_cast<const unsigned char*>(message.data()), message.size(),
       reinterpret_cast<unsigned char*>(proof.data()), &length);
  SPARROW_CHECK_EQ(length, proof.size());
  return proof;
}

bool equal(const Proof& a, const Proof& b) {
  return CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

Status check_opening(const Fd& socket, const Opening& theirs) {
  const Opening ours = opening();
  if (theirs == ours) return Ok{};
  if (std::equal(ours.begin(), ours.begin() + 7, theirs.begin()))
    return Error{Errc::kInvalidArgument, strf("{} speaks protocol {}, and we {}", peer_name(socket),
                                              std::to_integer<int>(theirs[7]), kProtocol)};
  return Error{Errc::kInvalidArgument, peer_name(socket) + " is no rank of Sparrow"};
}

}  // namespace

Status admit(const Fd& socket, const std::string& token, const GiveUp& give_up) {
  const Nonce mine = random_nonce();
  SPARROW_TRY(send_all(socket, opening(), give_up));
  SPARROW_TRY(send_all(socket, mine, give_up));
  Opening theirs_opening{};
  SPARROW_TRY(receive_all(socket, theirs_opening, give_up));
  SPARROW_TRY(check_opening(socket, theirs_opening));
  Nonce theirs{};
  Proof proof{};
  SPARROW_TRY(receive_all(socket, theirs, give_up));
  SPARROW_TRY(receive_all(socket, proof, give_up));
  const bool holds = equal(proof, prove(token, "connector", mine, theirs));
  SPARROW_TRY(send_all(socket, std::array{holds ? kYes : kNo}, give_up));
  if (!holds) return Error{Errc::kInvalidArgument, peer_name(socket) + " has another token"};
  return send_all(socket, prove(token, "listener", mine, theirs), give_up);
}

Status authenticate(const Fd& socket, const std::string& token, const GiveUp& give_up) {
  Opening theirs_opening{};
  SPARROW_TRY(receive_all(socket, theirs_opening, give_up));
  // Answered before it is judged: the other side then can say what is wrong, too.
  SPARROW_TRY(send_all(socket, opening(), give_up));
  SPARROW_TRY(check_opening(socket, theirs_opening));
  Nonce theirs{};
  SPARROW_TRY(receive_all(socket, theirs, give_up));
  const Nonce mine = random_nonce();
  SPARROW_TRY(send_all(socket, mine, give_up));
  SPARROW_TRY(send_all(socket, prove(token, "connector", theirs, mine), give_up));
  std::array<std::byte, 1> verdict{};
  SPARROW_TRY(receive_all(socket, verdict, give_up));
  Proof proof{};
  if (verdict[0] == kYes) SPARROW_TRY(receive_all(socket, proof, give_up));
  if (verdict[0] != kYes || !equal(proof, prove(token, "listener", theirs, mine)))
    return Error{Errc::kInvalidArgument, peer_name(socket) + " has another token"};
  return Ok{};
}

}  // namespace sparrow
