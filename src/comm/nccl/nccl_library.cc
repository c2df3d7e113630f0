// SPDX-License-Identifier: Apache-2.0
#include "comm/nccl/nccl_library.h"

#include <dlfcn.h>

namespace sparrow {

std::string NcclLibrary::name_of(int version) {
  return strf("{}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

Result<NcclLibrary> NcclLibrary::open(const NcclNeeds& needs, const char* path) {
  // It stays open: it keeps threads of its own.
  void* const handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr)
    return Error{Errc::kNotFound,
                 strf("{} was not found: install NCCL 2.28 or newer (libnccl2, or nvidia-nccl-cu13 of PyPI), "
                      "or name its folder in LD_LIBRARY_PATH",
                      path)};
  NcclLibrary library;
  const auto missing = [&](const char* name) {
    return Error{Errc::kUnsupported,
                 strf("{} has no {}: it is no NCCL, or one before 2.28; install a newer one", path, name)};
  };
#define SPARROW_NCCL_LOAD(name, arguments)                                              \
  library.name = reinterpret_cast<decltype(library.name)>(dlsym(handle, "nccl" #name)); \
  if (library.name == nullptr) return missing("nccl" #name);
  SPARROW_NCCL_FUNCTIONS(SPARROW_NCCL_LOAD)
#undef SPARROW_NCCL_LOAD
  library.GetErrorString =
      reinterpret_cast<decltype(library.GetErrorString)>(dlsym(handle, "ncclGetErrorString"));
  if (library.GetErrorString == nullptr) return missing("ncclGetErrorString");
  if (const int code = library.GetVersion(&library.version_); code != nccl::kSuccess)
    return Error{Errc::kUnsupported, strf("{} does not tell its version: {}", path, library.describe(code))};

  // The name may have been that of a link, or found in one of many folders.
  Dl_info found{};
  const bool is_found = dladdr(reinterpret_cast<const void*>(library.GetVersion), &found) != 0;
  const char* const at = is_found && found.dli_fname != nullptr ? found.dli_fname : path;
  const struct {
    bool needed;
    int least;
    const char* what;
  } limits[] = {{true, 22800, "ranks of a node"},
                {needs.several_nodes, 23004, "ranks on several nodes"},
                {needs.shared_gpu, 23004, "several ranks on one GPU"}};
  for (const auto& [needed, least, what] : limits)
    if (needed && library.version_ < least)
      return Error{Errc::kUnsupported,
                   strf("{} is NCCL {}: {} need {} or newer (libnccl2, or nvidia-nccl-cu13 of PyPI)", at,
                        library.version(), what, name_of(least))};
  return library;
}

}  // namespace sparrow
