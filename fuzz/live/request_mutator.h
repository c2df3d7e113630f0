// SPDX-License-Identifier: Apache-2.0
// RequestMutator: HTTP requests that are almost right. It knows what a request is made of, so that what it
// breaks is found past the first check: fields swap places and types, numbers go to their edges, members come
// twice or not at all, and the same for headers, lengths and chunks.
#pragma once

#include <boost/json/value.hpp>
#include <cstdint>
#include <random>
#include <string>
#include <string_view>
#include <vector>

namespace sparrow::fuzz {

struct MutatedRequest {
  std::string bytes;
  bool framed = true;  // one request, of which the server must find the end: the connection may be kept
  bool head = false;   // its answer has no body
};

class RequestMutator {
 public:
  // The bodies, JSON texts by the path they are for.
  struct Seed {
    std::string path;
    boost::json::value body;
  };
  static std::vector<Seed> seeds();

  // The seeds are borrowed. The same number gives the same request.
  RequestMutator(const std::vector<Seed>& seeds, uint64_t number) : seeds_(seeds), random_(number) {}

  MutatedRequest next();

 private:
  size_t below(size_t n) { return n == 0 ? 0 : static_cast<size_t>(random_() % n); }
  bool chance(int percent) { return below(100) < static_cast<size_t>(percent); }
  template <typename T>
  const auto& pick(const T& from) {
    return from[below(std::size(from))];
  }

  boost::json::value any_value();
  void mutate(boost::json::value& body);
  void mutate_members(boost::json::object& object);
  void mutate_elements(boost::json::array& array);
  void mutate_text(std::string& text);
  std::string chunked(const std::string& body);
  void break_http(MutatedRequest& request, const std::string& path, const std::string& body);
  void flip_bytes(std::string& bytes);

  const std::vector<Seed>& seeds_;
  std::mt19937_64 random_;
};

}  // namespace sparrow::fuzz
