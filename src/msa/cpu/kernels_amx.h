// SPDX-License-Identifier: Apache-2.0
// The AMX kernels that make up amx_kernels().
#pragma once

#include "msa/cpu/kernels.h"

namespace msa::amx {

void score(const ScoreTask& task, void* scratch);
void pack(AttendUnit& unit, const void* q);
void attend(const AttendTask& task, void* scratch);
void merge(AttendUnit& into, const AttendUnit& from);
void finish(const AttendUnit& unit, void* out);

}  // namespace msa::amx
