// SPDX-License-Identifier: Apache-2.0
// Constraint: a grammar and the tokens of a model, ready to say which tokens may come next; shared by all
// outputs that are held to it, with the masks that any of them has asked for. Matcher: where one output
// stands.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/result.h"
#include "text/constraint/automaton.h"
#include "text/constraint/vocabulary.h"

namespace sparrow {

// An automaton and the masks of its states.
class MaskedAutomaton {
 public:
  MaskedAutomaton(std::unique_ptr<Automaton> automaton, const Vocabulary& vocabulary);

  Automaton& automaton() { return *automaton_; }
  // The tokens that may come in this state, as bits; those that would take more work than this are left out.
  void write_mask(StateId state, std::span<uint32_t> bits, uint64_t work);
  // It has grown so large that a fresh one should take its place.
  bool is_full() const;
  size_t bytes() const { return automaton_->bytes() + mask_bytes_; }

 private:
  // The plain tokens of up to so many characters, and these ids; or everything as bits.
  struct Mask {
    int plain_chars = 0;
    std::vector<int32_t> ids;
    std::vector<uint32_t> bits;
  };

  const Mask& mask(StateId state, uint64_t work);
  void look_through(const Vocabulary::Tree& tree, StateId state, uint64_t max_work,
                    std::vector<uint32_t>& bits);
  void walk(const Vocabulary::Tree& tree, StateId state, int known_bytes, uint64_t max_work);
  const Automaton::Run& run_of(StateId state);

  std::unique_ptr<Automaton> automaton_;
  const Vocabulary* vocabulary_;
  std::unordered_map<StateId, Mask> masks_;
  size_t mask_bytes_ = 0;
  std::vector<StateId> path_;         // of walk(), by depth
  std::vector<int32_t> ids_;          // of mask(): grown once, for some masks have half of all tokens
  std::vector<Automaton::Run> runs_;  // by state; a length below 0: not known yet
};

// Any thread.
class Constraint {
 public:
  // Error: no text fits.
  static Result<std::shared_ptr<Constraint>> create(const std::shared_ptr<const Grammar>& grammar,
                                                    std::shared_ptr<const Vocabulary> vocabulary);

  const Vocabulary& vocabulary() const { return *vocabulary_; }
  size_t bytes() const;
  uint64_t work() const;  // see Automaton::work()

 private:
  friend class Matcher;
  Constraint(std::shared_ptr<MaskedAutomaton> states, std::shared_ptr<const Vocabulary> vocabulary)
      : states_(std::move(states)), vocabulary_(std::move(vocabulary)) {}

  mutable std::mutex mutex_;  // of the states, which matchers make when they need them
  std::shared_ptr<MaskedAutomaton> states_;
  std::shared_ptr<const Vocabulary> vocabulary_;
  int64_t credit_ = 0;  // work that masks may take
};

// The names of the elements that are open, as far as a text has come: closing tags repeat them.
class OpenElements {
 public:
  void add(char byte);
  // The text ends with the "</" of a tag.
  bool closes() const { return in_tag_ && tag_ == "</"; }
  // What has to come then.
  std::string rest_of_tag() const { return names_.empty() ? ">" : names_.back() + ">"; }

 private:
  std::vector<std::string> names_;
  std::string tag_;  // from its "<" on
  bool in_tag_ = false;
};

// Copies go their own ways. One thread at a time for each.
class Matcher {
 public:
  explicit Matcher(std::shared_ptr<Constraint> constraint);

  // Tokens that may come next, as bits by id. From each of them an end can be reached.
  void write_mask(std::span<uint32_t> bits);
  // False: this may not come here, and nothing has changed.
  bool advance(int32_t id) { return advance(constraint_->vocabulary().bytes_of(id)); }
  bool advance(std::string_view bytes);
  // The output may end here; and nothing but its end may come.
  bool may_end() const;
  bool must_end() const;
  // Bytes that have to come next whatever the model says.
  std::string forced(size_t max_bytes = 4096);
  const Constraint& constraint() const { return *constraint_; }

 private:
  std::lock_guard<std::mutex> hold() const { return std::lock_guard(constraint_->mutex_); }
  void move_on();

  std::shared_ptr<Constraint> constraint_;
  std::shared_ptr<MaskedAutomaton> states_;  // that state_ is one of
  StateId state_;
  OpenElements elements_;
  std::string must_come_;  // before what the state says
};

}  // namespace sparrow
