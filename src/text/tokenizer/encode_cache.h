// SPDX-License-Identifier: Apache-2.0
// EncodeCache: remembers prompts and their ids, so that the next turn of a long conversation costs only
// its new part. Texts of one salt never help those of another: nobody may learn from timing what others have
// asked.
#pragma once

#include <cstdint>
#include <list>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "text/tokenizer/tokenizer.h"

namespace sparrow {

// Any thread may call it. The tokenizer must outlive it.
class EncodeCache {
 public:
  // Keeps texts and ids of at most `budget_bytes`; the longest unused go first. A lookup reads at most all of
  // that.
  explicit EncodeCache(const Tokenizer& tokenizer, size_t budget_bytes = size_t{64} << 20)
      : tokenizer_(tokenizer), budget_bytes_(budget_bytes) {}

  // Exactly what tokenizer.encode(prompt) gives; like it, stops soon after there are more than `max_ids`.
  Result<std::vector<int32_t>> encode(const PromptText& prompt, std::string_view salt = "",
                                      size_t max_ids = SIZE_MAX);
  // The same for a text that is the caller's own throughout.
  Result<std::vector<int32_t>> encode(std::string_view text, std::string_view salt = "",
                                      size_t max_ids = SIZE_MAX) {
    return encode(PromptText::whole(std::string(text)), salt, max_ids);
  }

  // Bytes of text that had to be tokenised so far, for tests and statistics.
  uint64_t encoded_bytes() const;

 private:
  struct Entry {
    uint64_t serial;  // changes whenever the entry does
    std::string salt;
    PromptText prompt;
    std::vector<int32_t> ids;
    std::vector<EncodeCheckpoint> checkpoints;

    size_t bytes() const {
      return salt.capacity() + prompt.text.capacity() + prompt.markup.capacity() * sizeof(TextRange) +
             ids.capacity() * sizeof(int32_t) + checkpoints.capacity() * sizeof(EncodeCheckpoint);
    }
  };
  struct Start {
    size_t num_bytes = 0;  // where tokenising has to begin
    uint64_t serial = 0;   // of the entry that knew the part before; 0: none
  };

  // The longest start of the prompt that is known under this salt; its ids go to `ids`. The same text with
  // other markup is another prompt.
  Start find(const PromptText& prompt, std::string_view salt, std::vector<int32_t>& ids);
  void store(const PromptText& prompt, std::string_view salt, Start start, const std::vector<int32_t>& ids,
             const std::vector<EncodeCheckpoint>& new_checkpoints);
  void evict();

  const Tokenizer& tokenizer_;
  const size_t budget_bytes_;
  mutable std::mutex mutex_;
  std::list<Entry> entries_;  // the last one used in front
  uint64_t last_serial_ = 0;
  uint64_t encoded_bytes_ = 0;
};

}  // namespace sparrow
