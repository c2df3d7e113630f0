// SPDX-License-Identifier: Apache-2.0
#include "text/constraint/constraint.h"

#include <algorithm>
#include <functional>
#include <utility>

namespace sparrow {
namespace {

// What one constraint may hold: rows of its automaton, a KiB each, and masks.
constexpr size_t kMaxRows = 8'192, kMaxMaskBytes = size_t{8} << 20, kMaxStateBytes = size_t{16} << 20;
// What the masks of a constraint may cost its automaton: much now and then, and so much for each on average.
// The tokens that need more are left out, but for those of one byte: an output can always go on, and no
// constraint holds up others for long.
constexpr int64_t kMaxCredit = 2'000'000, kCreditForMask = 60'000, kLeastForMask = 10'000,
                  kLeastForForced = 500'000;

}  // namespace

MaskedAutomaton::MaskedAutomaton(std::unique_ptr<Automaton> automaton, const Vocabulary& vocabulary)
    : automaton_(std::move(automaton)), vocabulary_(&vocabulary), path_(vocabulary.max_depth() + 1) {}

bool MaskedAutomaton::is_full() const {
  return automaton_->num_rows() > kMaxRows || mask_bytes_ > kMaxMaskBytes ||
         automaton_->bytes() > kMaxStateBytes;
}

const Automaton::Run& MaskedAutomaton::run_of(StateId state) {
  if (runs_.size() <= static_cast<size_t>(state))
    runs_.resize(automaton_->num_states(), {.bytes = {}, .length = -1});
  Automaton::Run& run = runs_[state];
  if (run.length < 0) run = automaton_->run_of(state);
  return run;
}

// The tokens of so many bytes may come whatever they are, and stand in the bits: only longer ones are looked
// at.
void MaskedAutomaton::walk(const Vocabulary::Tree& tree, StateId state, int known_bytes, uint64_t max_work) {
  path_[0] = state;
  const auto may_look = [&](StateId at) { return automaton_->has_row(at) || automaton_->work() < max_work; };
  const auto count = static_cast<int32_t>(tree.nodes.size());
  for (int32_t i = 0; i < count;) {
    const Vocabulary::TreeNode& node = tree.nodes[i];
    const Vocabulary::Branch* const branch = node.branch >= 0 ? &tree.branches[node.branch] : nullptr;
    const int depth = node.depth + 1;
    if (branch && depth + branch->height <= known_bytes) {
      i = node.next;
      continue;
    }
    const StateId from = path_[node.depth];
    const StateId next =
        node.depth == 0 || may_look(from) ? automaton_->next(from, node.byte) : Automaton::kDead;
    if (next == Automaton::kDead) {
      i = node.next;
      continue;
    }
    if (branch && may_look(next)) {
      if (const Automaton::Run& run = run_of(next);
          branch->height <= run.length && run.bytes.holds(branch->bytes)) {
        const auto first = tree.ids.begin() + branch->first;
        ids_.insert(ids_.end(), first, first + branch->count);
        i = node.next;
        continue;
      }
    }
    path_[depth] = next;
    if (node.id >= 0 && depth > known_bytes) ids_.push_back(node.id);
    ++i;
  }
}

// Adds the tokens of a tree that may come.
void MaskedAutomaton::look_through(const Vocabulary::Tree& tree, StateId state, uint64_t max_work,
                                   std::vector<uint32_t>& bits) {
  int known_bytes = 0;
  if (!tree.up_to.empty()) {
    const Automaton::Run& run = run_of(state);
    const int longest = static_cast<int>(tree.up_to.size()) - 1;
    if (run.bytes.holds(tree.bytes)) known_bytes = std::min(run.length, longest);
    if (known_bytes > 0) {
      bits.resize(vocabulary_->num_words());
      std::ranges::transform(bits, tree.up_to[known_bytes], bits.begin(), std::bit_or<>());
    }
    if (known_bytes == longest) return;
  }
  walk(tree, state, known_bytes, max_work);
}

const MaskedAutomaton::Mask& MaskedAutomaton::mask(StateId state, uint64_t work) {
  const auto [entry, is_new] = masks_.try_emplace(state);
  Mask& mask = entry->second;
  if (!is_new) return mask;
  const Grammar& grammar = automaton_->grammar();
  if (grammar.plain_part() >= 0)
    mask.plain_chars = automaton_->repeats_of(state, grammar.plain_ascii(), grammar.plain_part());
  const uint64_t max_work = automaton_->work() + work;
  ids_.clear();
  look_through(vocabulary_->rest(), state, max_work, mask.bits);
  if (mask.plain_chars == 0)
    for (const Vocabulary::Tree& tree : vocabulary_->plain()) look_through(tree, state, max_work, mask.bits);
  const auto twins = vocabulary_->twins();
  if (!twins.empty()) std::sort(ids_.begin(), ids_.end());
  const auto num_found = static_cast<ptrdiff_t>(ids_.size());
  for (const auto& [first, second] : twins)
    if (std::binary_search(ids_.begin(), ids_.begin() + num_found, first)) ids_.push_back(second);
  if (mask.bits.empty() && ids_.size() <= vocabulary_->num_words()) {
    mask.ids = ids_;
  } else {
    mask.bits.resize(vocabulary_->num_words());
    if (mask.plain_chars > 0)
      std::ranges::copy(vocabulary_->plain_up_to(std::exchange(mask.plain_chars, 0)), mask.bits.begin());
    for (const int32_t id : ids_) mask.bits[id / 32] |= uint32_t{1} << (id % 32);
  }
  mask_bytes_ += sizeof(Mask) + 4 * (mask.ids.size() + mask.bits.size()) + 32;
  return mask;
}

void MaskedAutomaton::write_mask(StateId state, std::span<uint32_t> bits, uint64_t work) {
  SPARROW_CHECK_EQ(bits.size(), vocabulary_->num_words());
  const Mask& found = mask(state, work);
  if (!found.bits.empty()) {
    std::ranges::copy(found.bits, bits.begin());
    return;
  }
  if (found.plain_chars > 0)
    std::ranges::copy(vocabulary_->plain_up_to(found.plain_chars), bits.begin());
  else
    std::ranges::fill(bits, 0);
  for (const int32_t id : found.ids) bits[id / 32] |= uint32_t{1} << (id % 32);
}

Result<std::shared_ptr<Constraint>> Constraint::create(const std::shared_ptr<const Grammar>& grammar,
                                                       std::shared_ptr<const Vocabulary> vocabulary) {
  std::unique_ptr<Automaton> automaton = SPARROW_TRY(Automaton::create(grammar));
  auto states = std::make_shared<MaskedAutomaton>(std::move(automaton), *vocabulary);
  std::shared_ptr<Constraint> made(new Constraint(std::move(states), std::move(vocabulary)));
  made->credit_ = kMaxCredit;
  return made;
}

size_t Constraint::bytes() const {
  const std::lock_guard lock(mutex_);
  return states_->bytes();
}

uint64_t Constraint::work() const {
  const std::lock_guard lock(mutex_);
  return states_->automaton().work();
}

Matcher::Matcher(std::shared_ptr<Constraint> constraint) : constraint_(std::move(constraint)) {
  const auto lock = hold();
  states_ = constraint_->states_;
  state_ = states_->automaton().start();
}

// From an automaton that has grown too large to the one in its place.
void Matcher::move_on() {
  if (constraint_->states_->is_full())
    constraint_->states_ = std::make_shared<MaskedAutomaton>(constraint_->states_->automaton().fresh(),
                                                             constraint_->vocabulary());
  if (states_ == constraint_->states_) return;
  state_ = states_->automaton().move_to(constraint_->states_->automaton(), state_);
  states_ = constraint_->states_;
}

void Matcher::write_mask(std::span<uint32_t> bits) {
  if (!must_come_.empty()) {
    std::ranges::fill(bits, 0);
    return constraint_->vocabulary().add_beginnings(must_come_, bits);
  }
  const auto lock = hold();
  move_on();
  int64_t& credit = constraint_->credit_;
  const uint64_t before = states_->automaton().work();
  states_->write_mask(state_, bits, static_cast<uint64_t>(std::max(credit, kLeastForMask)));
  credit -= static_cast<int64_t>(states_->automaton().work() - before);
  credit = std::min(credit + kCreditForMask, kMaxCredit);
}

std::string Matcher::forced(size_t max_bytes) {
  const auto lock = hold();
  int64_t& credit = constraint_->credit_;
  if (credit < kLeastForForced) return must_come_;
  const uint64_t before = states_->automaton().work();
  std::string text = states_->automaton().forced(state_, max_bytes);
  credit -= static_cast<int64_t>(states_->automaton().work() - before);
  return must_come_ + text.substr(0, text.find(kSameNameByte));
}

bool Matcher::advance(std::string_view bytes) {
  const auto lock = hold();
  move_on();
  Automaton& automaton = states_->automaton();
  StateId state = state_;
  OpenElements elements = elements_;
  std::string must_come = must_come_;
  for (const char byte : bytes) {
    if (must_come.empty())
      state = automaton.next(state, static_cast<uint8_t>(byte));
    else if (must_come.front() == byte)
      must_come.erase(0, 1);
    else
      return false;
    elements.add(byte);
    if (!elements.closes() || !must_come.empty()) continue;
    if (const StateId same = automaton.next(state, static_cast<uint8_t>(kSameNameByte));
        same != Automaton::kDead) {
      state = same;
      must_come = elements.rest_of_tag();
    }
  }
  if (state == Automaton::kDead || bytes.empty()) return false;
  state_ = state;
  elements_ = std::move(elements);
  must_come_ = std::move(must_come);
  return true;
}

void OpenElements::add(char byte) {
  if (byte == kMarkerByte) {
    in_tag_ = true;
    tag_.clear();
  } else if (in_tag_ && byte != '>') {
    tag_ += byte;
  } else if (std::exchange(in_tag_, false)) {
    if (!tag_.starts_with("</"))
      names_.push_back(tag_.substr(std::min<size_t>(1, tag_.size())));
    else if (!names_.empty())
      names_.pop_back();
  }
}

bool Matcher::may_end() const {
  const auto lock = hold();
  return must_come_.empty() && states_->automaton().accepts(state_);
}

bool Matcher::must_end() const {
  const auto lock = hold();
  Automaton& automaton = states_->automaton();
  if (!must_come_.empty() || !automaton.accepts(state_)) return false;
  const StateId* row = automaton.row(state_);
  return std::all_of(row, row + 256, [](StateId next) { return next == Automaton::kDead; });
}

}  // namespace sparrow
