// SPDX-License-Identifier: Apache-2.0
#include "text/constraint/constraint.h"

#include <algorithm>

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

bool MaskedAutomaton::takes_all(const Vocabulary::Branch& branch, StateId state) {
  const auto [entry, is_new] = runs_.try_emplace(state);
  if (is_new) entry->second = automaton_->run_of(state);
  return branch.height <= entry->second.length && entry->second.bytes.holds(branch.bytes);
}

void MaskedAutomaton::walk(const Vocabulary::Tree& tree, StateId state, uint64_t max_work,
                           std::vector<int32_t>& ids) {
  path_[0] = state;
  const auto may_look = [&](StateId at) { return automaton_->has_row(at) || automaton_->work() < max_work; };
  const auto count = static_cast<int32_t>(tree.nodes.size());
  for (int32_t i = 0; i < count;) {
    const Vocabulary::TreeNode& node = tree.nodes[i];
    const StateId from = path_[node.depth];
    const StateId next =
        node.depth == 0 || may_look(from) ? automaton_->next(from, node.byte) : Automaton::kDead;
    if (next == Automaton::kDead) {
      i = node.next;
      continue;
    }
    if (node.branch >= 0 && may_look(next) && takes_all(tree.branches[node.branch], next)) {
      const Vocabulary::Branch& all = tree.branches[node.branch];
      ids.insert(ids.end(), tree.ids.begin() + all.first, tree.ids.begin() + all.first + all.count);
      i = node.next;
      continue;
    }
    path_[node.depth + 1] = next;
    if (node.id >= 0) ids.push_back(node.id);
    ++i;
  }
}

const MaskedAutomaton::Mask& MaskedAutomaton::mask(StateId state, uint64_t work) {
  const auto [entry, is_new] = masks_.try_emplace(state);
  Mask& mask = entry->second;
  if (!is_new) return mask;
  const Grammar& grammar = automaton_->grammar();
  if (grammar.plain_part() >= 0)
    mask.plain_chars = automaton_->repeats_of(state, grammar.plain_ascii(), grammar.plain_part());
  const uint64_t max_work = automaton_->work() + work;
  walk(vocabulary_->rest(), state, max_work, mask.ids);
  if (mask.plain_chars == 0)
    for (const Vocabulary::Tree& tree : vocabulary_->plain()) walk(tree, state, max_work, mask.ids);
  const auto twins = vocabulary_->twins();
  if (!twins.empty()) {
    std::sort(mask.ids.begin(), mask.ids.end());
    const size_t count = mask.ids.size();
    for (const auto& [first, second] : twins)
      if (std::binary_search(mask.ids.begin(), mask.ids.begin() + static_cast<ptrdiff_t>(count), first))
        mask.ids.push_back(second);
  }
  if (mask.ids.size() > vocabulary_->num_words()) {
    std::vector<uint32_t> bits(vocabulary_->num_words());
    if (mask.plain_chars > 0) std::ranges::copy(vocabulary_->plain_up_to(mask.plain_chars), bits.begin());
    for (const int32_t id : mask.ids) bits[id / 32] |= uint32_t{1} << (id % 32);
    mask = {.plain_chars = 0, .ids = {}, .bits = std::move(bits)};
  }
  mask.ids.shrink_to_fit();
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
  if (credit < kLeastForForced) return "";
  const uint64_t before = states_->automaton().work();
  std::string text = states_->automaton().forced(state_, max_bytes);
  credit -= static_cast<int64_t>(states_->automaton().work() - before);
  return text;
}

bool Matcher::advance(std::string_view bytes) {
  const auto lock = hold();
  move_on();
  StateId state = state_;
  for (const char byte : bytes) state = states_->automaton().next(state, static_cast<uint8_t>(byte));
  if (state == Automaton::kDead || bytes.empty()) return false;
  state_ = state;
  return true;
}

bool Matcher::may_end() const {
  const auto lock = hold();
  return states_->automaton().accepts(state_);
}

bool Matcher::must_end() const {
  const auto lock = hold();
  Automaton& automaton = states_->automaton();
  if (!automaton.accepts(state_)) return false;
  const StateId* row = automaton.row(state_);
  return std::all_of(row, row + 256, [](StateId next) { return next == Automaton::kDead; });
}

}  // namespace sparrow
