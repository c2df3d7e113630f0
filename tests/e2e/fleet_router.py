# SPDX-License-Identifier: Apache-2.0
"""A router in a hundred lines: what each server's cache holds it hears from the server's own events."""

import collections
import threading

import msgspec
import zmq

BLOCK = 128
TOKENS_PER_REQUEST = 2048  # what a request under way is worth


def key_of(before, ids):
    return hash((before, tuple(ids)))


def keys_of(ids, keys=()):
    """A name for each full block and all before it; `keys`: those of its first blocks, where they are known."""
    keys = list(keys)
    for at in range(len(keys) * BLOCK, len(ids) - BLOCK + 1, BLOCK):
        keys.append(key_of(keys[-1] if keys else 0, ids[at:at + BLOCK]))
    return keys


class Listener:
    """What one server's cache holds, by keys_of()."""

    def __init__(self, context, endpoint, replay):
        self.socket = context.socket(zmq.SUB)
        self.socket.setsockopt(zmq.SUBSCRIBE, b"")
        self.socket.connect(endpoint)
        self.asker = context.socket(zmq.DEALER)
        self.asker.connect(replay)
        self.names = {}  # the server's name of a block -> its key
        self.held = collections.Counter()
        self.next = 0
        self.replay()

    def apply(self, number, payload):
        self.next = number + 1
        for event in msgspec.msgpack.decode(payload)[1]:
            if event["type"] == "AllBlocksCleared":
                self.names.clear()
                self.held.clear()
            elif event["type"] == "BlockRemoved":
                for name in event["block_hashes"]:
                    self.held[self.names.pop(name)] -= 1
            else:
                parent = event["parent_block_hash"]
                key = 0 if parent is None else self.names[parent]
                for i, name in enumerate(event["block_hashes"]):
                    key = key_of(key, event["token_ids"][i * BLOCK:(i + 1) * BLOCK])
                    self.names[name] = key
                    self.held[key] += 1

    def hear(self):
        while self.socket.poll(0):
            _, number, payload = self.socket.recv_multipart()
            number = int.from_bytes(number, "big")
            if number > self.next:  # something was missed
                self.replay()
            if number == self.next:
                self.apply(number, payload)

    def replay(self):
        self.asker.send_multipart([b"", self.next.to_bytes(8, "big")])
        while True:
            assert self.asker.poll(120_000)
            _, number, payload = self.asker.recv_multipart()
            if not payload:
                return
            self.apply(int.from_bytes(number, "big"), payload)

    def known(self, keys):
        """Tokens of a prompt that the cache holds."""
        for i, key in enumerate(keys):
            if self.held[key] <= 0:
                return i * BLOCK
        return len(keys) * BLOCK


class Router:
    """`endpoints`: of each server's events and their replay; only the policy "events" listens."""

    def __init__(self, policy, endpoints):
        self.policy = policy
        self.lock = threading.Lock()
        self.under_way = [0] * len(endpoints)
        self.ready = [True] * len(endpoints)
        self.turn = 0
        self.context = zmq.Context()
        self.listeners = [Listener(self.context, *pair) for pair in endpoints] if policy == "events" else []

    def score(self, server, keys):
        load = self.under_way[server]
        if self.policy == "events":
            return self.listeners[server].known(keys) - TOKENS_PER_REQUEST * load
        return -load if self.policy == "least-loaded" else 0

    def pick(self, keys):
        """The best of the servers that are ready, among equals in turn."""
        with self.lock:
            self.turn += 1
            for listener in self.listeners:
                listener.hear()
            order = [(self.turn + i) % len(self.under_way) for i in range(len(self.under_way))]
            best = max((server for server in order if self.ready[server]), key=lambda server: self.score(server, keys))
            self.under_way[best] += 1
            return best

    def done(self, server):
        with self.lock:
            self.under_way[server] -= 1

    def knows(self, server, keys):
        """Whether the server says that it holds all of that; True where nobody listens."""
        with self.lock:
            if not self.listeners:
                return True
            listener = self.listeners[server]
            listener.hear()
            listener.replay()  # a first event may come before the subscription does
            return listener.known(keys) == len(keys) * BLOCK

    def close(self):
        self.context.destroy(linger=0)
