// SPDX-License-Identifier: Apache-2.0
// PictureCache: pictures that were decoded before, so that a conversation decodes each of its pictures once.
// Bounded: of owners with more than their part those not used for longest go first. Known by who sent them as
// well: nobody finds out by time what others have sent. Any thread.
#pragma once

#include <cstddef>
#include <list>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

#include "media/image.h"
#include "media/resize.h"
#include "server/media/sha256.h"

namespace sparrow {

class PictureCache {
 public:
  explicit PictureCache(size_t max_bytes) : max_bytes_(max_bytes) {}

  // A picture as `salt` has sent it, in the size that the rule gives it.
  static Sha256Digest id_of(std::string_view salt, const Sha256Digest& file, const SizeRule& rule);

  std::optional<Image> find(const Sha256Digest& id);
  void add(const Sha256Digest& id, const std::string& owner, const Image& image);

 private:
  struct Entry {
    Sha256Digest id;
    std::string owner;
    Image image;
  };
  void make_room();  // with the lock held

  const size_t max_bytes_;
  std::mutex mutex_;
  std::list<Entry> entries_;  // least recently used first
  std::map<Sha256Digest, std::list<Entry>::iterator> by_id_;
  std::map<std::string, size_t> held_;  // bytes, by owner; of those that have any
  size_t bytes_ = 0;
};

}  // namespace sparrow
