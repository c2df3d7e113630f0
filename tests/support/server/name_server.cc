// SPDX-License-Identifier: Apache-2.0
#include "support/server/name_server.h"

#include <arpa/inet.h>
#include <arpa/nameser.h>
#include <netinet/in.h>
#include <resolv.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "base/check.h"

namespace sparrow::test {
namespace {

constexpr size_t kHeaderBytes = 12, kAddressBytesV4 = 4, kAddressBytesV6 = 16;

void put16(std::vector<uint8_t>& out, size_t value) {
  out.push_back(static_cast<uint8_t>(value >> 8));
  out.push_back(static_cast<uint8_t>(value));
}

}  // namespace

NameServer::NameServer() {
  socket_ = ::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{.sin_family = AF_INET, .sin_port = 0, .sin_addr = {htonl(INADDR_LOOPBACK)}};
  socklen_t size = sizeof address;
  SPARROW_CHECK(::bind(socket_, reinterpret_cast<sockaddr*>(&address), size) == 0);
  SPARROW_CHECK(::getsockname(socket_, reinterpret_cast<sockaddr*>(&address), &size) == 0);
  port_ = ntohs(address.sin_port);
  thread_ = std::thread([this] { run(); });
}

NameServer::~NameServer() {
  // An empty packet ends it.
  const sockaddr_in self{.sin_family = AF_INET,
                         .sin_port = htons(static_cast<uint16_t>(port_)),
                         .sin_addr = {htonl(INADDR_LOOPBACK)}};
  ::sendto(socket_, nullptr, 0, 0, reinterpret_cast<const sockaddr*>(&self), sizeof self);
  thread_.join();
  ::close(socket_);
}

void NameServer::answer(const std::string& host, std::vector<std::vector<IpAddress>> answers) {
  const std::lock_guard lock(mutex_);
  answers_[host] = std::move(answers);
}

int NameServer::lookups() const {
  const std::lock_guard lock(mutex_);
  return lookups_;
}

void NameServer::run() {
  std::array<uint8_t, 512> packet;
  for (;;) {
    sockaddr_in from{};
    socklen_t size = sizeof from;
    const ssize_t n =
        ::recvfrom(socket_, packet.data(), packet.size(), 0, reinterpret_cast<sockaddr*>(&from), &size);
    if (n == 0) return;
    if (n < static_cast<ssize_t>(kHeaderBytes)) continue;
    const std::vector<uint8_t> reply = reply_to(std::span(packet).first(static_cast<size_t>(n)));
    ::sendto(socket_, reply.data(), reply.size(), 0, reinterpret_cast<const sockaddr*>(&from), size);
  }
}

std::vector<uint8_t> NameServer::reply_to(std::span<const uint8_t> query) {
  std::string host;
  size_t at = kHeaderBytes;
  for (size_t length; at < query.size() && (length = query[at]) != 0; at += 1 + length) {
    if (!host.empty()) host += '.';
    host.append(reinterpret_cast<const char*>(&query[at + 1]), length);
  }
  const int type = query[at + 1] << 8 | query[at + 2];
  const std::lock_guard lock(mutex_);
  if (type == ns_t_a) {
    ++lookups_;
    auto& answers = answers_[host];
    current_[host] = answers.empty() ? std::vector<IpAddress>{} : answers.front();
    if (answers.size() > 1) answers.erase(answers.begin());
  }
  std::vector<IpAddress> addresses = current_[host];
  std::erase_if(addresses, [&](const IpAddress& a) { return a.is_v6() != (type == ns_t_aaaa); });
  std::vector<uint8_t> reply(query.begin(),
                             query.begin() + static_cast<ptrdiff_t>(at + 5));  // with its question
  reply[2] = 0x85, reply[3] = 0x80;  // an answer, and we should know
  reply[6] = 0, reply[7] = static_cast<uint8_t>(addresses.size());
  std::fill(reply.begin() + 8, reply.begin() + kHeaderBytes, uint8_t{0});
  for (const IpAddress& address : addresses) {
    const size_t bytes = address.is_v6() ? kAddressBytesV6 : kAddressBytesV4;
    for (const size_t field : {size_t{0xC000} + kHeaderBytes, static_cast<size_t>(type), size_t{ns_c_in},
                               size_t{0}, size_t{0}, bytes})  // name, type, class, time to live (two), length
      put16(reply, field);
    reply.insert(reply.end(), address.bytes().begin(),
                 address.bytes().begin() + static_cast<ptrdiff_t>(bytes));
  }
  return reply;
}

std::vector<IpAddress> NameServer::ask(const std::string& host, int type) const {
  struct __res_state state {};
  SPARROW_CHECK(::res_ninit(&state) == 0);
  state.nscount = 1;
  state.nsaddr_list[0] = {.sin_family = AF_INET,
                          .sin_port = htons(static_cast<uint16_t>(port_)),
                          .sin_addr = {htonl(INADDR_LOOPBACK)}};
  state.retrans = 60;  // seconds: nothing is asked twice, however slow the machine
  std::array<uint8_t, 4096> packet;
  const int size = ::res_nquery(&state, host.c_str(), ns_c_in, type, packet.data(), packet.size());
  ::res_nclose(&state);
  std::vector<IpAddress> addresses;
  ns_msg message{};
  if (size < 0 || ::ns_initparse(packet.data(), size, &message) != 0) return addresses;
  for (int i = 0; i < ns_msg_count(message, ns_s_an); ++i) {
    ns_rr record{};
    SPARROW_CHECK(::ns_parserr(&message, ns_s_an, i, &record) == 0);
    std::array<uint8_t, kAddressBytesV6> bytes{};
    std::memcpy(bytes.data(), ns_rr_rdata(record), ns_rr_rdlen(record));
    addresses.push_back(type == ns_t_aaaa ? IpAddress::v6(bytes)
                                          : IpAddress::v4({bytes[0], bytes[1], bytes[2], bytes[3]}));
  }
  return addresses;
}

Result<std::vector<IpAddress>> NameServer::resolve(const std::string& host) const {
  std::vector<IpAddress> addresses = ask(host, ns_t_a);
  for (const IpAddress& address : ask(host, ns_t_aaaa)) addresses.push_back(address);
  return addresses;
}

}  // namespace sparrow::test
