// SPDX-License-Identifier: Apache-2.0
// API keys: who is asking, and how much of the server that key may hold at once. Keys are kept as SHA-256 and
// never printed. Filled before the server starts; after that every const function and replace_with() may be
// called on any thread.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"

namespace sparrow {

// What a request's `priority` may be; a value outside is clamped. By default every request has the same.
struct PriorityRange {
  int low = 0, high = 0;  // smaller runs first

  // "LO..HI", such as -10..10.
  static std::optional<PriorityRange> parse(std::string_view text);
  int nearest(int priority) const { return std::clamp(priority, low, high); }
};

// 0: no limit.
struct KeyLimits {
  int max_requests = 0;    // at the same time
  int64_t max_tokens = 0;  // prompt and room for the answer, of all requests at the same time
  PriorityRange priorities;
};

// What a key holds now. It outlives a change of the key's limits.
struct KeyUsage {
  std::atomic<int> requests{0};
  std::atomic<int64_t> tokens{0};
};

struct ApiKey {
  std::string id;    // 32 hex digits that follow from the key alone: the same after a restart; empty: no key
  std::string name;  // for logs and metrics: as the file has it, else "key-" and the first digits of the id
  KeyLimits limits;
  std::array<unsigned char, 32> hash{};
  std::shared_ptr<KeyUsage> usage = std::make_shared<KeyUsage>();
};

// A request's share of its key's limits, given back on destruction.
class KeyTicket {
 public:
  // A place for one request; nullopt: the key is at its limit.
  static std::optional<KeyTicket> take(std::shared_ptr<const ApiKey> key);

  KeyTicket() = default;
  KeyTicket(KeyTicket&& other) noexcept
      : key_(std::move(other.key_)), tokens_(std::exchange(other.tokens_, 0)) {}
  KeyTicket& operator=(KeyTicket&& other) noexcept;
  ~KeyTicket() { release(); }

  // The tokens of the request, once they are known. False: the key's requests hold too many already. A key
  // may always run one request, however large.
  bool add_tokens(int64_t tokens);
  const KeyLimits& limits() const { return key_->limits; }  // of a ticket that was taken
  void release();

 private:
  explicit KeyTicket(std::shared_ptr<const ApiKey> key) : key_(std::move(key)) {}

  std::shared_ptr<const ApiKey> key_;  // may have been replaced since
  int64_t tokens_ = 0;
};

class ApiKeys {
 public:
  ApiKeys();

  Status add(std::string_view key, std::string name = "", KeyLimits limits = {});
  // Keys separated by commas or white space, as an environment variable or a flag holds them. `source` names
  // the place in messages.
  Status add_list(std::string_view keys, std::string_view source, KeyLimits limits = {});
  // One key per line, then optionally name=..., requests=..., tokens=..., priority=LO..HI for that key; #
  // starts a comment.
  Status add_file(const std::string& path, KeyLimits limits = {});

  // Of everybody, where there are no keys.
  void set_anonymous_limits(const KeyLimits& limits);

  // Replaces these keys with those of `fresh`. What a key that stays holds still counts.
  void replace_with(ApiKeys& fresh);

  bool empty() const { return size() == 0; }
  size_t size() const { return snapshot()->size(); }

  // The key of an Authorization field ("Bearer ..."); nullptr: not one of ours. Takes the same time whichever
  // key it is and however much of it is right. Without any keys everybody is the same anonymous key.
  std::shared_ptr<const ApiKey> authenticate(const std::string* authorization) const;

 private:
  using Keys = std::vector<std::shared_ptr<ApiKey>>;

  Status add_line(std::string_view line, const std::string& where, KeyLimits limits);
  std::shared_ptr<const Keys> snapshot() const;

  mutable std::mutex mutex_;    // of the pointers, not of what they point to
  std::shared_ptr<Keys> keys_;  // the vector changes only before the server starts
  std::shared_ptr<const ApiKey> anonymous_;
};

}  // namespace sparrow
