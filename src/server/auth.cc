// SPDX-License-Identifier: Apache-2.0
#include "server/auth.h"

#include <openssl/crypto.h>
#include <openssl/sha.h>

#include <algorithm>
#include <charconv>

#include "base/files/mapped_file.h"
#include "base/strf.h"
#include "server/http/message/message.h"

namespace sparrow {

namespace {

constexpr size_t kMaxKeyBytes = 512;
constexpr size_t kMaxFileBytes = size_t{16} << 20;
constexpr size_t kIdDigits = 32, kIdDigitsInName = 8;
constexpr std::string_view kBlank = " \t\r\n";

using Hash = std::array<unsigned char, SHA256_DIGEST_LENGTH>;

Hash sha256(std::string_view text) {
  Hash hash;
  SHA256(reinterpret_cast<const unsigned char*>(text.data()), text.size(), hash.data());
  return hash;
}

// Not a prefix of the hash that keys are compared by: the id may appear in logs and as a cache salt.
std::string key_id(std::string_view key) {
  const Hash hash = sha256(strf("sparrow key id\n{}", key));
  std::string id;
  for (const unsigned char byte : hash) id += strf("{:02x}", byte);
  return id.substr(0, kIdDigits);
}

bool is_usable_key(std::string_view key) {
  return !key.empty() && key.size() <= kMaxKeyBytes &&
         std::all_of(key.begin(), key.end(), [](char c) { return c > 0x20 && c < 0x7f; });
}

// The next piece of `text` that holds none of `separators`; empty at the end.
std::string_view take_word(std::string_view& text, std::string_view separators) {
  text.remove_prefix(std::min(text.find_first_not_of(separators), text.size()));
  const std::string_view word = text.substr(0, text.find_first_of(separators));
  text.remove_prefix(word.size());
  return word;
}

}  // namespace

std::optional<KeyTicket> KeyTicket::take(std::shared_ptr<const ApiKey> key) {
  // Counted first, then judged: two requests that arrive together cannot both take the last place.
  KeyTicket ticket(std::move(key));
  const ApiKey& held = *ticket.key_;
  const int requests = held.usage->requests.fetch_add(1, std::memory_order_relaxed) + 1;
  if (held.limits.max_requests > 0 && requests > held.limits.max_requests) return std::nullopt;
  return ticket;
}

std::optional<PriorityRange> PriorityRange::parse(std::string_view text) {
  PriorityRange range;
  const char* const end = text.data() + text.size();
  const auto low = std::from_chars(text.data(), end, range.low);
  if (low.ec != std::errc{} || !std::string_view(low.ptr, end).starts_with("..")) return std::nullopt;
  const auto high = std::from_chars(low.ptr + 2, end, range.high);
  if (high.ec != std::errc{} || high.ptr != end || range.low > range.high) return std::nullopt;
  return range;
}

KeyTicket& KeyTicket::operator=(KeyTicket&& other) noexcept {
  if (this != &other) {
    release();
    key_ = std::move(other.key_);
    tokens_ = std::exchange(other.tokens_, 0);
  }
  return *this;
}

bool KeyTicket::add_tokens(int64_t tokens) {
  tokens_ += tokens;
  const int64_t all = key_->usage->tokens.fetch_add(tokens, std::memory_order_relaxed) + tokens;
  const bool others = all > tokens_;  // those that hold no tokens yet count as nobody
  return key_->limits.max_tokens <= 0 || all <= key_->limits.max_tokens || !others;
}

void KeyTicket::release() {
  if (!key_) return;
  key_->usage->requests.fetch_sub(1, std::memory_order_relaxed);
  key_->usage->tokens.fetch_sub(tokens_, std::memory_order_relaxed);
  key_ = nullptr;
}

ApiKeys::ApiKeys() : keys_(std::make_shared<Keys>()) {
  auto anonymous = std::make_shared<ApiKey>();
  anonymous->name = "anonymous";
  anonymous_ = std::move(anonymous);
}

std::shared_ptr<const ApiKeys::Keys> ApiKeys::snapshot() const {
  const std::lock_guard lock(mutex_);
  return keys_;
}

void ApiKeys::set_anonymous_limits(const KeyLimits& limits) {
  auto anonymous = std::make_shared<ApiKey>(*anonymous_);
  anonymous->limits = limits;
  const std::lock_guard lock(mutex_);
  anonymous_ = std::move(anonymous);
}

void ApiKeys::replace_with(ApiKeys& fresh) {
  const auto old = snapshot();
  for (const auto& key : *fresh.keys_)
    for (const auto& known : *old)
      if (known->hash == key->hash) key->usage = known->usage;
  const std::lock_guard lock(mutex_);
  keys_ = fresh.keys_;
}

Status ApiKeys::add(std::string_view key, std::string name, KeyLimits limits) {
  if (!is_usable_key(key))
    return Error{Errc::kInvalidArgument,
                 strf("an API key must be 1 to {} printable characters without spaces{}", kMaxKeyBytes,
                      key.empty() ? ", got none" : ""),
                 "api-key"};
  auto entry = std::make_shared<ApiKey>();
  entry->id = key_id(key);
  entry->name = name.empty() ? "key-" + entry->id.substr(0, kIdDigitsInName) : std::move(name);
  entry->limits = limits;
  entry->hash = sha256(key);
  for (const auto& other : *keys_)
    if (other->id == entry->id)
      return Error{Errc::kInvalidArgument, "the same API key is given twice", "api-key"};
  keys_->push_back(std::move(entry));
  return Ok{};
}

Status ApiKeys::add_list(std::string_view keys, std::string_view source, KeyLimits limits) {
  int count = 0;
  for (std::string_view key; !(key = take_word(keys, ", \t\r\n")).empty(); ++count) {
    const Status added = add(key, "", limits);
    if (!added.ok())
      return Error{added.error().code, strf("{}: key {}: {}", source, count + 1, added.error().message),
                   "api-key"};
  }
  if (count == 0) return Error{Errc::kInvalidArgument, strf("{} holds no API key", source), "api-key"};
  return Ok{};
}

Status ApiKeys::add_file(const std::string& path, KeyLimits limits) {
  const std::string text = SPARROW_TRY(read_text_file(path, kMaxFileBytes));
  const size_t before = keys_->size();
  int number = 0;
  for (std::string_view rest = text; !rest.empty();) {
    const std::string_view line = rest.substr(0, rest.find('\n'));
    rest.remove_prefix(std::min(line.size() + 1, rest.size()));
    SPARROW_TRY(add_line(line, strf("{}:{}", path, ++number), limits));
  }
  if (keys_->size() == before)
    return Error{Errc::kInvalidArgument, strf("{} holds no API key", path), "api-key-file"};
  return Ok{};
}

Status ApiKeys::add_line(std::string_view line, const std::string& where, KeyLimits limits) {
  const std::string_view key = take_word(line, kBlank);
  if (key.empty() || key.starts_with('#')) return Ok{};
  const auto fail = [&](std::string_view what) {
    return Error{Errc::kInvalidArgument, strf("{}: {}", where, what), "api-key-file"};
  };
  std::string name;
  for (std::string_view word; !(word = take_word(line, kBlank)).empty();) {
    if (word.starts_with('#')) break;
    const size_t equals = word.find('=');
    const std::string_view field = word.substr(0, equals);
    const std::string_view value = equals == std::string_view::npos ? "" : word.substr(equals + 1);
    int64_t number = 0;
    const auto [end, ec] = std::from_chars(value.data(), value.data() + value.size(), number);
    const bool is_number =
        !value.empty() && ec == std::errc{} && end == value.data() + value.size() && number > 0;
    if (field == "name" && !value.empty())
      name = value;
    else if (field == "requests" && is_number && number <= INT32_MAX)
      limits.max_requests = static_cast<int>(number);
    else if (field == "tokens" && is_number)
      limits.max_tokens = number;
    else if (const auto range = PriorityRange::parse(value); field == "priority" && range)
      limits.priorities = *range;
    else
      return fail(
          "after the key only name=TEXT, requests=NUMBER, tokens=NUMBER and priority=LO..HI may follow");
  }
  const Status added = add(key, std::move(name), limits);
  return added.ok() ? added : fail(added.error().message);
}

std::shared_ptr<const ApiKey> ApiKeys::authenticate(const std::string* authorization) const {
  const std::shared_ptr<const Keys> keys = snapshot();
  if (keys->empty()) {
    const std::lock_guard lock(mutex_);
    return anonymous_;
  }
  constexpr std::string_view kScheme = "Bearer ";
  if (!authorization || !same_field_name(std::string_view(*authorization).substr(0, kScheme.size()), kScheme))
    return nullptr;
  const Hash hash = sha256(std::string_view(*authorization).substr(kScheme.size()));
  // Every key is compared, and all of it: the time must not tell which one, or how much of it, was right.
  size_t found = 0;
  for (size_t i = 0; i < keys->size(); ++i) {
    const size_t same = CRYPTO_memcmp(hash.data(), (*keys)[i]->hash.data(), hash.size()) == 0;
    found |= (i + 1) * same;
  }
  return found == 0 ? nullptr : (*keys)[found - 1];
}

}  // namespace sparrow
