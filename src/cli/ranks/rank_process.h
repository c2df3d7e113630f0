// SPDX-License-Identifier: Apache-2.0
// RankProcess: this process as one of several ranks: how it comes to be one, what it is to the others, and
// what it ends with when one of them is lost.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "base/result.h"
#include "cli/load_options.h"
#include "cli/rank_flags.h"
#include "cli/ranks/failure_watch.h"
#include "comm/world.h"
#include "engine/engine.h"
#include "engine/engine_types.h"
#include "engine/model_runner.h"

namespace sparrow::cli {

// Which rank this process is. Nullopt: it is to start those of this node with start_ranks(). Before any GPU
// is looked at.
Result<std::optional<RankPlace>> own_place(const RankFlags& flags);

// Starts the ranks of this node, with the arguments of this program, and gives the exit code when they have
// ended. Before any thread is made and any GPU looked at.
Result<int> start_ranks(const RankFlags& flags, const std::string& command);

// For all ranks but the first: what the terminal and the system say is for rank 0, which says when to stop.
// Before any other thread.
void leave_signals_to_rank_0();

// Says why this process ends, and gives the code for it.
int lost_rank(const Error& failure);

// A hash of all that decides what is computed: the model's files, but not where they lie, and the options.
std::string config_digest(const std::filesystem::path& model, const LoadOptions& load,
                          const EngineOptions& options);

// What the options of one rank have beside those of all: its place, its GPU, its share of the machine.
EngineOptions rank_options(EngineOptions options, const RankFlags& flags, const RankPlace& place);

class RankProcess {
 public:
  // Returns when all ranks are there.
  static Result<std::unique_ptr<RankProcess>> join(const RankFlags& flags, const RankPlace& place,
                                                   const std::string& digest);

  const Grid& grid() const { return world_->grid(); }
  const RankPlace& place() const { return place_; }
  FailureWatch& watch() { return watch_; }

  // How a GPU's rank reads the files: in step with the others of its node. They are borrowed.
  LoadOrder load_order(std::span<const SafetensorsFile> files);
  // The runner of this rank; that of rank 0 stands for all.
  Result<std::unique_ptr<ModelRunner>> create_runner(const ModelConfig& config, const Weights& weights,
                                                     const EngineOptions& options);
  // Of the others: runs what rank 0 says until that stops, and gives the exit code.
  int follow(ModelRunner& runner, const ModelConfig& config, const EngineOptions& options);
  // The exit code of a command that ended. Where it lost another rank before there was an engine, that is
  // said here; where it failed by itself it will say why, and the others are told.
  Result<int> ended(Result<int> code);

 private:
  RankProcess(const RankPlace& place, std::unique_ptr<World> world)
      : place_(place), world_(std::move(world)), watch_(world_->link()) {}
  // The fewest blocks that any rank has.
  Result<int> agree_on_blocks(int mine);

  const RankPlace place_;
  std::unique_ptr<World> world_;
  FailureWatch watch_;
};

// While it lives, an engine hears of a lost rank at once, and then `also`. Without ranks it does nothing.
class EngineWatch {
 public:
  EngineWatch(RankProcess* ranks, Engine& engine, std::function<void(const Error&)> also = {});
  ~EngineWatch();
  EngineWatch(const EngineWatch&) = delete;
  EngineWatch& operator=(const EngineWatch&) = delete;

 private:
  RankProcess* const ranks_;
};

}  // namespace sparrow::cli
