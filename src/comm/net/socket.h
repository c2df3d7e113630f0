// SPDX-License-Identifier: Apache-2.0
// Stream sockets, of a node (abstract Unix names, which vanish with their process) and between nodes (TCP).
// Calls block, but never for good: whoever makes one says when to give up.
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <span>
#include <string>

#include "base/files/fd.h"
#include "base/result.h"

namespace sparrow {

// Asked about ten times a second while a call waits; true: it returns an error. Empty: never.
using GiveUp = std::function<bool()>;
GiveUp at_deadline(std::chrono::steady_clock::time_point deadline);

Result<Fd> listen_unix(const std::string& name);
// Waits for somebody to listen there. Refuses a listener of another user.
Result<Fd> connect_unix(const std::string& name, const GiveUp& give_up);
// At any address of this machine. Port 0: one that is free.
Result<Fd> listen_tcp(int port);
int port_of(const Fd& listener);
Result<Fd> connect_tcp(const std::string& host, int port, const GiveUp& give_up);

// Nullopt-like: an empty Fd where nobody is there now, or whoever was is another user.
Fd accept_one(const Fd& listener);
// "10.0.0.7:41502", "process 4711".
std::string peer_name(const Fd& socket);
// The numeric address of this end.
std::string own_address(const Fd& socket);

Status send_all(const Fd& socket, std::span<const std::byte> bytes, const GiveUp& give_up);
Status receive_all(const Fd& socket, std::span<std::byte> bytes, const GiveUp& give_up);
// A file descriptor, with one byte.
Status send_fd(const Fd& socket, const Fd& sent, const GiveUp& give_up);
Result<Fd> receive_fd(const Fd& socket, const GiveUp& give_up);

// Waits until one of the events or an error is there; false: nothing within the time.
bool wait_for(const Fd& socket, short events, std::chrono::milliseconds time);

}  // namespace sparrow
