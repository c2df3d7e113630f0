// SPDX-License-Identifier: Apache-2.0
#include "server/media/sha256.h"

#include <openssl/evp.h>

#include <memory>

#include "base/check.h"

namespace sparrow {

Sha256Digest sha256(std::initializer_list<std::span<const std::byte>> pieces) {
  const std::unique_ptr<EVP_MD_CTX, void (*)(EVP_MD_CTX*)> context(EVP_MD_CTX_new(), EVP_MD_CTX_free);
  Sha256Digest digest{};
  SPARROW_CHECK(context && EVP_DigestInit_ex2(context.get(), EVP_sha256(), nullptr) == 1);
  for (const std::span<const std::byte> piece : pieces)
    SPARROW_CHECK(EVP_DigestUpdate(context.get(), piece.data(), piece.size()) == 1);
  SPARROW_CHECK(EVP_DigestFinal_ex(context.get(), digest.data(), nullptr) == 1);
  return digest;
}

}  // namespace sparrow
