// SPDX-License-Identifier: Apache-2.0
// From the body of a completion request to what the engine runs and how its answers are read. Pure: no
// network, no engine; may take long for a long prompt, so it runs on a worker thread.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json/json.h"
#include "base/result.h"
#include "server/api/answer.h"
#include "server/api/writer.h"
#include "server/byte_budget.h"
#include "server/constraint/constraint_store.h"
#include "server/media/media_loader.h"
#include "server/openai/fields.h"
#include "text/chat_template.h"
#include "text/output/tool_schema.h"
#include "text/tokenizer/encode_cache.h"
#include "text/tokenizer/tokenizer.h"

namespace sparrow {
class ResponseStore;
}

namespace sparrow::openai {

// What is there for images and videos.
struct ServedMedia {
  MediaLoader* loader = nullptr;                         // null: none are taken
  std::string refusal = "this server takes text alone";  // why
  std::optional<VisionConfig> vision;                    // with a loader
};

// What is served.
struct ServedModel {
  std::vector<std::string> names;  // answers carry the first one
  std::string root;                // where it came from; empty: its first name
  const Tokenizer& tokenizer;
  EncodeCache& encode_cache;
  const ChatTemplate* chat_template = nullptr;  // null: only text completions
  Defaults defaults;
  bool parse_reasoning = true, parse_tools = true;
  ConstraintStore* constraints = nullptr;  // null: answers have no form
  ServedMedia media;

  const MediaSettings* media_settings() const { return media.loader ? &media.loader->settings() : nullptr; }
};

struct Prepared;

// Who asks for what is read.
struct Asker {
  const ServedModel& model;
  std::string_view tenant = "";    // what is cached is reused for the same one only
  ResponseStore* store = nullptr;  // null: nothing is stored
};

// An API over the engine: its reader, which also makes the writer of each answer, and what its messages call
// things.
struct Api {
  // Fills all but what prepare() does.
  Status (*read)(JsonDocument body, const Asker& asker, Prepared& prepared);
  const char* prompt_field;
  const char* max_tokens_field;
  const char* logprobs_field;
  int64_t logprob_bytes;      // of one in an answer, on average
  bool prompt_logprobs_once;  // in an answer, and not with each of its choices
  // Where the engine is not asked: the body of the answer, of the prompt's ids.
  Result<std::string> (*count)(const Prepared& prepared, const ServedModel& model) = nullptr;
};
extern const Api kChatApi, kCompletionApi, kTokenizeApi;

// A request that is ready to run.
struct Prepared {
  const Api& api;
  std::unique_ptr<AnswerWriter> writer;
  std::optional<JsonDocument> document;  // where there are tools, which point into it
  GenerationFields fields;
  std::vector<MediaSource> media;               // to be loaded before finish()
  std::optional<PromptText> text;               // of a prompt that is not in the request yet
  std::vector<ByteBudget::Share> media_memory;  // what the request's media take
  Request request;
  ToolSet tools;         // `answer.parser` points to it
  AnswerOptions answer;  // of every choice
  bool echo = false;
  bool in_background = false;             // the client comes back for the answer
  const char* warning = nullptr;          // for the log
  int64_t answer_bytes = 0;               // about what echoes and log-probabilities will take
  std::vector<std::string> prompt_texts;  // of echo
  bool wants_token_texts = false;         // of /tokenize
  std::string counted;                    // Api::count's answer

  int64_t num_prompt_tokens() const;
  int64_t num_media_tokens() const;  // of these, the placeholders of images and videos
};

// A schema may have 128 levels, and there is a way to it. Another API's body has some more as a chat's.
inline constexpr JsonLimits kBodyLimits{.max_bytes = size_t{64} << 20, .max_depth = 144};
inline constexpr JsonLimits kTranslatedLimits{.max_bytes = size_t{64} << 20, .max_depth = 160};

// Errc::kNotFound: the model that was asked for is not served. What is cached of the request is reused
// only for the same tenant, and only for the same cache_salt where there is one. A request without media is
// ready; else they are loaded and handed to finish().
Result<std::unique_ptr<Prepared>> prepare(const Api& api, std::string_view body, const ServedModel& model,
                                          std::string_view tenant = "", ResponseStore* store = nullptr);
Status finish(Prepared& prepared, std::vector<LoadedMedium> media, const ServedModel& model);

// The prompt, or what was asked for with it, is more than the model takes: clients shorten and ask again.
bool is_too_long(const Error& error);

// The part of reading that is the same for every API with messages: from what was asked, in OpenAI's form, to
// ids and what the answer is made of. `chat` may borrow from prepared.document, and from nothing else for
// longer than this call.
struct ChatRequest;
Status prepare_conversation(ChatRequest chat, const Asker& asker, Prepared& prepared);

// Error where `name` is given and not one of the model's names.
Status check_model(const std::optional<std::string>& name, const ServedModel& model);

// What /tokenize and /detokenize take, and the body of the latter's answer (tokenize.cc).
std::span<const Field> tokenize_fields();
std::span<const Field> detokenize_fields();
Result<std::string> detokenize(std::string_view body, const ServedModel& model);

}  // namespace sparrow::openai
