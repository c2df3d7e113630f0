// SPDX-License-Identifier: Apache-2.0
// API keys: who is asking, and how much of the server that key may hold at once. Keys are kept as SHA-256 and
// never printed. Filled before the server starts; after that every function may be called on any thread.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"

namespace sparrow {

// 0: no limit.
struct KeyLimits {
  int max_requests = 0;    // at the same time
  int64_t max_tokens = 0;  // prompt and room for the answer, of all requests at the same time
};

struct ApiKey {
  std::string id;    // 32 hex digits that follow from the key alone: the same after a restart; empty: no key
  std::string name;  // for logs and metrics: as the file has it, else "key-" and the first digits of the id
  KeyLimits limits;
  std::array<unsigned char, 32> hash{};
  mutable std::atomic<int> requests{0};
  mutable std::atomic<int64_t> tokens{0};
};

// A request's share of its key's limits, given back on destruction.
class KeyTicket {
 public:
  KeyTicket() = default;
  KeyTicket(const ApiKey& key, int64_t tokens) : key_(&key), tokens_(tokens) {}
  KeyTicket(KeyTicket&& other) noexcept
      : key_(std::exchange(other.key_, nullptr)), tokens_(std::exchange(other.tokens_, 0)) {}
  KeyTicket& operator=(KeyTicket&& other) noexcept;
  ~KeyTicket() { release(); }

  void release();

 private:
  const ApiKey* key_ = nullptr;
  int64_t tokens_ = 0;
};

enum class LimitHit { kNone, kRequests, kTokens };

struct Admission {
  LimitHit hit;
  KeyTicket ticket;  // holds nothing unless hit is kNone
};

class ApiKeys {
 public:
  ApiKeys();

  Status add(std::string_view key, std::string name = "", KeyLimits limits = {});
  // Keys separated by commas or white space, as an environment variable or a flag holds them. `source` names
  // the place in messages.
  Status add_list(std::string_view keys, std::string_view source, KeyLimits limits = {});
  // One key a line, then optionally name=..., requests=..., tokens=... for that key; # starts a comment.
  Status add_file(const std::string& path, KeyLimits limits = {});

  bool empty() const { return keys_.empty(); }
  size_t size() const { return keys_.size(); }

  // The key of an Authorization field ("Bearer ..."); nullptr: not one of ours. Takes the same time whichever
  // key it is and however much of it is right. Without any keys everybody is the same anonymous key.
  const ApiKey* authenticate(const std::string* authorization) const;

  // A place for one request of `tokens` tokens. A key may always run one request, however large.
  static Admission admit(const ApiKey& key, int64_t tokens);

 private:
  Status add_line(std::string_view line, const std::string& where, KeyLimits limits);

  std::vector<std::unique_ptr<ApiKey>> keys_;
  std::unique_ptr<ApiKey> anonymous_;
};

}  // namespace sparrow
