# SPDX-License-Identifier: Apache-2.0
"""Simulated servers behind a router that reads their events: it finds more prefixes than one that sends requests in turn.

Usage: fleet.py PATH_OF_SPARROW [--servers 4] [--sessions 12] [--turns 6] [--json FILE]
"""

import argparse
import collections
import http.client
import json
import pathlib
import random
import re
import shutil
import sys
import tempfile
import threading
import time

try:
    import msgspec
    import zmq
except ImportError:
    print("skipped: pyzmq or msgspec is not installed here")
    sys.exit(77)

from rank_server import Server, make_model

BLOCK = 128
TOKENS_PER_REQUEST = 512  # what a request under way is worth
# A step of 5 ms, and 10 us more for each token of a prompt; a cache of 250 blocks.
COST_MODEL = {"name": "test", "cache_tokens": 250 * BLOCK, "rows": {"at": [1, 10001], "us": [5000, 105000]}}


class Listener:
    """What one server's cache holds, by the tokens of each block and of all before it."""

    def __init__(self, context, endpoint, replay):
        self.socket = context.socket(zmq.SUB)
        self.socket.setsockopt(zmq.SUBSCRIBE, b"")
        self.socket.connect(endpoint)
        self.asker = context.socket(zmq.DEALER)
        self.asker.connect(replay)
        self.keys = {}  # the server's name of a block -> ours
        self.held = collections.Counter()
        self.next = 0

    def apply(self, number, payload):
        self.next = number + 1
        for event in msgspec.msgpack.decode(payload)[1]:
            if event["type"] == "AllBlocksCleared":
                self.keys.clear()
                self.held.clear()
            elif event["type"] == "BlockRemoved":
                for name in event["block_hashes"]:
                    self.held[self.keys.pop(name)] -= 1
            else:
                key = self.keys[event["parent_block_hash"]] if event["parent_block_hash"] else 0
                for i, name in enumerate(event["block_hashes"]):
                    key = hash((key, tuple(event["token_ids"][i * BLOCK:(i + 1) * BLOCK])))
                    self.keys[name] = key
                    self.held[key] += 1

    def hear(self):
        while self.socket.poll(0):
            _, number, payload = self.socket.recv_multipart()
            number = int.from_bytes(number, "big")
            if number > self.next:
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


class Router:
    def __init__(self, servers, reads_events):
        self.lock = threading.Lock()
        self.under_way = [0] * len(servers)
        self.turn = 0
        self.listeners = []
        if reads_events:
            context = zmq.Context()
            for server in servers:
                line = next(line for line in server.log().splitlines() if "events of the prefix cache" in line)
                ports = [part.rpartition(":")[2] for part in line.split(", replay ")]
                self.listeners.append(Listener(context, *[f"tcp://127.0.0.1:{port}" for port in ports]))
            for listener in self.listeners:
                listener.replay()

    def known(self, listener, prompt):
        key, tokens = 0, 0
        for at in range(0, len(prompt) - BLOCK, BLOCK):
            key = hash((key, tuple(prompt[at:at + BLOCK])))
            if not listener.held[key]:
                break
            tokens += BLOCK
        return tokens

    def pick(self, prompt):
        with self.lock:
            self.turn += 1
            best = self.turn % len(self.under_way)
            if self.listeners:
                for listener in self.listeners:
                    listener.hear()
                scores = [self.known(listener, prompt) - TOKENS_PER_REQUEST * load
                          for listener, load in zip(self.listeners, self.under_way)]
                if max(scores) > scores[best]:
                    best = scores.index(max(scores))
            self.under_way[best] += 1
            return best

    def done(self, server):
        with self.lock:
            self.under_way[server] -= 1


def converse(router, servers, seed, turns, seconds, failures):
    """An agent: a prompt that many share, then what it was told, which grows."""
    try:
        source, shared = random.Random(seed), random.Random(-1 - seed % 3)
        prompt = [shared.randrange(300) + 10 for _ in range(8 * BLOCK)]
        for _ in range(turns):
            prompt = prompt + [source.randrange(300) + 10 for _ in range(source.randrange(2 * BLOCK, 6 * BLOCK))]
            chosen = router.pick(prompt)
            begin = time.monotonic()
            connection = http.client.HTTPConnection("127.0.0.1", servers[chosen].port(), timeout=600)
            connection.request("POST", "/v1/completions", json.dumps({"prompt": prompt, "max_tokens": 4, "ignore_eos": True}),
                               {"Content-Type": "application/json"})
            answer = connection.getresponse()
            body = answer.read()
            if answer.status != 200:
                failures.append(body)
            connection.close()
            router.done(chosen)
            seconds.append(time.monotonic() - begin)
    except Exception as error:
        failures.append(repr(error))


def run(options, model, cost_model, folder, reads_events):
    events = json.dumps({"enable_kv_cache_events": True, "endpoint": "tcp://*:0", "replay_endpoint": "tcp://*:0"})
    command = [options.sparrow, "serve", model, "--cost-model", cost_model, "--kv-events-config", events]
    servers = [Server(folder, command, device="sim") for _ in range(options.servers)]
    try:
        for server in servers:
            server.wait_for_start()
        router, seconds, failures = Router(servers, reads_events), [], []
        clients = [threading.Thread(target=converse, args=(router, servers, seed, options.turns, seconds, failures))
                   for seed in range(options.sessions)]
        for client in clients:
            client.start()
        for client in clients:
            client.join()
        assert not failures, failures[0]
        counts = collections.Counter()
        for server in servers:
            text = server.get("/metrics")[1]
            for name in ("queries", "hits"):
                counts[name] += float(re.search(rf"vllm:prefix_cache_{name}_total\{{[^}}]*\}} ([0-9.e+]+)", text).group(1))
            assert re.search(r"sparrow:kv_events_dropped_total\{[^}]*\} 0\n", text)
    finally:
        for server in servers:
            server.kill()
    seconds.sort()
    return {"router": "events" if reads_events else "round-robin", "servers": options.servers, "requests": len(seconds),
            "hit_rate": round(counts["hits"] / counts["queries"], 4), "p50_seconds": round(seconds[len(seconds) // 2], 4),
            "p99_seconds": round(seconds[int(0.99 * (len(seconds) - 1))], 4)}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("sparrow")
    parser.add_argument("--servers", type=int, default=4)
    parser.add_argument("--sessions", type=int, default=12)
    parser.add_argument("--turns", type=int, default=6)
    parser.add_argument("--json")
    options = parser.parse_args()
    folder = tempfile.mkdtemp()
    try:
        model = make_model(options.sparrow, folder)
        cost_model = pathlib.Path(folder) / "cost.json"
        cost_model.write_text(json.dumps(COST_MODEL))
        blind, knowing = (run(options, model, str(cost_model), folder, reads_events) for reads_events in (False, True))
    finally:
        shutil.rmtree(folder)
    for result in (blind, knowing):
        print(result)
    if options.json:
        pathlib.Path(options.json).write_text(json.dumps([blind, knowing], indent=1) + "\n")
    return 0 if knowing["hit_rate"] > blind["hit_rate"] + 0.1 else 1


if __name__ == "__main__":
    sys.exit(main())
