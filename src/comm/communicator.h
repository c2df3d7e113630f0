// SPDX-License-Identifier: Apache-2.0
// Communicator: what ranks exchange inside a step. Every rank of it makes the same calls in the same order,
// with tensors of the same shape and type, from its engine thread; work on a GPU goes to the stream that the
// communicator was made with. A sum has one order, a binary tree over the ranks, ((0 + 1) + (2 + 3)) + ...,
// so every rank gets the same bits, and they are those of any other cut of the same parts.
//
// A rank that fails ends the whole instance. So calls return nothing: after abort(), or when a peer is gone,
// they return at once, what they leave behind is of no use, and failed() says so. Whoever is about to hand
// out results asks it first.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "base/tensor.h"

namespace sparrow {

class Communicator {
 public:
  virtual ~Communicator() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;

  // x = the sum of all ranks' x. [rows, cols], f32 on a CPU, any row stride.
  virtual void all_reduce(const Tensor& x) = 0;
  // mine = my rows of the sum of all ranks' x: rank r owns rows[r] rows of it, after those of the ranks
  // before.
  virtual void reduce_scatter_rows(const Tensor& x, std::span<const int64_t> rows, const Tensor& mine) = 0;
  // all = the rows of rank 0, then those of rank 1, ...; any type. rows[r] are rank r's and may be 0.
  virtual void all_gather_rows(const Tensor& mine, std::span<const int64_t> rows, const Tensor& all) = 0;
  // all [size, rows, cols], on `root` alone: the ranks' x one after another. Elsewhere `all` is not looked
  // at.
  virtual void gather(const Tensor& x, int root, const Tensor& all) = 0;
  virtual void broadcast(const Tensor& x, int root) = 0;

  // How long calls have waited for other ranks, as far as anybody measures that. Engine thread.
  virtual double wait_seconds() const { return 0; }

  // From any thread: those who wait in a call, and all later calls, return.
  virtual void abort() = 0;
  virtual bool failed() const = 0;
};

// The communicators of one rank. Those of a single rank do nothing and wait for nobody; where two hold the
// same ranks they may be the same object.
struct RankComms {
  std::shared_ptr<Communicator> group;   // the tp ranks that share a layer
  std::shared_ptr<Communicator> across;  // the dp ranks that hold the same part of it, one from each group
  std::shared_ptr<Communicator> world;   // all
};

}  // namespace sparrow
