// SPDX-License-Identifier: Apache-2.0
// What the doctor finds out about GPUs: the driver is asked if there is one, and nothing is linked for it.
#include <dlfcn.h>

#include <algorithm>
#include <memory>
#include <optional>

#include "cli/args/byte_size.h"
#include "cli/load_model.h"
#include "cli/plan/doctor.h"
#include "comm/nccl/nccl_library.h"

namespace sparrow::cli {
namespace {

using Level = Finding::Level;

struct Gpu {
  std::string name;
  int64_t bytes = 0;
  int major = 0, minor = 0;
};

struct Driver {
  int version = 0;  // of the CUDA it can run: 13000 is 13.0
  std::vector<Gpu> gpus;
};

// The driver's own interface, by name: cuda.h need not be there.
class DriverLibrary {
 public:
  DriverLibrary() : handle_(dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL), &close) {}

  // nullopt: no library, or no device it can talk to.
  std::optional<Driver> ask() const {
    const auto init = find<int(unsigned)>("cuInit");
    const auto version = find<int(int*)>("cuDriverGetVersion");
    const auto count = find<int(int*)>("cuDeviceGetCount");
    const auto device_name = find<int(char*, int, int)>("cuDeviceGetName");
    const auto total = find<int(size_t*, int)>("cuDeviceTotalMem_v2");
    const auto attribute = find<int(int*, int, int)>("cuDeviceGetAttribute");
    if (!init || !version || !count || !device_name || !total || !attribute || init(0) != 0)
      return std::nullopt;
    Driver driver;
    int devices = 0;
    version(&driver.version);
    count(&devices);
    for (int i = 0; i < devices; ++i) {
      constexpr int kMajor = 75, kMinor = 76;  // CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_*
      Gpu gpu;
      char text[256] = {};
      size_t bytes = 0;
      device_name(text, sizeof text - 1, i);
      total(&bytes, i);
      attribute(&gpu.major, kMajor, i);
      attribute(&gpu.minor, kMinor, i);
      gpu.name = text;
      gpu.bytes = static_cast<int64_t>(bytes);
      driver.gpus.push_back(std::move(gpu));
    }
    return driver;
  }

 private:
  static void close(void* handle) {
    if (handle) dlclose(handle);
  }
  template <typename F>
  F* find(const char* name) const {
    return handle_ ? reinterpret_cast<F*>(dlsym(handle_.get(), name)) : nullptr;
  }

  std::unique_ptr<void, void (*)(void*)> handle_;
};

Finding examine_gpu(size_t index, const Gpu& gpu) {
  Finding finding{
      Level::kOk, strf("gpu {}", index),
      strf("{}, {}, compute capability {}.{}", gpu.name, byte_string(gpu.bytes), gpu.major, gpu.minor)};
  if (gpu.major == 9) {
    finding.text += "; runs weights in bf16, MXFP8 and MXFP4";
  } else {
    finding.level = Level::kWarn;
    finding.next = "the kernels are for Hopper (9.0): H100, H200, H20";
  }
  return finding;
}

}  // namespace

GpuCount count_gpus() {
  GpuCount count;
  const std::optional<Driver> driver = DriverLibrary().ask();
  if (!driver) return count;
  for (const Gpu& gpu : driver->gpus)
    count.bytes = count.gpus++ == 0 ? gpu.bytes : std::min(count.bytes, gpu.bytes);
  return count;
}

// Never a problem by itself: one node does without it.
Finding examine_nccl(const char* library) {
  Finding finding{Level::kOk, "nccl", ""};
  if (const auto of_nodes = NcclLibrary::open({.several_nodes = true}, library); of_nodes.ok()) {
    finding.text = strf("{}: GPUs of several nodes can share a model", of_nodes->version());
  } else if (of_nodes.error().code == Errc::kNotFound) {
    finding.text = "none: GPUs of several nodes would need it";
  } else {
    finding.text = "for GPUs of one node only";
    finding.next = of_nodes.error().message;
  }
  return finding;
}

std::vector<Finding> examine_gpus(const std::filesystem::path& root) {
  std::vector<Finding> findings;
  findings.push_back(
      {Level::kOk, "build", built_with_cuda() ? "with CUDA" : "without CUDA: models run on the CPU"});
  const std::optional<Driver> driver = DriverLibrary().ask();
  std::error_code ec;
  if (!driver && std::filesystem::exists(root / "proc/driver/nvidia/version", ec)) {
    findings.push_back({Level::kWarn, "gpu", "the driver is loaded, but libcuda.so.1 does not answer",
                        "look at nvidia-smi; in a container, start it with the GPUs"});
    return findings;
  }
  if (!driver || driver->gpus.empty()) {
    findings.push_back({Level::kOk, "gpu", "none"});
    return findings;
  }
  findings.push_back(
      {Level::kOk, "driver", strf("for CUDA {}.{}", driver->version / 1000, driver->version % 1000 / 10)});
  for (size_t i = 0; i < driver->gpus.size(); ++i) findings.push_back(examine_gpu(i, driver->gpus[i]));
  findings.push_back(examine_nccl());
  if (!built_with_cuda()) {
    findings.front().level = Level::kWarn;
    findings.front().next = "build on a machine with nvcc to use the GPU";
  }
  return findings;
}

}  // namespace sparrow::cli
