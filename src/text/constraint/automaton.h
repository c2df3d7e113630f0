// SPDX-License-Identifier: Apache-2.0
// Automaton: a finished grammar as states that bytes lead through, made as they are needed. A state is the
// set of all that may still follow, each thing a node, how far it has been read, and what comes after it
// (again such a set): a pushdown automaton whose equal stacks are one, and whose stacks are joined where
// their tops are equal. Not for two threads at the same time.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "base/result.h"
#include "text/constraint/grammar.h"

namespace sparrow {

using StateId = int32_t;

class Automaton {
 public:
  static constexpr StateId kDead = 0;  // nothing can follow that would make it a text of the grammar

  // Error: no text fits, or that could not be found out.
  static Result<std::unique_ptr<Automaton>> create(const std::shared_ptr<const Grammar>& grammar);

  StateId start() const { return start_; }
  // Where a byte leads; kDead: it may not come here. From every other state an end can be reached.
  StateId next(StateId state, uint8_t byte) { return row(state)[byte]; }
  // The same for all bytes; for as long as the automaton lives.
  const StateId* row(StateId state) {
    if (rows_[state] == nullptr) fill_row(state);
    return rows_[state]->data();
  }
  bool has_row(StateId state) const { return rows_[state] != nullptr; }
  // The text may end here.
  bool accepts(StateId state) const { return accepts_[state]; }
  // What has to follow, as far as there is no choice and it is not dear to know; at most `max_bytes`.
  std::string forced(StateId state, size_t max_bytes);
  // How many repeats of `part` may follow at least, of which `first` is a way to begin; 0: not known.
  int repeats_of(StateId state, NodeId first, NodeId part) const;
  // Bytes of which at least so many may follow, in any order.
  struct Run {
    ByteSet bytes;
    int length = 0;
  };
  Run run_of(StateId state);

  const Grammar& grammar() const { return *grammar_; }
  size_t num_states() const { return sets_.size(); }
  size_t num_rows() const { return num_rows_; }
  // What it has cost so far, in items that were looked at: some nanoseconds each.
  uint64_t work() const { return work_; }
  size_t bytes() const;
  // An automaton of the same grammar that has made nothing yet; and the same state there.
  std::unique_ptr<Automaton> fresh() const;
  StateId move_to(Automaton& other, StateId state) const;

 private:
  static constexpr StateId kDone = 1;  // nothing more has to follow
  static constexpr NodeId kEnd = -1;   // in place of a node: nothing more
  struct Item {
    NodeId node;
    int32_t at;    // bytes, parts or repeats before; the product of a kBoth that has begun
    StateId tail;  // what comes after the node
    friend bool operator==(const Item&, const Item&) = default;
    friend auto operator<=>(const Item&, const Item&) = default;
  };
  struct Span {
    int32_t first, count;
  };
  // The parts of a kBoth that are still of importance, each in a state of its own.
  struct Product {
    std::vector<StateId> parts;
    int num_wanted;  // the first ones; the others must not accept
    enum class Life : uint8_t { kUnknown, kLive, kDead } life = Life::kUnknown;
    bool looked = false;  // at what follows:
    std::vector<int32_t> next = {};
  };
  using Items = std::vector<Item>;
  using Row = std::array<StateId, 256>;

  explicit Automaton(std::shared_ptr<const Grammar> grammar);
  std::span<const Item> items(StateId set) const {
    return std::span(items_).subspan(sets_[set].first, sets_[set].count);
  }
  StateId intern(std::span<const Item> sorted);
  StateId merged(Items& unsorted);
  StateId join(StateId a, StateId b);
  StateId follow(NodeId node, int32_t at, StateId tail);
  StateId attach(StateId set, StateId tail);
  StateId expanded(StateId set);
  void expand(const Item& item, Items& open);
  void expand_both(NodeId node, std::vector<StateId> parts, int num_wanted, StateId tail, Items& open);
  void fill_row(StateId state);
  void fill_small_row(StateId state, Row& row);
  void fill_any_row(StateId state, Row& row);
  StateId successor(StateId state, std::span<const int32_t> matching, uint8_t byte);
  bool is_live(int32_t product);
  bool product_accepts(const Product& product) const;
  int32_t product_id(std::vector<StateId> parts, int num_wanted);
  const std::vector<int32_t>& next_products(int32_t product);
  bool drop_settled(std::vector<StateId>& parts, int& num_wanted) const;
  Result<bool> find_unfit(std::vector<bool>& fits);
  StateId copy_set(const Automaton& from, StateId set, std::unordered_map<StateId, StateId>& copied);

  std::shared_ptr<const Grammar> grammar_;
  std::vector<bool> productive_;
  std::vector<Item> items_;
  std::vector<Span> sets_;
  std::unordered_multimap<uint64_t, StateId> by_hash_;
  std::vector<StateId> expanded_;  // -1: not yet
  std::vector<bool> accepts_;
  std::vector<Row*> rows_;
  std::deque<Row> row_memory_;
  size_t num_rows_ = 0;
  uint64_t work_ = 0;
  uint64_t row_work_ = 0;  // that work_ may reach while a row is filled; 0: none is
  size_t next_bytes_ = 0;  // of products
  std::vector<Product> products_;
  std::map<std::pair<std::vector<StateId>, int>, int32_t> product_ids_;
  std::map<std::pair<StateId, StateId>, StateId> attached_;
  std::unordered_map<uint64_t, StateId> joined_;
  bool undecided_ = false;  // whether a product is live could not be found out
  bool truncated_ = false;  // a state is without some that might follow
  StateId start_ = kDead;
};

}  // namespace sparrow
