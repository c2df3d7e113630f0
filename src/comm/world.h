// SPDX-License-Identifier: Apache-2.0
// World: the processes that run one model together, from the moment they have found each other. Rank 0 waits
// for all; each proves that it holds the token, and that it runs the same program on the same model in the
// same grid. From then on a thread in every process watches the others: a rank that is gone, or silent for
// `ping_timeout`, ends the instance, and every call that waits anywhere returns.
#pragma once

#include <chrono>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "comm/communicator.h"
#include "comm/control_link.h"
#include "comm/grid.h"
#include "comm/launch.h"
#include "comm/load_pacer.h"

namespace sparrow {

struct WorldOptions {
  Grid grid;                  // its rank is this process
  RankPlace place;            // rank and world are the grid's
  std::string token;          // a secret of all ranks; may be empty where they all are on one node
  std::string build;          // of the program: equal on all ranks
  std::string config_digest;  // of all that decides what is computed: equal on all ranks
  std::string gpu_uuid;       // empty: this rank has no GPU
  bool share_gpu = false;     // several ranks may have the same GPU
  std::chrono::milliseconds join_timeout{60'000};
  std::chrono::milliseconds ping_timeout{3'000};
};

class World {
 public:
  // Returns on every rank when all are there, or on every rank with one line that says who is missing or
  // what differs. Makes threads: fork before it.
  static Result<std::unique_ptr<World>> join(const WorldOptions& options);

  // Says goodbye: a rank that leaves this way has not failed. Calls of others that wait for it return errors.
  virtual ~World() = default;

  virtual const Grid& grid() const = 0;
  virtual ControlLink& link() = 0;
  // For CPU tensors. They must not outlive the world.
  virtual RankComms comms() = 0;
  // Everybody's bytes, by rank, on every rank: what ranks must know of each other before they start. Engine
  // thread, the same calls on every rank.
  virtual Result<std::vector<Bytes>> exchange(std::span<const std::byte> mine) = 0;
  // Of the ranks of this node, all of which ask for one, once. nullptr: this one is alone, or there are more
  // files than anybody keeps in step.
  virtual std::unique_ptr<LoadPacer> load_pacer(std::vector<char> reads) = 0;
};

}  // namespace sparrow
