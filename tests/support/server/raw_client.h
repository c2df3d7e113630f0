// SPDX-License-Identifier: Apache-2.0
// A TCP client that sends any bytes in any rhythm and reads HTTP answers with a parser of its own, so that
// the server's idea of HTTP is judged by another one.
#pragma once

#include <chrono>
#include <map>
#include <string>
#include <string_view>

namespace sparrow::test {

struct RawResponse {
  int status = 0;                              // 0: no head came
  std::map<std::string, std::string> headers;  // names in lower case
  std::string body;                            // decoded
  int num_chunks = 0;
  bool complete = false;  // all of the body came, as the head announced it

  // The value of a header, empty where there is none.
  std::string header(const std::string& lower_case_name) const;
};

// As long as a test waits for what must come: time enough for a busy machine.
inline constexpr std::chrono::seconds kPatience{60};

class RawClient {
 public:
  explicit RawClient(int port, const char* address = "127.0.0.1");
  ~RawClient();
  RawClient(RawClient&& other) noexcept;
  RawClient(const RawClient&) = delete;
  RawClient& operator=(const RawClient&) = delete;

  bool connected() const { return fd_ >= 0; }
  int fd() const { return fd_; }

  // False: the server has closed.
  bool send(std::string_view bytes);
  bool send_slowly(std::string_view bytes, size_t piece, std::chrono::milliseconds pause);

  // The next answer on the connection. `to_head`: its request was HEAD.
  RawResponse read_response(bool to_head = false, std::chrono::milliseconds patience = kPatience);
  // At least `size` bytes, or what came before the end.
  std::string read_bytes(size_t size, std::chrono::milliseconds patience = kPatience);
  // Everything until the server closes; what came by then where it does not.
  std::string read_all(std::chrono::milliseconds patience = std::chrono::seconds(10));
  // The server closes within that time, and sends nothing more before.
  bool is_closed_within(std::chrono::milliseconds patience);

  void finish_sending();  // FIN
  void reset();           // RST
  void close();

 private:
  bool fill(std::chrono::steady_clock::time_point deadline);
  bool read_chunks(RawResponse& response, std::chrono::steady_clock::time_point deadline);
  bool take_line(std::string& line, std::chrono::steady_clock::time_point deadline);

  int fd_ = -1;
  std::string in_;
  bool eof_ = false;
};

// "GET path HTTP/1.1" with a Host field.
std::string get_request(std::string_view path, std::string_view more_fields = "");
std::string post_request(std::string_view path, std::string_view body, std::string_view more_fields = "");
// To /echo: a head with these fields, and one whose body, chunks and all, follows.
std::string post_head(const std::string& fields);
std::string chunked_post(const std::string& body);

}  // namespace sparrow::test
