// SPDX-License-Identifier: Apache-2.0
// The doctor, on machines made of files.
#include "cli/plan/doctor.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>

#include "base/files/mapped_file.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/random/synthetic.h"
#include "support/golden.h"
#include "support/temp_dir.h"

namespace sparrow::cli {
namespace {

using Level = Finding::Level;
using testing::HasSubstr;
using testing::Not;

class FakeMachine {
 public:
  FakeMachine() {
    write("proc/cpuinfo", "processor\t: 0\nmodel name extra\t: no\nmodel name\t: Abacus 9000\n");
    write("proc/meminfo", "MemTotal:       16777216 kB\nMemFree: 1 kB\nMemAvailable:   8388608 kB\n");
    write("proc/self/cgroup", "0::/user/me\n");
    write("sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n");
  }
  void write(const std::string& path, const std::string& text) const {
    std::filesystem::create_directories((root() / path).parent_path());
    std::ofstream(root() / path) << text;
  }
  void remove(const std::string& path) const { std::filesystem::remove_all(root() / path); }
  const std::filesystem::path& root() const { return dir_.path(); }

  Finding about(const std::string& topic) const {
    for (const Finding& finding : examine_machine(root()))
      if (finding.topic == topic) return finding;
    ADD_FAILURE() << "nothing about " << topic;
    return {};
  }

 private:
  test::TempDir dir_;
};

TEST(Doctor, AHealthyMachineHasNothingToLookAt) {
  const FakeMachine machine;
  for (const char* topic : {"memory", "huge pages", "cores", "locked memory"})
    EXPECT_EQ(machine.about(topic).level, Level::kOk) << topic << ": " << machine.about(topic).text;
  EXPECT_THAT(machine.about("cpu").text, HasSubstr("Abacus 9000"));
  EXPECT_THAT(machine.about("cpu").text, HasSubstr("AMX"));  // what is missing is named too
  EXPECT_THAT(machine.about("memory").text, HasSubstr("16.00 GiB, 8.00 GiB available"));
  EXPECT_EQ(machine.about("huge pages").text, "madvise");
}

TEST(Doctor, NoHugePagesIsAWarningWithTheCommandThatMakesThem) {
  const FakeMachine machine;
  machine.write("sys/kernel/mm/transparent_hugepage/enabled", "always madvise [never]\n");
  const Finding finding = machine.about("huge pages");
  EXPECT_EQ(finding.level, Level::kWarn);
  EXPECT_THAT(finding.next, HasSubstr("echo madvise | sudo tee /sys/kernel/mm/transparent_hugepage/enabled"));
  machine.remove("sys");
  EXPECT_EQ(machine.about("huge pages").level, Level::kWarn);
}

TEST(Doctor, LimitsOfTheControlGroupAndOfThoseAboveItCount) {
  const FakeMachine machine;
  machine.write("sys/fs/cgroup/user/me/memory.max", "max\n");
  EXPECT_EQ(machine.about("memory").level, Level::kOk);
  machine.write("sys/fs/cgroup/user/memory.max", "4294967296\n");
  const Finding memory = machine.about("memory");
  EXPECT_EQ(memory.level, Level::kWarn);
  EXPECT_THAT(memory.text, HasSubstr("the control group allows 4.00 GiB"));
  EXPECT_THAT(memory.next, HasSubstr("--kv-cache-memory 1024M"));

  machine.write("sys/fs/cgroup/user/me/cpu.max", "max 100000\n");
  EXPECT_EQ(machine.about("cores").level, Level::kOk);
  EXPECT_THAT(machine.about("cores").text, Not(HasSubstr("control group")));
  machine.write("sys/fs/cgroup/user/me/cpu.max", "100000 100000\n");
  const Finding one = machine.about("cores");
  EXPECT_EQ(one.level, Level::kOk) << "the default follows the quota";
  EXPECT_THAT(one.text, HasSubstr("1 thread;"));
  EXPECT_THAT(one.text, HasSubstr("the control group allows 1 at a time"));
  machine.write("sys/fs/cgroup/user/me/cpu.max", "50000 100000\n");
  const Finding half = machine.about("cores");
  EXPECT_EQ(half.level, Level::kWarn);
  EXPECT_THAT(half.text, HasSubstr("allows 0.5 at a time"));
  EXPECT_THAT(half.next, HasSubstr("raise the quota"));
}

TEST(Doctor, AMachineWithoutProcIsNoReasonToFail) {
  const test::TempDir empty;
  for (const Finding& finding : examine_machine(empty.path()))
    EXPECT_NE(finding.level, Level::kFail) << finding.topic;
  for (const Finding& finding : examine_gpus(empty.path()))
    EXPECT_NE(finding.level, Level::kFail) << finding.topic;
}

TEST(Doctor, LittleMemoryIsSaid) {
  const FakeMachine machine;
  machine.write("proc/meminfo", "MemTotal: 16777216 kB\nMemAvailable: 1048576 kB\n");
  EXPECT_EQ(machine.about("memory").level, Level::kWarn);
  machine.write("proc/meminfo", "rubbish");
  EXPECT_EQ(machine.about("memory").level, Level::kWarn);
}

TEST(Doctor, APortThatIsTakenIsNamedWithAnother) {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  ASSERT_EQ(bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  ASSERT_EQ(listen(fd, 1), 0);
  socklen_t size = sizeof address;
  getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size);
  const int port = ntohs(address.sin_port);
  const Finding taken = examine_port("127.0.0.1", port);
  EXPECT_EQ(taken.level, Level::kWarn);
  EXPECT_THAT(taken.next, HasSubstr(strf("--port {}", port + 1)));
  close(fd);
  EXPECT_EQ(examine_port("127.0.0.1", port).level, Level::kOk);
  EXPECT_EQ(examine_port("127.0.0.1", 0).level, Level::kOk);
  EXPECT_EQ(examine_port("no such host.", 1).level, Level::kFail);
}

class FakeModel {
 public:
  explicit FakeModel(MatrixFormat format = MatrixFormat::kBF16) {
    EXPECT_TRUE(
        write_synthetic_checkpoint({.preset = "tiny", .dir = dir_.path() / "m", .format = format}).ok());
  }
  std::filesystem::path path() const { return dir_.path() / "m"; }
  Finding about(const std::string& topic, const std::string& overrides = "") const {
    for (const Finding& finding : examine_model({.model = path(), .hf_overrides = overrides}))
      if (finding.topic == topic) return finding;
    ADD_FAILURE() << "nothing about " << topic;
    return {};
  }

 private:
  test::TempDir dir_;
};

TEST(Doctor, TellsTheRotarySettingsThatTakeEffect) {
  const FakeModel model;
  EXPECT_EQ(model.about("rope").text, "theta 5000000, 64 of 128 channels turn; up to 65536 positions");
  const std::string yarn =
      R"({"text_config": {"rope_scaling": {"rope_type": "yarn", "factor": 2, "original_max_position_embeddings": 32768}}})";
  EXPECT_THAT(model.about("rope", yarn).text, HasSubstr("YaRN factor 2 from 32768 positions"));
  EXPECT_EQ(model.about("rope", yarn).level, Level::kOk);
  const std::string short_yarn =
      R"({"text_config": {"rope_scaling": {"rope_type": "yarn", "factor": 2, "original_max_position_embeddings": 1024}}})";
  EXPECT_EQ(model.about("rope", short_yarn).level, Level::kWarn);
}

TEST(Doctor, FailsAModelThatCannotBeServed) {
  const FakeModel model;
  EXPECT_EQ(model.about("weights").level, Level::kOk);
  EXPECT_EQ(model.about("tokenizer").level, Level::kFail);  // only weights were written
  EXPECT_EQ(model.about("chat template").level, Level::kWarn);
  EXPECT_EQ(model.about("memory for it").level, Level::kOk);
  std::filesystem::remove(model.path() / "model.safetensors.index.json");
  EXPECT_EQ(model.about("weights").level, Level::kFail);
  EXPECT_THAT(model.about("weights").next, HasSubstr("--load-format dummy"));
  EXPECT_EQ(model.about("model", "{").level, Level::kFail);
  std::filesystem::remove(model.path() / "config.json");
  EXPECT_EQ(model.about("model").level, Level::kFail);
}

// As its documentation says: those of a large model are gigabytes, and who runs it looks at them anyway.
TEST(Doctor, ReadsNoScales) {
  const FakeModel model(MatrixFormat::kMxfp8);
  const auto shard = model.path() / "model-00001-of-00002.safetensors";
  std::string file = read_text_file(shard, 1 << 24).value();
  const SafetensorsHeader header = parse_safetensors_header(std::as_bytes(std::span(file))).value();
  const auto scales = std::ranges::find_if(
      header.entries, [](const auto& entry) { return entry.first.ends_with("weight_scale_inv"); });
  ASSERT_NE(scales, header.entries.end());
  file[scales->second.begin] = '\xff';
  ASSERT_TRUE(write_text_file(shard, file).ok());
  EXPECT_FALSE(Checkpoint::open(model.path()).ok());
  EXPECT_EQ(model.about("weights").level, Level::kOk);
}

TEST(Doctor, SaysWhatNcclIsGoodFor) {
  const auto with = [](const std::string& name) {
    return examine_nccl(strf("{}/lib{}.so", SPARROW_FAKE_NCCL_DIR, name).c_str());
  };
  EXPECT_EQ(with("fake_nccl_new").text, "2.30.4: GPUs of several nodes can share a model");
  EXPECT_EQ(with("fake_nccl").text, "for GPUs of one node only");
  EXPECT_THAT(with("fake_nccl").next, HasSubstr("is NCCL 2.28.9: ranks on several nodes need 2.30.4"));
  EXPECT_EQ(with("fake_nccl_missing").text, "none: GPUs of several nodes would need it");
  for (const char* name : {"fake_nccl_new", "fake_nccl", "fake_nccl_missing"})
    EXPECT_EQ(with(name).level, Level::kOk) << name;
}

TEST(Doctor, SaysHowTheGpusCouldShareTheModel) {
  const SyntheticConfig texts = synthetic_config("m3-mxfp8").value();
  const ModelConfig m3 = parse_config(texts.config_json, texts.generation_config_json).value();
  constexpr int64_t kH200 = int64_t{139} << 30;
  const Finding eight = examine_grids(m3, 8, kH200);
  EXPECT_EQ(eight.level, Finding::Level::kOk);
  EXPECT_THAT(eight.text,
              ::testing::MatchesRegex("TP8: [0-9,]+ tokens in the cache; TP4 x DP2: [0-9,]+ tokens.*"));
  const Finding two = examine_grids(m3, 2, kH200);
  EXPECT_EQ(two.level, Finding::Level::kWarn);
  EXPECT_EQ(two.text, "TP2: does not fit");
  EXPECT_THAT(two.next, ::testing::HasSubstr("--gpus 2"));
  EXPECT_THAT(examine_grids(m3, 3, kH200).text, ::testing::HasSubstr("4 GPUs: TP4"));
}

}  // namespace
}  // namespace sparrow::cli
