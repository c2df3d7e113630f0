// SPDX-License-Identifier: Apache-2.0
// Tokenizer: bytes to ids and back. Immutable once loaded; any number of threads may use one.
#pragma once

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/result.h"
#include "text/tokenizer/added_tokens.h"
#include "text/tokenizer/bpe.h"
#include "text/tokenizer/pretokenize.h"

namespace sparrow {

struct TokenizerFile;

// A place in a text up to which its ids are known to depend on nothing that comes more than
// Tokenizer::checkpoint_margin() bytes later.
struct EncodeCheckpoint {
  size_t num_bytes;
  size_t num_ids;
};

class Tokenizer {
 public:
  // tokenizer.json and, if there is one, tokenizer_config.json of a checkpoint's folder.
  static Result<Tokenizer> load(const std::filesystem::path& folder);
  // The same from their texts.
  static Result<Tokenizer> parse(std::string_view tokenizer_json, std::string_view config_json = "");

  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;
  ~Tokenizer();

  // Ids are below this. Models may have more embedding rows; decode() knows those too, once reserve_ids() was
  // called.
  int vocab_size() const { return vocab_size_; }
  // Ids up to `count`, which the model has rows for and no token uses, decode to nothing.
  void reserve_ids(int count) { vocab_size_ = std::max(vocab_size_, count); }

  // The ids of `text`; what is not UTF-8 counts as U+FFFD. Nothing is added before or after. Stops soon after
  // there are more than `max_ids`. Error: only where the pattern of the model file needs more steps than it
  // may take.
  Result<std::vector<int32_t>> encode(std::string_view text, Recognise recognise = Recognise::kAll,
                                      size_t max_ids = SIZE_MAX) const;
  // The same, with control tokens in the markup only.
  Result<std::vector<int32_t>> encode(const PromptText& prompt, size_t max_ids = SIZE_MAX) const;

  // Appends the ids of text[from..] for valid UTF-8, where `from` is 0 or a checkpoint. Adds checkpoints if
  // asked to.
  Status encode_from(std::string_view text, size_t from, const Recognition& recognition,
                     std::vector<int32_t>& ids, std::vector<EncodeCheckpoint>* checkpoints,
                     size_t max_ids = SIZE_MAX) const;
  // A text of so many bytes has no fewer ids than this: no id stands for more bytes than the longest token.
  size_t min_ids(size_t text_bytes) const;
  // nullopt: this tokenizer has no checkpoints.
  std::optional<size_t> checkpoint_margin() const { return checkpoint_margin_; }

  // The text of the ids, U+FFFD for bytes that are not UTF-8. An id out of range is an error.
  Result<std::string> decode(std::span<const int32_t> ids, bool skip_special = false) const;
  // The bytes of one token, which need not be whole characters. An id out of range is an error.
  Result<std::string_view> bytes_of(int32_t id) const;
  // Control tokens, which are no part of the text that the model writes. False for tags of reasoning and tool
  // calls.
  bool is_special(int32_t id) const;

  // The id of an added token, or else of the token with these bytes.
  std::optional<int32_t> id_of(std::string_view token) const;
  std::span<const AddedToken> added_tokens() const { return added_; }
  std::optional<int32_t> bos() const { return bos_; }
  std::optional<int32_t> eos() const { return eos_; }
  std::optional<int32_t> unk() const { return unk_; }

 private:
  class CachePool;
  struct Run;
  struct Token {
    std::string bytes;
    bool special = false;
  };

  Tokenizer(TokenizerFile file, Pretokenizer pretokenizer);
  Status encode_gap(std::string_view text, TextRange gap, const Recognition& recognition, Run& run) const;
  Status encode_words(std::string_view piece, Run& run) const;
  void encode_word(std::string_view word, const WordCache::Key& key, Run& run) const;
  bool is_settled(const char* word_end, const char* piece_end) const;

  std::vector<Token> tokens_;  // by id
  int vocab_size_ = 0;
  std::unordered_map<std::string_view, int32_t>
      word_id_;  // of the tokens that BPE may produce; views of tokens_
  std::vector<AddedToken> added_;
  std::vector<AddedToken>
      added_normalized_;  // those that are looked for in normalised text, as they look there
  AddedTokenFinder before_normalizing_, after_normalizing_;
  std::vector<NormalForm> normal_forms_;
  Pretokenizer pretokenizer_;
  Bpe bpe_;
  bool ignore_merges_ = false;
  std::optional<size_t> checkpoint_margin_;
  size_t max_token_bytes_ = 0;  // 0: an id may stand for any number of bytes
  std::optional<int32_t> bos_, eos_, unk_;
  std::unique_ptr<CachePool> caches_;
};

}  // namespace sparrow
