// SPDX-License-Identifier: Apache-2.0
#include "text/constraint/automaton.h"

#include <algorithm>
#include <utility>

#include "base/strf.h"

namespace sparrow {
namespace {

// Ways that are followed for one state: stacks of a grammar can be more than anything could hold.
constexpr size_t kMaxExpanded = 20'000;
// For the bytes of a state; those that would take more may not come. What is found first always may.
constexpr uint64_t kMaxRowWork = 4'000'000;

// What a constraint may cost until it is made, and until it is known what has to follow: a fraction of a
// second, and of a millisecond.
constexpr uint64_t kMaxCreateWork = 40'000'000, kMaxForcedWork = 100'000;

uint64_t mixed(uint64_t hash, uint64_t value) {
  hash = (hash ^ value) * 0x9E3779B97F4A7C15u;
  return hash ^ (hash >> 29);
}

Error too_complex() {
  return {Errc::kInvalidArgument,
          "the constraint is too complex: whether any text fits it could not be found out"};
}

}  // namespace

Automaton::Automaton(std::shared_ptr<const Grammar> grammar) : grammar_(std::move(grammar)) {
  const Item end{kEnd, 0, kDead};
  const StateId dead = intern({}), done = intern(std::span(&end, 1));
  SPARROW_CHECK(dead == kDead && done == kDone);
  expanded_[kDead] = kDead;
  expanded_[kDone] = kDone;
  accepts_[kDone] = true;
}

Result<std::unique_ptr<Automaton>> Automaton::create(const std::shared_ptr<const Grammar>& grammar) {
  std::unique_ptr<Automaton> made(new Automaton(grammar));
  std::vector<bool> fits(grammar->size(), true);
  made->productive_ = grammar->productive(fits);
  if (SPARROW_TRY(made->find_unfit(fits))) {
    // What has been made does not know of it.
    made.reset(new Automaton(grammar));
    made->productive_ = grammar->productive(fits);
  }
  const NodeId root = made->grammar_->root();
  if (!made->productive_[root])
    return Error{Errc::kInvalidArgument, "the constraint cannot be satisfied: no text fits it"};
  made->start_ = made->expanded(made->follow(root, 0, kDone));
  if (made->truncated_ || made->work_ > kMaxCreateWork) return too_complex();
  return made;
}

// Which kBoth no text fits; whether there is one.
Result<bool> Automaton::find_unfit(std::vector<bool>& fits) {
  bool found = false;
  for (size_t i = 0; i < grammar_->size(); ++i) {
    const auto id = static_cast<NodeId>(i);
    if (grammar_->node(id).kind != NodeKind::kBoth || !productive_[i]) continue;
    fits[i] = expanded(follow(id, 0, kDone)) != kDead;
    found |= !fits[i];
    if (undecided_ || truncated_ || work_ > kMaxCreateWork) return too_complex();
  }
  return found;
}

StateId Automaton::intern(std::span<const Item> sorted) {
  uint64_t hash = sorted.size();
  for (const Item& item : sorted)
    hash = mixed(mixed(hash, static_cast<uint64_t>(static_cast<uint32_t>(item.node)) << 32 |
                                 static_cast<uint32_t>(item.at)),
                 static_cast<uint32_t>(item.tail));
  const auto [first, last] = by_hash_.equal_range(hash);
  for (auto found = first; found != last; ++found)
    if (std::ranges::equal(items(found->second), sorted)) return found->second;
  const auto id = static_cast<StateId>(sets_.size());
  sets_.push_back({static_cast<int32_t>(items_.size()), static_cast<int32_t>(sorted.size())});
  items_.insert(items_.end(), sorted.begin(), sorted.end());
  expanded_.push_back(-1);
  accepts_.push_back(!sorted.empty() && sorted[0].node == kEnd);
  rows_.push_back(nullptr);
  by_hash_.emplace(hash, id);
  return id;
}

// The set of these items; those that are equal but for what comes after them are one, followed by either.
StateId Automaton::merged(Items& unsorted) {
  work_ += 8 + unsorted.size();
  std::sort(unsorted.begin(), unsorted.end());
  size_t kept = 0;
  for (size_t i = 0, end = 0; i < unsorted.size(); i = end) {
    for (end = i + 1; end < unsorted.size() && unsorted[end].node == unsorted[i].node; ++end)
      if (unsorted[end].at != unsorted[i].at) break;
    Item item = unsorted[i];
    if (end - i == 2) item.tail = join(item.tail, unsorted[i + 1].tail);
    if (end - i > 2) {
      // All at once: two by two, each would be a set of its own.
      Items all;
      for (size_t k = i; k < end; ++k)
        all.insert(all.end(), items(unsorted[k].tail).begin(), items(unsorted[k].tail).end());
      item.tail = merged(all);
    }
    unsorted[kept++] = item;
  }
  unsorted.resize(kept);
  return intern(unsorted);
}

StateId Automaton::join(StateId a, StateId b) {
  if (a == b || b == kDead) return a;
  if (a == kDead) return b;
  const uint64_t key = static_cast<uint64_t>(std::min(a, b)) << 32 | static_cast<uint32_t>(std::max(a, b));
  if (const auto found = joined_.find(key); found != joined_.end()) return found->second;
  Items all(items(a).begin(), items(a).end());
  all.insert(all.end(), items(b).begin(), items(b).end());
  const StateId made = merged(all);
  joined_.emplace(key, made);
  return made;
}

StateId Automaton::follow(NodeId node, int32_t at, StateId tail) {
  const Item item{node, at, tail};
  return intern(std::span(&item, 1));
}

// What `set` says, and `tail` after it.
StateId Automaton::attach(StateId set, StateId tail) {
  if (set == kDead || tail == kDone) return set;
  if (set == kDone) return tail;
  if (const auto found = attached_.find({set, tail}); found != attached_.end()) return found->second;
  Items all;
  for (const Item item : Items(items(set).begin(), items(set).end())) {
    if (item.node == kEnd)
      all.insert(all.end(), items(tail).begin(), items(tail).end());
    else
      all.push_back({item.node, item.at, attach(item.tail, tail)});
  }
  const StateId made = merged(all);
  attached_.emplace(std::pair(set, tail), made);
  return made;
}

// The same set with every item a literal, a class, a begun kBoth, or the end.
StateId Automaton::expanded(StateId set) {
  if (expanded_[set] >= 0) return expanded_[set];
  Items open(items(set).begin(), items(set).end()), result;
  std::vector<Item> few;  // that were expanded; nearly always
  const auto hash = [](const Item& item) {
    return mixed(mixed(static_cast<uint32_t>(item.node), static_cast<uint32_t>(item.at)),
                 static_cast<uint32_t>(item.tail));
  };
  std::unordered_set<Item, decltype(hash)> many(0, hash);
  while (!open.empty()) {
    const Item item = open.back();
    open.pop_back();
    const bool terminal = item.node == kEnd || grammar_->node(item.node).kind == NodeKind::kLiteral ||
                          grammar_->node(item.node).kind == NodeKind::kClass ||
                          (grammar_->node(item.node).kind == NodeKind::kBoth && item.at > 0);
    if (terminal) {
      result.push_back(item);
      continue;
    }
    if (few.size() < 16) {
      if (std::find(few.begin(), few.end(), item) != few.end()) continue;
      few.push_back(item);
    } else {
      if (many.empty()) many.insert(few.begin(), few.end());
      if (!many.insert(item).second) continue;
      work_ += 16;
    }
    // What is left out is not allowed then; whatever is allowed can still be gone on with.
    if (many.size() >= kMaxExpanded) {
      truncated_ = true;
      if (!result.empty()) break;
    }
    expand(item, open);
  }
  const StateId made = merged(result);
  expanded_[set] = made;
  expanded_[made] = made;
  return made;
}

// Items that together say the same as this one.
void Automaton::expand(const Item& item, Items& open) {
  const Node& node = grammar_->node(item.node);
  const auto push_tail = [&] { open.insert(open.end(), items(item.tail).begin(), items(item.tail).end()); };
  if (!productive_[item.node]) return;
  switch (node.kind) {
    case NodeKind::kEmpty:
      push_tail();
      break;
    case NodeKind::kSequence: {
      const bool last = item.at + 1 == node.count;
      const StateId tail = last ? item.tail : follow(item.node, item.at + 1, item.tail);
      open.push_back({grammar_->parts(node)[item.at], 0, tail});
      break;
    }
    case NodeKind::kChoice:
      for (const NodeId part : grammar_->parts(node))
        if (productive_[part]) open.push_back({part, 0, item.tail});
      break;
    case NodeKind::kRepeat: {
      if (item.at >= node.min) push_tail();
      const NodeId part = grammar_->parts(node)[0];
      if (item.at == node.max || !productive_[part]) break;
      // Without an upper limit it does not matter how many more than the lower one there were.
      const int32_t count = node.max == Grammar::kNoLimit ? std::min(item.at + 1, node.min) : item.at + 1;
      const StateId tail = count == node.max ? item.tail : follow(item.node, count, item.tail);
      open.push_back({part, 0, tail});
      break;
    }
    case NodeKind::kRule:
      open.push_back({grammar_->body(node), 0, item.tail});
      break;
    case NodeKind::kBoth: {
      std::vector<StateId> parts;
      const std::vector<NodeId> ids(grammar_->parts(node).begin(), grammar_->parts(node).end());
      for (const NodeId part : ids) parts.push_back(expanded(follow(part, 0, kDone)));
      expand_both(item.node, std::move(parts), node.min, item.tail, open);
      break;
    }
    default:
      break;
  }
}

void Automaton::expand_both(NodeId node, std::vector<StateId> parts, int num_wanted, StateId tail,
                            Items& open) {
  if (!drop_settled(parts, num_wanted)) return;
  if (parts.size() == 1) {  // nothing else is of importance any more
    const StateId set = attach(parts[0], tail);
    open.insert(open.end(), items(set).begin(), items(set).end());
    return;
  }
  const int32_t product = product_id(std::move(parts), num_wanted);
  if (!is_live(product)) return;
  open.push_back({node, product, tail});
  if (product_accepts(products_[product])) open.insert(open.end(), items(tail).begin(), items(tail).end());
}

void Automaton::fill_row(StateId state) {
  Row row{};
  const std::span<const Item> all = items(state);
  const bool products = std::ranges::any_of(all, [&](const Item& item) {
    return item.node != kEnd && grammar_->node(item.node).kind == NodeKind::kBoth;
  });
  work_ += 64 + 8 * all.size();
  // Not where a product asks for the row of a part: what it excludes has to be known whole.
  const uint64_t outer = std::exchange(row_work_, row_work_ == 0 ? work_ + kMaxRowWork : UINT64_MAX);
  if (!products && all.size() <= 64)
    fill_small_row(state, row);
  else
    fill_any_row(state, row);
  row_work_ = outer;
  row_memory_.push_back(row);
  rows_[state] = &row_memory_.back();
  ++num_rows_;
}

// Bytes that the same items match lead to the same state.
void Automaton::fill_small_row(StateId state, Row& row) {
  std::array<uint64_t, 256> matching{};
  const std::span<const Item> all = items(state);
  for (size_t i = 0; i < all.size(); ++i) {
    if (all[i].node == kEnd) continue;
    const Node& node = grammar_->node(all[i].node);
    const uint64_t bit = uint64_t{1} << i;
    if (node.kind == NodeKind::kLiteral) {
      matching[static_cast<uint8_t>(grammar_->text(node)[all[i].at])] |= bit;
      continue;
    }
    const ByteSet& set = grammar_->set(node);
    for (int byte = 0; byte < 256; ++byte)
      if (set.has(byte)) matching[byte] |= bit;
  }
  std::vector<std::pair<uint64_t, StateId>> made{{0, kDead}};
  for (int byte = 0; byte < 256; ++byte) {
    const uint64_t bits = matching[byte];
    const auto known =
        std::find_if(made.begin(), made.end(), [&](const auto& one) { return one.first == bits; });
    if (known == made.end()) {
      std::vector<int32_t> list;
      for (uint64_t rest = bits; rest != 0; rest &= rest - 1) list.push_back(std::countr_zero(rest));
      row[byte] = successor(state, list, static_cast<uint8_t>(byte));
      made.emplace_back(bits, row[byte]);
    } else {
      row[byte] = known->second;
    }
  }
}

// The same for any number of items; products look at the byte itself.
void Automaton::fill_any_row(StateId state, Row& row) {
  std::array<std::vector<int32_t>, 256> matching;
  const Items all(items(state).begin(), items(state).end());
  for (size_t i = 0; i < all.size(); ++i) {
    if (all[i].node == kEnd) continue;
    const Node& node = grammar_->node(all[i].node);
    for (int byte = 0; byte < 256; ++byte) {
      const bool matches = node.kind == NodeKind::kLiteral
                               ? static_cast<uint8_t>(grammar_->text(node)[all[i].at]) == byte
                               : node.kind == NodeKind::kBoth || grammar_->set(node).has(byte);
      if (matches) matching[byte].push_back(static_cast<int32_t>(i));
    }
  }
  std::map<std::vector<int32_t>, StateId> made;
  for (int byte = 0; byte < 256; ++byte) {
    if (matching[byte].empty()) continue;
    std::vector<int32_t> key = matching[byte];
    for (const int32_t i : matching[byte]) {
      if (grammar_->node(all[i].node).kind != NodeKind::kBoth) continue;
      for (const StateId part : std::vector<StateId>(products_[all[i].at].parts))
        key.push_back(next(part, static_cast<uint8_t>(byte)));
    }
    const auto found = made.find(key);
    row[byte] =
        found != made.end() ? found->second : successor(state, matching[byte], static_cast<uint8_t>(byte));
    if (found == made.end()) made.emplace(std::move(key), row[byte]);
  }
}

StateId Automaton::successor(StateId state, std::span<const int32_t> matching, uint8_t byte) {
  if (work_ > row_work_) return kDead;
  Items open;
  for (const int32_t i : matching) {
    const Item item = items(state)[i];
    const Node& node = grammar_->node(item.node);
    if (node.kind == NodeKind::kBoth) {
      std::vector<StateId> parts = products_[item.at].parts;
      for (StateId& part : parts) part = next(part, byte);
      expand_both(item.node, std::move(parts), products_[item.at].num_wanted, item.tail, open);
    } else if (node.kind == NodeKind::kLiteral && item.at + 1 < node.count) {
      open.push_back({item.node, item.at + 1, item.tail});
    } else {
      open.insert(open.end(), items(item.tail).begin(), items(item.tail).end());
    }
  }
  return expanded(merged(open));
}

std::string Automaton::forced(StateId state, size_t max_bytes) {
  std::string text;
  const uint64_t max_work = work_ + kMaxForcedWork;
  while (text.size() < max_bytes && !accepts(state) && (has_row(state) || work_ < max_work)) {
    const StateId* ways = row(state);
    int only = -1;
    for (int byte = 0; byte < 256 && only > -2; ++byte)
      if (ways[byte] != kDead) only = only == -1 ? byte : -2;
    if (only < 0) break;
    text += static_cast<char>(only);
    state = ways[only];
  }
  return text;
}

int Automaton::repeats_of(StateId state, NodeId first, NodeId part) const {
  int most = 0;
  for (const Item& item : items(state)) {
    if (item.node != first) continue;
    for (const Item& after : items(item.tail)) {
      if (after.node == kEnd) continue;
      const Node& node = grammar_->node(after.node);
      if (node.kind != NodeKind::kRepeat || grammar_->parts(node)[0] != part) continue;
      most = std::max(most, node.max == Grammar::kNoLimit ? Grammar::kNoLimit : node.max - after.at + 1);
    }
  }
  return most;
}

Automaton::Run Automaton::run_of(StateId state) {
  // Bytes that change nothing, or else a class that is counted.
  Run run{.bytes = {}, .length = Grammar::kNoLimit};
  const StateId* const ways = row(state);
  for (int byte = 0; byte < 256; ++byte)
    if (ways[byte] == state) run.bytes.add(byte);
  if (run.bytes.size() > 0) return run;
  run.length = 0;
  for (const Item& item : items(state)) {
    if (item.node == kEnd || grammar_->node(item.node).kind != NodeKind::kClass) continue;
    const int length = repeats_of(state, item.node, item.node);
    if (length > run.length) run = {grammar_->set(grammar_->node(item.node)), length};
  }
  return run;
}

size_t Automaton::bytes() const {
  return items_.size() * sizeof(Item) + sets_.size() * 96 + num_rows_ * sizeof(row_memory_[0]) +
         products_.size() * 160 + next_bytes_ + (attached_.size() + joined_.size()) * 64 +
         grammar_->size() * sizeof(Node);
}

}  // namespace sparrow
