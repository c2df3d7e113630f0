// SPDX-License-Identifier: Apache-2.0
// CreatedFiles: what a command writes into a folder. Unless it is kept, it is removed again, with the folders
// that were made for it; what was there before stays as it is.
#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "base/result.h"

namespace sparrow {

class CreatedFiles {
 public:
  // Makes the folder, and those above it that are missing. Error: that, a folder without a name, or a disk
  // without room for `bytes`.
  static Result<CreatedFiles> create(const std::filesystem::path& dir, uint64_t bytes);

  CreatedFiles(CreatedFiles&&) noexcept = default;
  CreatedFiles& operator=(CreatedFiles&&) = delete;
  ~CreatedFiles();

  // Creates a file, empty, and returns its path. Error: that, or there is one already, which another run may
  // be writing at this moment.
  Result<std::filesystem::path> add(std::string_view name);
  void keep();

  // For a signal handler that ends the program: removes what has not been kept, of the one that is at work.
  static void remove_before_exit() { remove(last_of_all); }
  // From here on, signals by which somebody ends the program do so, too.
  static void remove_when_interrupted();

 private:
  // A file or a folder. They are removed from the last one back: folders are empty then.
  struct Created {
    std::string path;
    std::unique_ptr<Created> before;
  };

  explicit CreatedFiles(std::filesystem::path dir) : dir_(std::move(dir)) {}
  void push(std::string path);
  static void remove(const Created* last);

  static std::atomic<const Created*> last_of_all;  // a handler has no object to ask
  std::filesystem::path dir_;
  std::unique_ptr<Created> last_;
};

}  // namespace sparrow
