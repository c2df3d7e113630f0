// SPDX-License-Identifier: Apache-2.0
#include "msa/cpu/kernels_amx.h"

#include "msa/common/amx.h"

namespace msa {
namespace {

void open() {
  amx::configure_tiles();
}
void close() {
  amx::release_tiles();
}

constexpr Kernels kTable = {open, close, amx::score, amx::pack, amx::attend, amx::merge, amx::finish};

}  // namespace

const Kernels& amx_kernels() {
  return kTable;
}

}  // namespace msa
