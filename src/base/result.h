// SPDX-License-Identifier: Apache-2.0
// Result<T>: a value or an expected error (bad input, missing file). The message names the field and the
// value.
#pragma once

#include <string>
#include <utility>
#include <variant>

#include "base/check.h"

namespace sparrow {

enum class Errc {
  kInvalidArgument,  // what the user gave is wrong: a flag, a request, a configuration
  kNotFound,         // a file or a tensor that should be there is not
  kCorrupt,          // a file contradicts itself or its format
  kUnsupported,      // well formed, but not something this build can do
  kIo,               // the operating system said no
  kBusy,             // a queue is full: the same call may succeed later
  kStopped,          // shutting down: the same call will not succeed
};

struct Error {
  Errc code;
  std::string message;
  std::string field = {};  // the path of the input field at fault, where there is one
};

template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : state_(std::in_place_index<0>, std::move(value)) {}
  Result(Error error) : state_(std::in_place_index<1>, std::move(error)) {}

  bool ok() const { return state_.index() == 0; }
  explicit operator bool() const { return ok(); }

  T& value() & {
    SPARROW_CHECK(ok());
    return std::get<0>(state_);
  }
  const T& value() const& {
    SPARROW_CHECK(ok());
    return std::get<0>(state_);
  }
  // By value: a loop over f().value() must not outlive what it walks.
  T value() && {
    SPARROW_CHECK(ok());
    return std::get<0>(std::move(state_));
  }
  T& operator*() & { return value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }

  const Error& error() const {
    SPARROW_CHECK(!ok());
    return std::get<1>(state_);
  }

 private:
  std::variant<T, Error> state_;
};

// What a function returns when success carries nothing.
struct Ok {};
using Status = Result<Ok>;

}  // namespace sparrow

// Evaluates to the value of a Result, or returns its error from the enclosing function.
#define SPARROW_TRY(expression)                                          \
  __extension__({                                                        \
    auto try_result_ = (expression);                                     \
    if (!try_result_.ok()) return ::sparrow::Error(try_result_.error()); \
    std::move(try_result_).value();                                      \
  })
