// SPDX-License-Identifier: Apache-2.0
#include "text/output/call_guide.h"

#include <algorithm>
#include <set>
#include <utility>

#include "text/output/output_parser.h"
#include "text/output/tool_markup.h"

namespace sparrow {
namespace {

using Start = CallGuideOptions::Start;

// Schemas may refer to themselves, and a request must not hold up others. What lies deeper, or is too much,
// is left open.
constexpr int kMaxDepth = 5;
constexpr size_t kMaxElements = 4096;

std::string opening_tag(std::string_view name) {
  return strf("<{}>", name);
}

std::string closing_tag(std::string_view name) {
  return strf("</{}>", name);
}

// Whether the parser reads the name back from its tags.
bool can_be_tag(std::string_view name) {
  const std::string text = opening_tag(name);
  const TagScan scan = scan_tag(text);
  return scan.match == TagMatch::kTag && scan.length == text.size() && !scan.tag.closing &&
         !scan.tag.has_attributes && scan.tag.name == name;
}

}  // namespace

Result<CallGuide> CallGuide::create(const Tokenizer& tokenizer, const CallGuideOptions& options) {
  CallGuide guide(tokenizer, options.vocab_size);
  const auto marker = guide.id_of(kToolMarker);
  if (!marker) return Error{Errc::kUnsupported, strf("this model has no token {}", kToolMarker)};
  guide.marker_ = *marker;
  guide.think_open_ = guide.id_of(kThinkOpen);
  guide.think_close_ = guide.id_of(kThinkClose);
  guide.start_ = options.start;
  guide.names_ = options.names;
  // As the template writes it: a line break after every invoke.
  const std::string closing = closing_tag(kInvokeTag) + "\n";
  guide.elements_.resize(options.names.size(), {.name = std::string(kInvokeTag), .paths = {}});
  for (size_t i = 0; i < options.names.size(); ++i) {
    guide.elements_[i].paths.push_back(SPARROW_TRY(guide.path(closing, kClose)));
    const Schema parameters = options.tools ? options.tools->parameters(options.names[i]) : Schema();
    SPARROW_TRY(guide.add_children(static_cast<int>(i), parameters, 0));
  }
  SPARROW_TRY(guide.add_calls(strf("{}<{}>\n", kToolMarker, kToolCallTag), guide.open_));
  if (options.several) SPARROW_TRY(guide.add_calls("", guide.go_on_));
  guide.go_on_.push_back(SPARROW_TRY(guide.path(strf("{}</{}>", kToolMarker, kToolCallTag), kEndBlock)));
  const auto sort = [](std::vector<Path>& paths) {
    std::sort(paths.begin(), paths.end(), [](const Path& a, const Path& b) { return a.ids < b.ids; });
  };
  sort(guide.open_);
  sort(guide.go_on_);
  for (Element& element : guide.elements_) sort(element.paths);
  return guide;
}

std::optional<int32_t> CallGuide::id_of(std::string_view token) const {
  const auto id = tokenizer_->id_of(token);
  return id && *id < vocab_size_ ? id : std::nullopt;
}

// Control tokens in a name would end the answer, or worse. A tokenizer may have more tokens than the model.
bool CallGuide::can_be_written(const Path& path) const {
  return std::none_of(path.ids.begin(), path.ids.end(),
                      [&](int32_t id) { return tokenizer_->is_special(id) || id >= vocab_size_; });
}

Result<CallGuide::Path> CallGuide::path(const std::string& text, int element) const {
  return Path{.ids = SPARROW_TRY(tokenizer_->encode(text)), .element = element};
}

Status CallGuide::add_calls(const std::string& before, std::vector<Path>& paths) const {
  for (size_t i = 0; i < names_.size(); ++i) {
    const std::string text = strf("{}{}<{} name=\"{}\">", before, kToolMarker, kInvokeTag, names_[i]);
    paths.push_back(SPARROW_TRY(path(text, static_cast<int>(i))));
    if (!can_be_written(paths.back()))
      return Error{Errc::kInvalidArgument,
                   strf("the tool {} has a name that the model cannot write", excerpt(names_[i])), "tools"};
  }
  return Ok{};
}

Status CallGuide::add_children(int parent, const Schema& schema, int depth) {
  for (const SchemaAlternative& alternative : schema.alternatives()) {
    if (alternative.kind == ValueKind::kArray) {
      elements_[parent].repeats = true;
      SPARROW_TRY(add_child(parent, "item", alternative.schema.item(0), depth));
    } else if (alternative.kind == ValueKind::kObject || alternative.kind == ValueKind::kAny) {
      const std::vector<std::string> names = alternative.schema.property_names();
      // A tool about whose parameters nothing is said has none.
      if (alternative.schema.allows_other_members() || (names.empty() && depth > 0))
        elements_[parent].any_names = true;
      for (size_t i = 0; i < names.size() && !elements_[parent].any_names; ++i)
        SPARROW_TRY(add_child(parent, names[i], alternative.schema.property(names[i]), depth));
    }
  }
  if (depth > 0) return Ok{};
  const std::vector<std::string> listed = schema.required_names();
  const std::set<std::string_view> required(listed.begin(), listed.end());
  for (Path& path : elements_[parent].paths)
    if (path.element >= 0 && required.contains(elements_[path.element].name)) {
      path.required = true;
      ++elements_[parent].num_required;
    }
  return Ok{};
}

Status CallGuide::add_child(int parent, const std::string& name, const Schema& schema, int depth) {
  if (depth >= kMaxDepth || elements_.size() >= kMaxElements) {
    elements_[parent].any_names = true;
    return Ok{};
  }
  if (!can_be_tag(name)) return Ok{};
  for (const Path& path : elements_[parent].paths)
    if (path.element >= 0 && elements_[path.element].name == name) return Ok{};
  const int child = static_cast<int>(elements_.size());
  Path opening = SPARROW_TRY(path(opening_tag(name), child));
  if (!can_be_written(opening)) return Ok{};
  elements_.push_back({.name = name, .paths = {}});
  elements_[child].paths.push_back(SPARROW_TRY(path(closing_tag(name), kClose)));
  SPARROW_TRY(add_children(child, schema, depth + 1));
  elements_[parent].paths.push_back(std::move(opening));
  return Ok{};
}

CallGuide::State::State(const CallGuide& guide) : guide_(&guide) {
  switch (guide.start_) {
    case Start::kThinking:
      phase_ = Phase::kThinking;
      break;
    case Start::kOpen:
      phase_ = Phase::kStart;
      break;
    case Start::kCall:
      follow(guide.open_);
      break;
  }
}

std::span<const int32_t> CallGuide::State::allowed() {
  allowed_.clear();
  switch (phase_) {
    case Phase::kStart:
      for (const auto& id : {guide_->think_open_, guide_->think_close_, std::optional(guide_->marker_)})
        if (id) allowed_.push_back(*id);
      break;
    case Phase::kPath:
      for (const Path& path : paths_)  // sorted: the same ids are neighbours
        if (const int32_t id = path.ids[num_taken_];
            may_take(path) && (allowed_.empty() || allowed_.back() != id))
          allowed_.push_back(id);
      break;
    case Phase::kMarker:
      allowed_.push_back(guide_->marker_);
      break;
    case Phase::kThinking:
    case Phase::kValue:
    case Phase::kTag:
    case Phase::kDone:
    case Phase::kLost:
      break;
  }
  return allowed_;
}

void CallGuide::State::advance(int32_t id) {
  switch (phase_) {
    case Phase::kStart:
      phase_ = Phase::kThinking;
      if (id == guide_->think_open_) break;
      follow(guide_->open_);
      if (id == guide_->marker_) advance(id);
      break;
    case Phase::kThinking:
      // The model may spell the tag with several tokens.
      text_ += guide_->tokenizer_->bytes_of(id).value();
      if (text_.find(kThinkClose) != std::string::npos) return follow(guide_->open_);
      if (text_.size() >= kThinkClose.size()) text_.erase(0, text_.size() - kThinkClose.size() + 1);
      break;
    case Phase::kPath: {
      const auto first = std::find_if(paths_.begin(), paths_.end(),
                                      [&](const Path& path) { return path.ids[num_taken_] == id; });
      const auto last =
          std::find_if(first, paths_.end(), [&](const Path& path) { return path.ids[num_taken_] != id; });
      SPARROW_CHECK(first != paths_.end());  // one of allowed()
      paths_ = std::span(first, last);
      // No text is the start of another one: they all end with a tag.
      if (++num_taken_ == paths_.front().ids.size()) take(paths_.front());
      break;
    }
    case Phase::kMarker:
    case Phase::kValue:
      if (id != guide_->marker_) break;
      if (const Element* element = frames_.back().element; element && !element->any_names)
        return follow(element->paths);
      phase_ = Phase::kTag;
      text_.clear();
      break;
    case Phase::kTag:
      text_ += guide_->tokenizer_->bytes_of(id).value();
      if (id == guide_->marker_) text_.clear();  // the one before was text
      read_tag();
      break;
    case Phase::kDone:
    case Phase::kLost:
      break;
  }
}

void CallGuide::State::follow(std::span<const Path> paths) {
  phase_ = Phase::kPath;
  paths_ = paths;
  num_taken_ = 0;
}

bool CallGuide::State::may_take(const Path& path) const {
  if (frames_.empty()) return true;
  const Frame& frame = frames_.back();
  if (path.element == kClose) return frame.num_required == 0;
  return frame.element->repeats || !frame.seen[&path - frame.element->paths.data()];
}

void CallGuide::State::take(const Path& path) {
  if (path.element == kEndBlock) {
    phase_ = Phase::kDone;
  } else if (path.element == kClose) {
    close();
  } else {
    if (!frames_.empty()) {
      Frame& frame = frames_.back();
      frame.seen[&path - frame.element->paths.data()] = true;
      if (path.required) --frame.num_required;
    }
    open(&guide_->elements_[path.element], {});
  }
}

void CallGuide::State::open(const Element* element, std::string_view name) {
  // Inside an invoke there is nothing but parameters.
  phase_ = frames_.empty() ? Phase::kMarker : Phase::kValue;
  frames_.push_back({.element = element, .name = std::string(element ? element->name : name)});
  if (!element) return;
  frames_.back().seen.resize(element->paths.size());
  frames_.back().num_required = element->num_required;
}

void CallGuide::State::close() {
  frames_.pop_back();
  if (frames_.empty()) return follow(guide_->go_on_);
  phase_ = Phase::kMarker;
}

void CallGuide::State::read_tag() {
  const TagScan scan = scan_tag(text_);
  if (scan.match == TagMatch::kNeedMore) return;
  phase_ = Phase::kValue;
  if (scan.match == TagMatch::kNoTag) return;  // the marker was text
  if (scan.tag.closing) {
    if (scan.tag.name == frames_.back().name) return close();
    phase_ = Phase::kLost;
    return;
  }
  const Element* known = nullptr;
  if (const Element* parent = frames_.back().element)
    for (const Path& path : parent->paths)
      if (path.element >= 0 && guide_->elements_[path.element].name == scan.tag.name)
        known = &guide_->elements_[path.element];
  open(known, scan.tag.name);
}

}  // namespace sparrow
