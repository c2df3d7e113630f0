// SPDX-License-Identifier: Apache-2.0
// What happens when a mapped file cannot be read any more, because somebody cut it short or its disk failed.
// The system sends SIGBUS to whichever thread touched the page, and without this the program would die
// without a word. Weights stay mapped on purpose: they are used where they lie.
#pragma once

#include <cstddef>
#include <string>

namespace sparrow {

// From now on a fault inside a mapped file writes one line with the file's name to standard error, removes
// what CreatedFiles would, and ends the program with `exit_code`. Faults elsewhere are bugs, and end it as
// before.
void report_mapping_faults(int exit_code);

// Any thread. Called by MappedFile.
void add_mapping(const void* data, size_t size, const std::string& name);
void remove_mapping(const void* data);

}  // namespace sparrow
