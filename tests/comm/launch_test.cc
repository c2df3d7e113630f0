// SPDX-License-Identifier: Apache-2.0
// Which rank a process is, by its flags and by what each launcher leaves in the environment.
#include "comm/launch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

namespace sparrow {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

using Variables = std::map<std::string, std::string>;

GetEnv environment(const Variables& variables) {
  return [&variables](const char* name) -> const char* {
    const auto it = variables.find(name);
    return it == variables.end() ? nullptr : it->second.c_str();
  };
}

std::optional<RankPlace> place(const PlaceFlags& flags, const Variables& variables = {}) {
  const auto result = place_of(flags, environment(variables));
  EXPECT_TRUE(result.ok()) << result.error().message;
  return result.ok() ? result.value() : std::nullopt;
}

std::string refusal(const PlaceFlags& flags, const Variables& variables = {}) {
  const auto result = place_of(flags, environment(variables));
  return result.ok() ? "" : result.error().message;
}

// rank/world local_rank/local_world@rendezvous
std::string brief(const std::optional<RankPlace>& place) {
  if (!place) return "none";
  return std::to_string(place->rank) + "/" + std::to_string(place->world) + " " +
         std::to_string(place->local_rank) + "/" + std::to_string(place->local_world) + "@" +
         place->rendezvous;
}

const Variables kTorchrun = {{"RANK", "11"},
                             {"WORLD_SIZE", "16"},
                             {"LOCAL_RANK", "3"},
                             {"LOCAL_WORLD_SIZE", "8"},
                             {"MASTER_ADDR", "10.0.0.7"},
                             {"MASTER_PORT", "29500"}};
const Variables kOpenMpi = {{"OMPI_COMM_WORLD_RANK", "2"},
                            {"OMPI_COMM_WORLD_SIZE", "4"},
                            {"OMPI_COMM_WORLD_LOCAL_RANK", "2"},
                            {"OMPI_COMM_WORLD_LOCAL_SIZE", "4"},
                            {"PMIX_NAMESPACE", "prterun-node-77@1"}};
const Variables kSlurm = {{"SLURM_PROCID", "9"},          {"SLURM_NTASKS", "16"},
                          {"SLURM_STEP_NUM_TASKS", "16"}, {"SLURM_STEP_NUM_NODES", "2"},
                          {"SLURM_LOCALID", "1"},         {"SLURM_JOB_ID", "4711"},
                          {"SLURM_STEP_ID", "0"}};
const Variables kPmi = {
    {"PMI_RANK", "1"}, {"PMI_SIZE", "2"}, {"MPI_LOCALRANKID", "1"}, {"MPI_LOCALNRANKS", "2"}};

Variables with(Variables variables, const Variables& more) {
  for (const auto& [name, value] : more) variables[name] = value;
  return variables;
}
Variables without(Variables variables, const std::string& name) {
  variables.erase(name);
  return variables;
}

TEST(PlaceOf, NobodyWhoWasNotLaunchedIsARank) {
  EXPECT_EQ(brief(place({})), "none");
  EXPECT_EQ(brief(place({.world = 8})), "none");
}

TEST(PlaceOf, EveryLauncherIsUnderstood) {
  EXPECT_EQ(brief(place({.world = 16}, kTorchrun)), "11/16 3/8@10.0.0.7:29500");
  EXPECT_EQ(brief(place({.world = 4}, kOpenMpi)), "2/4 2/4@");
  EXPECT_EQ(brief(place({.world = 16, .rendezvous = "node-0:29500"}, kSlurm)), "9/16 1/8@node-0:29500");
  EXPECT_EQ(brief(place({.world = 2}, kPmi)), "1/2 1/2@");
}

TEST(PlaceOf, TheFirstThatIsSetCounts) {
  const Variables all = with(with(with(kPmi, kSlurm), kOpenMpi), kTorchrun);
  EXPECT_EQ(brief(place({.world = 3, .rank = 1, .world_size = 3}, all)), "1/3 1/3@");
  EXPECT_EQ(brief(place({.world = 16}, all)), "11/16 3/8@10.0.0.7:29500");
  EXPECT_EQ(brief(place({.world = 4}, with(with(kPmi, kSlurm), kOpenMpi))), "2/4 2/4@");
  EXPECT_EQ(brief(place({.world = 16, .rendezvous = "a:1"}, with(kPmi, kSlurm))), "9/16 1/8@a:1");
}

TEST(PlaceOf, ABatchScriptIsNoStep) {
  const Variables script = {{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "16"}, {"SLURM_LOCALID", "0"}};
  EXPECT_EQ(brief(place({.world = 8}, script)), "none");
  EXPECT_EQ(brief(place({.world = 8}, with(script, {{"SLURM_STEP_NUM_TASKS", "1"}}))), "none");
}

TEST(PlaceOf, WhoWasStartedAloneStartsTheRanks) {
  EXPECT_EQ(brief(place({.world = 8}, {{"RANK", "0"}, {"WORLD_SIZE", "1"}})), "none");
  EXPECT_EQ(brief(place({.world = 8}, {{"OMPI_COMM_WORLD_RANK", "0"}, {"OMPI_COMM_WORLD_SIZE", "1"}})),
            "none");
}

TEST(PlaceOf, AJobHasAName) {
  EXPECT_EQ(place({.world = 4}, kOpenMpi)->job, "prterun-node-77@1");
  EXPECT_EQ(place({.world = 16, .rendezvous = "a:1"}, kSlurm)->job, "slurm-4711.0");
  EXPECT_THAT(place({.world = 2}, kPmi)->job, StartsWith("parent-"));
  EXPECT_THAT(place({.world = 2, .rank = 0, .world_size = 2})->job, StartsWith("parent-"));
}

TEST(PlaceOf, RanksMeetWhereTheEnvironmentSaysOnlyWhereThereAreSeveralNodes) {
  const Variables one_node = with(kTorchrun, {{"RANK", "3"}, {"WORLD_SIZE", "8"}});
  EXPECT_EQ(brief(place({.world = 8}, one_node)), "3/8 3/8@");
  EXPECT_EQ(brief(place({.world = 8, .rendezvous = "[::1]:7"}, one_node)), "3/8 3/8@[::1]:7");
  const Variables master = {{"MASTER_ADDR", "node-0"}, {"MASTER_PORT", "1234"}};
  EXPECT_EQ(brief(place({.world = 16}, with(kSlurm, master))), "9/16 1/8@node-0:1234");
  EXPECT_EQ(brief(place({.world = 16}, with(kTorchrun, {{"MASTER_ADDR", "fe80::1"}}))),
            "11/16 3/8@[fe80::1]:29500");
  // Torchrun's own agent has the port.
  EXPECT_EQ(brief(place({.world = 16}, with(kTorchrun, {{"TORCHELASTIC_USE_AGENT_STORE", "True"}}))),
            "11/16 3/8@10.0.0.7:29501");
}

TEST(PlaceOf, ContradictionsNameVariableAndValue) {
  EXPECT_THAT(refusal({.world = 16}, without(kTorchrun, "WORLD_SIZE")),
              AllOf(HasSubstr("RANK 11"), HasSubstr("WORLD_SIZE")));
  EXPECT_THAT(refusal({.world = 16}, without(kTorchrun, "RANK")), HasSubstr("WORLD_SIZE 16"));
  EXPECT_THAT(refusal({.world = 16}, with(kTorchrun, {{"RANK", "16"}})),
              AllOf(HasSubstr("RANK 16"), HasSubstr("WORLD_SIZE is 16")));
  EXPECT_THAT(refusal({.world = 16}, with(kTorchrun, {{"RANK", "-1"}})),
              AllOf(HasSubstr("RANK"), HasSubstr("\"-1\"")));
  EXPECT_THAT(refusal({.world = 16}, with(kTorchrun, {{"WORLD_SIZE", "16x"}})), HasSubstr("\"16x\""));
  EXPECT_THAT(refusal({.world = 8}, kTorchrun), AllOf(HasSubstr("WORLD_SIZE is 16"), HasSubstr("8 ranks")));
  EXPECT_THAT(refusal({.world = 8}, kOpenMpi), HasSubstr("OMPI_COMM_WORLD_SIZE is 4"));
  EXPECT_THAT(refusal({.world = 16}, with(kTorchrun, {{"LOCAL_RANK", "8"}})),
              AllOf(HasSubstr("LOCAL_RANK"), HasSubstr("\"8\"")));
  EXPECT_THAT(refusal({.world = 16}, with(kTorchrun, {{"LOCAL_RANK", "4"}})),
              AllOf(HasSubstr("RANK 11"), HasSubstr("LOCAL_RANK 4"), HasSubstr("neighbours")));
  EXPECT_THAT(refusal({.world = 16}, with(kTorchrun, {{"MASTER_PORT", "http"}})),
              AllOf(HasSubstr("MASTER_PORT"), HasSubstr("\"http\"")));
  EXPECT_THAT(refusal({.world = 16}, without(kTorchrun, "MASTER_PORT")), HasSubstr("MASTER_ADDR 10.0.0.7"));
  EXPECT_THAT(refusal({.world = 16}, kSlurm), AllOf(HasSubstr("2 nodes"), HasSubstr("--rendezvous")));
  EXPECT_THAT(refusal({.world = 16, .rendezvous = "a:1"}, with(kSlurm, {{"SLURM_STEP_NUM_NODES", "3"}})),
              HasSubstr("SLURM_STEP_NUM_NODES 3"));
}

TEST(PlaceOf, FlagsThatContradictEachOtherAreNamed) {
  EXPECT_THAT(refusal({.world = 8, .rank = 1}), HasSubstr("--rank 1 without --world-size"));
  EXPECT_THAT(refusal({.world = 8, .world_size = 8}), HasSubstr("--world-size 8 without --rank"));
  EXPECT_THAT(refusal({.world = 8, .rank = 8, .world_size = 8}), HasSubstr("--rank 8"));
  EXPECT_THAT(refusal({.world = 8, .rank = 1, .world_size = 4}),
              AllOf(HasSubstr("--world-size is 4"), HasSubstr("8 ranks")));
  EXPECT_THAT(refusal({.world = 8, .rank = 1, .world_size = 8, .num_nodes = 3}), HasSubstr("--nnodes 3"));
  EXPECT_THAT(refusal({.world = 8, .rank = 1, .world_size = 8, .num_nodes = 2, .node_rank = 1}),
              HasSubstr("--node-rank is 1"));
  EXPECT_EQ(brief(place({.world = 8, .rank = 5, .world_size = 8, .num_nodes = 2, .rendezvous = "n:9"})),
            "5/8 1/4@n:9");
  for (const char* bad : {"node", "node:", ":29500", "node:port", "node:0", "node:65536", "fe80::1:29500"})
    EXPECT_THAT(refusal({.world = 2, .rank = 0, .world_size = 2, .rendezvous = bad}),
                AllOf(HasSubstr("--rendezvous"), HasSubstr("\"")))
        << bad;
}

std::string local(const PlaceFlags& flags, const Variables& variables = {}) {
  const auto places = local_places(flags, environment(variables), "mine");
  if (!places.ok()) return places.error().message;
  std::string all;
  for (const RankPlace& place : places.value()) {
    EXPECT_EQ(place.job, "mine");
    all += (all.empty() ? "" : ", ") + brief(place);
  }
  return all;
}

TEST(LocalPlaces, ANodeStartsItsShareOfTheRanks) {
  EXPECT_EQ(local({}), "0/1 0/1@");
  EXPECT_EQ(local({.world = 2}), "0/2 0/2@, 1/2 1/2@");
  const PlaceFlags second{.world = 4, .num_nodes = 2, .node_rank = 1, .rendezvous = "n:9"};
  EXPECT_EQ(local(second), "2/4 0/2@n:9, 3/4 1/2@n:9");
  EXPECT_EQ(brief(place(second, kOpenMpi)), "none");
  EXPECT_EQ(local({.world = 2, .num_nodes = 2, .node_rank = 0}, {{"MASTER_ADDR", "n"}, {"MASTER_PORT", "9"}}),
            "0/2 0/1@n:9");
}

TEST(LocalPlaces, FlagsThatMakeNoSenseAreNamed) {
  EXPECT_THAT(local({.world = 4, .node_rank = 1}), HasSubstr("--node-rank 1 without --nnodes"));
  EXPECT_THAT(local({.world = 4, .num_nodes = 2}), HasSubstr("--nnodes 2 without --node-rank"));
  EXPECT_THAT(local({.world = 4, .num_nodes = 3, .node_rank = 0}), HasSubstr("--nnodes 3"));
  EXPECT_THAT(local({.world = 4, .num_nodes = 2, .node_rank = 2, .rendezvous = "n:9"}),
              HasSubstr("--node-rank 2"));
  EXPECT_THAT(local({.world = 4, .num_nodes = 2, .node_rank = 0}), HasSubstr("--rendezvous"));
}

}  // namespace
}  // namespace sparrow
