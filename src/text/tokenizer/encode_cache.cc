// SPDX-License-Identifier: Apache-2.0
#include "text/tokenizer/encode_cache.h"

#include <algorithm>
#include <cstring>

#include "base/utf8.h"

namespace sparrow {
namespace {

// Shorter texts take less time than the bookkeeping.
constexpr size_t kMinBytes = 2048;
// What an entry may lose when it grows into the next turn: the end of its prompt, where the answer has taken
// over.
constexpr size_t kMaxLostBytes = 4096;

size_t common_prefix(std::string_view a, std::string_view b) {
  constexpr size_t kStep = 4096;  // memcmp is fast but does not say where texts part
  const size_t size = std::min(a.size(), b.size());
  size_t i = 0;
  while (i + kStep <= size && std::memcmp(a.data() + i, b.data() + i, kStep) == 0) i += kStep;
  while (i < size && a[i] == b[i]) ++i;
  return i;
}

size_t common_prefix(const PromptText& a, const PromptText& b) {
  return std::min(common_prefix(std::string_view(a.text), b.text), common_markup(a.markup, b.markup));
}

}  // namespace

Result<std::vector<int32_t>> EncodeCache::encode(const PromptText& prompt, std::string_view salt,
                                                 size_t max_ids) {
  if (prompt.text.size() < kMinBytes || !tokenizer_.checkpoint_margin())
    return tokenizer_.encode(prompt, max_ids);
  std::vector<int32_t> ids;
  const Start start = find(prompt, salt, ids);
  if (start.num_bytes == prompt.text.size()) return ids;
  // The known part is valid, and it ends where a character does.
  PromptText repaired;
  const PromptText* valid = &prompt;
  const std::string_view rest = std::string_view(prompt.text).substr(start.num_bytes);
  if (valid_utf8_prefix(rest) != rest.size()) valid = &(repaired = with_valid_utf8(prompt));
  std::vector<EncodeCheckpoint> checkpoints;
  SPARROW_TRY(tokenizer_.encode_from(valid->text, start.num_bytes, Recognition(valid->markup), ids,
                                     &checkpoints, max_ids));
  if (ids.size() > max_ids) return ids;  // of part of the text, perhaps: nothing to remember
  store(*valid, salt, start, ids, checkpoints);
  return ids;
}

uint64_t EncodeCache::encoded_bytes() const {
  const std::lock_guard lock(mutex_);
  return encoded_bytes_;
}

EncodeCache::Start EncodeCache::find(const PromptText& prompt, std::string_view salt,
                                     std::vector<int32_t>& ids) {
  const std::string_view text = prompt.text;
  const size_t margin = *tokenizer_.checkpoint_margin();
  const std::lock_guard lock(mutex_);
  auto best = entries_.end();
  EncodeCheckpoint from{0, 0};
  for (auto entry = entries_.begin(); entry != entries_.end(); ++entry) {
    if (entry->salt != salt) continue;
    const size_t common = common_prefix(entry->prompt, prompt);
    if (common == text.size() && common == entry->prompt.text.size()) {
      best = entry;
      from = {common, entry->ids.size()};
      break;
    }
    const auto after = std::upper_bound(entry->checkpoints.begin(), entry->checkpoints.end(), common,
                                        [margin](size_t bytes, const EncodeCheckpoint& checkpoint) {
                                          return bytes < checkpoint.num_bytes + margin;
                                        });
    if (after == entry->checkpoints.begin() || after[-1].num_bytes <= from.num_bytes) continue;
    best = entry;
    from = after[-1];
  }
  if (best == entries_.end()) return {};
  entries_.splice(entries_.begin(), entries_, best);
  ids.reserve(from.num_ids + (text.size() - from.num_bytes) / 3 + 1);
  ids.assign(best->ids.begin(), best->ids.begin() + static_cast<ptrdiff_t>(from.num_ids));
  return {from.num_bytes, best->serial};
}

void EncodeCache::store(const PromptText& prompt, std::string_view salt, Start start,
                        const std::vector<int32_t>& ids,
                        const std::vector<EncodeCheckpoint>& new_checkpoints) {
  const std::string_view text = prompt.text;
  const std::lock_guard lock(mutex_);
  encoded_bytes_ += text.size() - start.num_bytes;
  const auto known = std::find_if(entries_.begin(), entries_.end(),
                                  [&](const Entry& entry) { return entry.serial == start.serial; });
  const auto is_kept = [&](const EncodeCheckpoint& checkpoint) {
    return checkpoint.num_bytes <= start.num_bytes;
  };
  if (known != entries_.end() && known->prompt.text.size() <= start.num_bytes + kMaxLostBytes) {
    const auto kept = std::find_if_not(known->checkpoints.begin(), known->checkpoints.end(), is_kept);
    known->checkpoints.erase(kept, known->checkpoints.end());
    const size_t num_ids = known->checkpoints.back().num_ids;
    known->prompt.text.resize(start.num_bytes);
    known->prompt.text += text.substr(start.num_bytes);
    known->prompt.markup = prompt.markup;
    known->ids.resize(num_ids);
    known->ids.insert(known->ids.end(), ids.begin() + static_cast<ptrdiff_t>(num_ids), ids.end());
    known->checkpoints.insert(known->checkpoints.end(), new_checkpoints.begin(), new_checkpoints.end());
    known->serial = ++last_serial_;
  } else {
    Entry entry{.serial = ++last_serial_, .salt = std::string(salt)};
    // Room for some turns: moving megabytes would cost more than the next turn itself.
    entry.prompt.text.reserve(text.size() + text.size() / 4);
    entry.prompt.text = text;
    entry.prompt.markup = prompt.markup;
    entry.ids.reserve(ids.size() + ids.size() / 4);
    entry.ids = ids;
    if (known != entries_.end())
      std::copy_if(known->checkpoints.begin(), known->checkpoints.end(),
                   std::back_inserter(entry.checkpoints), is_kept);
    entry.checkpoints.insert(entry.checkpoints.end(), new_checkpoints.begin(), new_checkpoints.end());
    entries_.push_front(std::move(entry));
  }
  evict();
}

void EncodeCache::evict() {
  size_t bytes = 0;
  for (auto entry = entries_.begin(); entry != entries_.end();) {
    bytes += entry->bytes();
    entry = bytes > budget_bytes_ ? entries_.erase(entry) : std::next(entry);
  }
}

}  // namespace sparrow
