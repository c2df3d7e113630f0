// SPDX-License-Identifier: Apache-2.0
// Texts that several parts of a grammar have to agree on: their states side by side.
#include <algorithm>
#include <array>
#include <deque>

#include "text/constraint/automaton.h"

namespace sparrow {
namespace {

// How far is looked for an end, and at what cost. What is not found by then counts as live in a running
// output, and is refused when a constraint is made.
constexpr size_t kMaxLifeSteps = 5'000;
constexpr uint64_t kMaxLifeWork = 4'000'000;

// Bytes that lead to the same states are of one kind, for which the first of them stands.
std::vector<int> kinds_of_bytes(std::span<const StateId* const> rows) {
  std::array<uint64_t, 256> hashes{};
  for (const StateId* row : rows)
    for (int byte = 0; byte < 256; ++byte)
      hashes[byte] = (hashes[byte] ^ static_cast<uint32_t>(row[byte])) * 0x9E3779B97F4A7C15u;
  std::vector<int> kinds;
  std::array<int16_t, 512> slots;
  slots.fill(-1);
  for (int byte = 0; byte < 256; ++byte) {
    const auto same = [&](int other) {
      return std::ranges::all_of(rows, [&](const StateId* row) { return row[byte] == row[other]; });
    };
    size_t slot = hashes[byte] >> 55;
    while (slots[slot] >= 0 && !same(slots[slot])) slot = (slot + 1) % slots.size();
    if (slots[slot] >= 0) continue;
    slots[slot] = static_cast<int16_t>(byte);
    kinds.push_back(byte);
  }
  return kinds;
}

}  // namespace

// Leaves out excluded parts that cannot be any more. False: nothing can fit.
bool Automaton::drop_settled(std::vector<StateId>& parts, int& num_wanted) const {
  for (int i = 0; i < num_wanted; ++i)
    if (parts[i] == kDead) return false;
  parts.erase(std::remove(parts.begin() + num_wanted, parts.end(), kDead), parts.end());
  // Equal parts say it once.
  std::sort(parts.begin(), parts.begin() + num_wanted);
  const auto last = std::unique(parts.begin(), parts.begin() + num_wanted);
  const auto dropped = parts.begin() + num_wanted - last;
  parts.erase(last, parts.begin() + num_wanted);
  num_wanted -= static_cast<int>(dropped);
  std::sort(parts.begin() + num_wanted, parts.end());
  parts.erase(std::unique(parts.begin() + num_wanted, parts.end()), parts.end());
  return true;
}

bool Automaton::product_accepts(const Product& product) const {
  const auto in = [&](StateId part) { return accepts(part); };
  const auto middle = product.parts.begin() + product.num_wanted;
  return std::all_of(product.parts.begin(), middle, in) && std::none_of(middle, product.parts.end(), in);
}

int32_t Automaton::product_id(std::vector<StateId> parts, int num_wanted) {
  if (products_.empty()) products_.push_back({.parts = {}, .num_wanted = 0});  // 0: not begun
  const auto [entry, is_new] =
      product_ids_.try_emplace({parts, num_wanted}, static_cast<int32_t>(products_.size()));
  if (is_new) products_.push_back({.parts = std::move(parts), .num_wanted = num_wanted});
  return entry->second;
}

// Where the bytes lead from here, each once; 0: to where anything that one part wants is right.
const std::vector<int32_t>& Automaton::next_products(int32_t product) {
  if (products_[product].looked) return products_[product].next;
  std::vector<int32_t> found;
  const std::vector<StateId> parts = products_[product].parts;
  const int wanted = products_[product].num_wanted;
  std::vector<const StateId*> rows;
  for (const StateId part : parts) rows.push_back(row(part));
  const std::vector<int> kinds = kinds_of_bytes(rows);
  work_ += 256 + 64 * parts.size() * (1 + kinds.size() / 8) + 32 * kinds.size();
  for (const int byte : kinds) {
    std::vector<StateId> next;
    for (const StateId* row : rows) next.push_back(row[byte]);
    int num_wanted = wanted;
    if (!drop_settled(next, num_wanted)) continue;
    found.push_back(next.size() == 1 ? 0 : product_id(std::move(next), num_wanted));
  }
  products_[product].looked = true;
  next_bytes_ += found.size() * sizeof(found[0]);
  return products_[product].next = std::move(found);
}

bool Automaton::is_live(int32_t start) {
  using Life = Product::Life;
  if (products_[start].life != Life::kUnknown) return products_[start].life == Life::kLive;
  struct Seen {
    int32_t product;
    size_t from;  // where that was found
  };
  std::vector<Seen> seen{{start, 0}};
  std::unordered_set<int32_t> known{start};
  const auto live = [&](int32_t product) {
    return product == 0 || products_[product].life == Life::kLive || product_accepts(products_[product]);
  };
  const auto mark_way_to = [&](size_t at) {
    for (; at > 0; at = seen[at].from) products_[seen[at].product].life = Life::kLive;
    products_[start].life = Life::kLive;
    return true;
  };
  if (live(start)) return mark_way_to(0);
  const uint64_t max_work = work_ + kMaxLifeWork;
  for (size_t i = 0; i < seen.size(); ++i) {
    if (i > kMaxLifeSteps || work_ > max_work) {
      undecided_ = true;
      return mark_way_to(0);
    }
    for (const int32_t next : next_products(seen[i].product)) {
      if (live(next)) return mark_way_to(i);
      if (products_[next].life != Life::kDead && known.insert(next).second) seen.push_back({next, i});
    }
  }
  for (const Seen& one : seen) products_[one.product].life = Life::kDead;
  return false;
}

StateId Automaton::copy_set(const Automaton& from, StateId set,
                            std::unordered_map<StateId, StateId>& copied) {
  if (set <= kDone) return set;
  if (const auto found = copied.find(set); found != copied.end()) return found->second;
  Items made;
  for (const Item item : from.items(set)) {
    Item copy{item.node, item.at, copy_set(from, item.tail, copied)};
    if (item.node != kEnd && item.at > 0 && grammar_->node(item.node).kind == NodeKind::kBoth) {
      std::vector<StateId> parts = from.products_[item.at].parts;
      for (StateId& part : parts) part = copy_set(from, part, copied);
      copy.at = product_id(std::move(parts), from.products_[item.at].num_wanted);
      products_[copy.at].life = Product::Life::kLive;
    }
    made.push_back(copy);
  }
  const StateId result = merged(made);
  copied.emplace(set, result);
  return result;
}

std::unique_ptr<Automaton> Automaton::fresh() const {
  std::unique_ptr<Automaton> made(new Automaton(grammar_));
  made->productive_ = productive_;
  made->start_ = made->expanded(made->follow(grammar_->root(), 0, kDone));
  return made;
}

StateId Automaton::move_to(Automaton& other, StateId state) const {
  std::unordered_map<StateId, StateId> copied;
  const StateId moved = other.copy_set(*this, state, copied);
  other.expanded_[moved] = moved;
  return moved;
}

}  // namespace sparrow
