// SPDX-License-Identifier: Apache-2.0
#include "text/tokenizer/tokenizer.h"

#include <algorithm>
#include <array>
#include <mutex>

#include "base/files/mapped_file.h"
#include "base/math.h"
#include "base/utf8.h"
#include "text/m3_tokens.h"
#include "text/tokenizer/tokenizer_file.h"

namespace sparrow {
namespace {

constexpr size_t kMaxFileBytes = size_t{256} << 20;
constexpr size_t kCheckpointBytes = 256;
// A scanner looks at most four characters past a word that ends in a letter or digit.
constexpr size_t kScannerMargin = 16;
constexpr size_t kWordsAhead = 16;

}  // namespace

// Word caches for as many threads as encode at once. A cache belongs to one call at a time, so it needs no
// locks.
class Tokenizer::CachePool {
 public:
  class Lease {
   public:
    explicit Lease(CachePool& pool) : pool_(pool), cache_(pool.take()) {}
    ~Lease() { pool_.give_back(std::move(cache_)); }
    Lease(const Lease&) = delete;
    Lease& operator=(const Lease&) = delete;
    WordCache& operator*() { return *cache_; }

   private:
    CachePool& pool_;
    std::unique_ptr<WordCache> cache_;
  };

 private:
  std::unique_ptr<WordCache> take() {
    const std::lock_guard lock(mutex_);
    if (free_.empty()) return std::make_unique<WordCache>();
    auto cache = std::move(free_.back());
    free_.pop_back();
    return cache;
  }
  void give_back(std::unique_ptr<WordCache> cache) {
    const std::lock_guard lock(mutex_);
    free_.push_back(std::move(cache));
  }

  std::mutex mutex_;
  std::vector<std::unique_ptr<WordCache>> free_;
};

// One call of encode_from().
struct Tokenizer::Run {
  std::vector<int32_t>& ids;
  WordCache& cache;
  const char* text;                            // checkpoints count from here
  std::vector<EncodeCheckpoint>* checkpoints;  // nullptr: none wanted, and the text may be a normalised copy
  const char* next_checkpoint;                 // the first place where one is wanted
  size_t max_ids;                              // more need not be found

  bool full() const { return ids.size() > max_ids; }
  bool wants_checkpoint(const char* at) const { return checkpoints != nullptr && at >= next_checkpoint; }
  void mark(const char* at) {
    checkpoints->push_back({static_cast<size_t>(at - text), ids.size()});
    next_checkpoint = at + kCheckpointBytes;
  }
};

Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;
Tokenizer::~Tokenizer() = default;

Tokenizer::Tokenizer(TokenizerFile file, Pretokenizer pretokenizer)
    : added_(std::move(file.added)),
      normal_forms_(std::move(file.normal_forms)),
      pretokenizer_(std::move(pretokenizer)),
      bpe_(file.byte_ids, file.merges),
      ignore_merges_(file.ignore_merges),
      bos_(file.bos),
      eos_(file.eos),
      unk_(file.unk),
      caches_(std::make_unique<CachePool>()) {
  tokens_.reserve(file.tokens.size());
  for (TokenizerFile::Token& token : file.tokens) tokens_.push_back({std::move(token.bytes), false});
  for (size_t id = 0; id < tokens_.size(); ++id)
    if (file.tokens[id].in_vocab) word_id_.emplace(tokens_[id].bytes, static_cast<int32_t>(id));
  vocab_size_ = static_cast<int>(tokens_.size());
  bool plain = normal_forms_.empty();
  for (const AddedToken& token : added_) {
    tokens_[static_cast<size_t>(token.id)].special = token.special && !is_markup_token(token.content);
    if (token.is_control()) word_id_.erase(token.content);  // text that spells it must not become it
    plain = plain && !token.single_word && !token.lstrip && !token.rstrip;
    if (!token.normalized) continue;
    AddedToken& copy = added_normalized_.emplace_back(token);
    for (const NormalForm form : normal_forms_) copy.content = normalized(copy.content, form);
  }
  std::vector<const AddedToken*> before, after;
  for (const AddedToken& token : added_)
    if (!token.normalized) before.push_back(&token);
  for (const AddedToken& token : added_normalized_) after.push_back(&token);
  before_normalizing_ = AddedTokenFinder(before);
  after_normalizing_ = AddedTokenFinder(after);
  if (!plain) return;
  checkpoint_margin_ = kScannerMargin + before_normalizing_.max_bytes() + after_normalizing_.max_bytes();
  // A scanner drops nothing, as other patterns may.
  if (pretokenizer_.only_scanner() != nullptr)
    for (const Token& token : tokens_) max_token_bytes_ = std::max(max_token_bytes_, token.bytes.size());
}

size_t Tokenizer::min_ids(size_t text_bytes) const {
  return max_token_bytes_ == 0 ? 0 : ceil_div(text_bytes, max_token_bytes_);
}

Result<Tokenizer> Tokenizer::load(const std::filesystem::path& folder) {
  const std::string tokenizer = SPARROW_TRY(read_text_file(folder / "tokenizer.json", kMaxFileBytes));
  const std::filesystem::path config_path = folder / "tokenizer_config.json";
  std::error_code ignored;
  std::string config;
  if (std::filesystem::exists(config_path, ignored))
    config = SPARROW_TRY(read_text_file(config_path, kMaxFileBytes));
  auto parsed = parse(tokenizer, config);
  if (parsed.ok()) return parsed;
  return Error{parsed.error().code, strf("{}: {}", quoted(folder), parsed.error().message)};
}

Result<Tokenizer> Tokenizer::parse(std::string_view tokenizer_json, std::string_view config_json) {
  TokenizerFile file = SPARROW_TRY(parse_tokenizer_file(tokenizer_json, config_json));
  Pretokenizer pretokenizer = SPARROW_TRY(Pretokenizer::make(std::move(file.split_rules)));
  return Tokenizer(std::move(file), std::move(pretokenizer));
}

Result<std::vector<int32_t>> Tokenizer::encode(std::string_view text, Recognise recognise,
                                               size_t max_ids) const {
  std::string repaired;
  if (valid_utf8_prefix(text) != text.size()) text = repaired = replace_invalid_utf8(text);
  std::vector<int32_t> ids;
  ids.reserve(std::min(text.size() / 3, max_ids) + 1);
  SPARROW_TRY(encode_from(text, 0, recognise, ids, nullptr, max_ids));
  return ids;
}

Result<std::vector<int32_t>> Tokenizer::encode(const PromptText& prompt, size_t max_ids) const {
  if (valid_utf8_prefix(prompt.text) != prompt.text.size()) return encode(with_valid_utf8(prompt), max_ids);
  std::vector<int32_t> ids;
  ids.reserve(std::min(prompt.text.size() / 3, max_ids) + 1);
  SPARROW_TRY(encode_from(prompt.text, 0, Recognition(prompt.markup), ids, nullptr, max_ids));
  return ids;
}

Status Tokenizer::encode_from(std::string_view text, size_t from, const Recognition& recognition,
                              std::vector<int32_t>& ids, std::vector<EncodeCheckpoint>* checkpoints,
                              size_t max_ids) const {
  CachePool::Lease cache(*caches_);
  Run run{ids,
          *cache,
          text.data(),
          checkpoint_margin_ ? checkpoints : nullptr,
          text.data() + from + kCheckpointBytes,
          max_ids};
  size_t done = from;
  for (const auto& match : before_normalizing_.find_all(text, from, recognition)) {
    SPARROW_TRY(encode_gap(text, {done, match.start}, recognition, run));
    if (run.full()) return Ok{};
    ids.push_back(match.token->id);
    done = match.end;
    if (run.wants_checkpoint(text.data() + done)) run.mark(text.data() + done);
  }
  return encode_gap(text, {done, text.size()}, recognition, run);
}

// What lies between the tokens found in the text as it is. Those that wait for normalisation are looked for
// here.
Status Tokenizer::encode_gap(std::string_view text, TextRange gap, const Recognition& recognition,
                             Run& run) const {
  PromptText changed;
  std::string_view piece = text.substr(gap.start, gap.end - gap.start);
  const auto normal = [this](std::string_view part) {
    std::string out(part);
    for (const NormalForm form : normal_forms_) out = normalized(out, form);
    return out;
  };
  Recognition here = recognition.which;
  if (recognition.markup) {
    changed.markup = markup_within(*recognition.markup, gap);
    // Each stretch on its own, so that it is known where markup begins and ends.
    if (!normal_forms_.empty()) changed = mapped_stretches(piece, changed.markup, normal);
    here = Recognition(changed.markup);
  } else if (!normal_forms_.empty()) {
    changed.text = normal(piece);
  }
  if (!normal_forms_.empty()) piece = changed.text;
  size_t done = 0;
  for (const auto& match : after_normalizing_.find_all(piece, 0, here)) {
    SPARROW_TRY(encode_words(piece.substr(done, match.start - done), run));
    if (run.full()) return Ok{};
    run.ids.push_back(match.token->id);
    done = match.end;
  }
  return encode_words(piece.substr(done), run);
}

Status Tokenizer::encode_words(std::string_view piece, Run& run) const {
  const ScanFn scan = pretokenizer_.only_scanner();
  if (scan == nullptr) {
    const std::vector<std::string_view> words = SPARROW_TRY(pretokenizer_.split(piece));
    for (size_t i = 0; i < words.size() && !run.full(); ++i)
      encode_word(words[i], WordCache::key_of(words[i]), run);
    return Ok{};
  }
  // The next words are cut while the cache lines of these are on their way.
  struct Ahead {
    const char* end;
    WordCache::Key key;
  };
  std::array<Ahead, kWordsAhead> ahead;
  const CharClasses& classes = pretokenizer_.classes();
  const char* const end = piece.data() + piece.size();
  const char* word = piece.data();
  for (const char* p = word; p < end && !run.full();) {
    size_t count = 0;
    for (; count < kWordsAhead && p < end; ++count) {
      const char* const q = scan(classes, p, end);
      ahead[count] = {q, WordCache::key_of({p, static_cast<size_t>(q - p)})};
      run.cache.prefetch(ahead[count].key);
      p = q;
    }
    for (size_t i = 0; i < count; word = ahead[i++].end) {
      const char* const q = ahead[i].end;
      encode_word({word, static_cast<size_t>(q - word)}, ahead[i].key, run);
      if (run.wants_checkpoint(q) && is_settled(q, end)) run.mark(q);
    }
  }
  return Ok{};
}

// Whether kScannerMargin bytes past the word's end decide that it ends there. White space does not: it
// depends on the whole run. Nor do letters without case in front of capitals: these may yet turn out to begin
// a longer word.
bool Tokenizer::is_settled(const char* word_end, const char* piece_end) const {
  const CharClasses& classes = pretokenizer_.classes();
  if (classes.ascii(word_end[-1]) & CharClasses::kWord) return true;
  const char* last = word_end - 1;
  while ((static_cast<unsigned char>(*last) & 0xC0) == 0x80) --last;
  int length;
  if (!(classes.at(last, length) & CharClasses::kWord) || word_end == piece_end) return false;
  return !(classes.at(word_end, length) & (CharClasses::kUpper | CharClasses::kLower));
}

void Tokenizer::encode_word(std::string_view word, const WordCache::Key& key, Run& run) const {
  if (run.cache.lookup(word, key, run.ids)) return;
  const size_t before = run.ids.size();
  const auto whole = ignore_merges_ ? word_id_.find(word) : word_id_.end();
  if (whole != word_id_.end())
    run.ids.push_back(whole->second);
  else
    bpe_.encode(word, run.ids);
  run.cache.store(word, key, std::span(run.ids).subspan(before));
}

Result<std::string_view> Tokenizer::bytes_of(int32_t id) const {
  if (id < 0 || id >= vocab_size())
    return Error{Errc::kInvalidArgument, strf("token id must be from 0 to {}, got {}", vocab_size() - 1, id)};
  const auto index = static_cast<size_t>(id);
  return index < tokens_.size() ? std::string_view(tokens_[index].bytes) : std::string_view();
}

bool Tokenizer::is_special(int32_t id) const {
  return id >= 0 && static_cast<size_t>(id) < tokens_.size() && tokens_[static_cast<size_t>(id)].special;
}

Result<std::string> Tokenizer::decode(std::span<const int32_t> ids, bool skip_special) const {
  std::string bytes;
  for (const int32_t id : ids) {
    const std::string_view token = SPARROW_TRY(bytes_of(id));
    if (!skip_special || !is_special(id)) bytes += token;
  }
  if (valid_utf8_prefix(bytes) == bytes.size()) return bytes;
  return replace_invalid_utf8(bytes);
}

std::optional<int32_t> Tokenizer::id_of(std::string_view token) const {
  for (const AddedToken& added : added_)
    if (added.content == token) return added.id;
  const auto found = word_id_.find(token);
  return found == word_id_.end() ? std::nullopt : std::optional(found->second);
}

}  // namespace sparrow
