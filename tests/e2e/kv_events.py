# SPDX-License-Identifier: Apache-2.0
"""Events of the prefix cache, heard with pyzmq and msgspec by somebody who knows vLLM's format and nothing of Sparrow.

Usage: kv_events.py PATH_OF_SPARROW PATH_OF_KV_EVENT_SOURCE [unittest arguments]
SPARROW_KV_EVENT_REQUESTS sets the number of requests of the long test.
"""

import hashlib
import json
import os
import pathlib
import random
import shutil
import struct
import subprocess
import sys
import tempfile
import time
import unittest
from typing import Any, Union

try:
    import msgspec
    import zmq
except ImportError:
    print("skipped: pyzmq or msgspec is not installed here")
    sys.exit(77)

from rank_server import Server, make_model

SPARROW, SOURCE = sys.argv[1:3]
PATIENCE = 120  # seconds; for a machine that has much else to do
REQUESTS = int(os.environ.get("SPARROW_KV_EVENT_REQUESTS", "400"))


# vLLM's own types: events as maps since June 2026, as arrays before.
def event_types(array_like):
    class Event(msgspec.Struct, array_like=array_like, omit_defaults=True, gc=False, tag=True):
        pass

    class BlockStored(Event):
        block_hashes: list[Union[int, bytes]]
        parent_block_hash: Union[int, bytes, None]
        token_ids: list[int]
        block_size: int
        lora_id: Union[int, None]
        medium: Union[str, None]
        lora_name: Union[str, None]
        extra_keys: Union[list[Union[tuple[Any, ...], None]], None] = None
        group_idx: Union[int, None] = None

    class BlockRemoved(Event):
        block_hashes: list[Union[int, bytes]]
        medium: Union[str, None]
        group_idx: Union[int, None] = None

    class AllBlocksCleared(Event):
        pass

    class Batch(msgspec.Struct, array_like=True, omit_defaults=True, gc=False):
        ts: float
        events: list[Union[BlockStored, BlockRemoved, AllBlocksCleared]]
        data_parallel_rank: Union[int, None] = None

    return msgspec.msgpack.Decoder(Batch)


def sum_of(ids):
    return hashlib.sha256(struct.pack(f"<{len(ids)}I", *ids)).hexdigest()


class Consumer:
    """A picture of one group's cache. `deaf`: the share of messages that it does not hear."""

    def __init__(self, endpoint, replay_endpoint, array_like=False, deaf=0.0, seed=1, group=0):
        self.context = zmq.Context()
        self.events = self.context.socket(zmq.SUB)
        self.events.setsockopt(zmq.SUBSCRIBE, b"")
        self.monitor = self.events.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED)
        self.events.connect(endpoint)
        self.replay_endpoint = replay_endpoint
        self.decoder = event_types(array_like)
        self.deaf, self.random, self.group = deaf, random.Random(seed), group
        self.blocks = {}  # hash -> (parent, SHA-256 of its ids, salt, media)
        self.last = -1
        self.gaps = self.restarts = self.listings = self.removed = self.pictures = self.batches = 0

    def close(self):
        self.events.disable_monitor()
        self.context.destroy(linger=0)

    def wait_for_connection(self):
        while True:
            assert self.monitor.poll(PATIENCE * 1000), "no connection"
            event = int.from_bytes(self.monitor.recv_multipart()[0][:2], "little")
            if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                return

    def apply(self, payload):
        batch = self.decoder.decode(payload)
        self.batches += 1
        assert batch.data_parallel_rank == self.group
        assert abs(batch.ts - time.time()) < 3600
        for event in batch.events:
            kind = type(event).__name__
            if kind == "AllBlocksCleared":
                self.blocks.clear()
            elif kind == "BlockRemoved":
                self.removed += len(event.block_hashes)
                for block in event.block_hashes:
                    self.blocks.pop(block, None)
            else:
                self.store(event)

    def store(self, event):
        assert len(event.token_ids) == event.block_size * len(event.block_hashes)
        parent = event.parent_block_hash
        for i, block in enumerate(event.block_hashes):
            ids = event.token_ids[i * event.block_size:(i + 1) * event.block_size]
            keys = event.extra_keys[i] if event.extra_keys else None
            # Media as [identifier, first token], then the salt, which is a string.
            salts = [key for key in keys or () if isinstance(key, str)]
            media = ",".join(f"{name}@{at}" for name, at in (key for key in keys or () if not isinstance(key, str)))
            self.blocks[block] = (parent, sum_of(ids), salts[0] if salts else None, media or None)
            self.pictures += bool(media)
            parent = block

    def replay(self, first):
        """What was published from number `first` on. A REQ socket would take the first answer only."""
        with self.context.socket(zmq.DEALER) as asker:
            asker.connect(self.replay_endpoint)
            asker.send_multipart([b"", first.to_bytes(8, "big")])
            while True:
                assert asker.poll(PATIENCE * 1000), "no answer to a replay"
                _, number, payload = asker.recv_multipart()
                if not payload:
                    assert number == b"\xff" * 8
                    return
                number = int.from_bytes(number, "big")
                self.listings += number > self.last + 1
                self.apply(payload)
                self.last = number

    def start_again(self):
        """Connected anew: what was received before, and not read yet, was said by another life."""
        while self.events.poll(0):
            self.events.recv_multipart()
        self.restarts += 1
        self.blocks.clear()
        self.last = -1
        self.replay(0)

    def hear(self, milliseconds):
        if not self.events.poll(milliseconds):
            return False
        _, number, payload = self.events.recv_multipart()
        number = int.from_bytes(number, "big")
        if self.random.random() < self.deaf:
            return True
        if number > self.last + 1:
            self.gaps += 1
            self.replay(self.last + 1)
        if number == self.last + 1:  # older ones came with a replay
            self.apply(payload)
            self.last = number
        return True

    def hear_until(self, number):
        deadline = time.monotonic() + PATIENCE
        while self.last < number and time.monotonic() < deadline:
            if not self.hear(200) and self.last < number:
                self.replay(self.last + 1)  # the last ones were missed, and nothing follows them
        assert self.last >= number, f"heard {self.last} of {number}"


class Source:
    def __init__(self, events=None, **options):
        events = {"enable_kv_cache_events": True, "endpoint": "tcp://*:0", "replay_endpoint": "tcp://*:0", **(events or {})}
        self.process = subprocess.Popen([SOURCE, json.dumps({"events": json.dumps(events), **options})], stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, text=True)
        self.endpoints = []
        for _ in range(options.get("groups", 1)):
            found = [part.rpartition(":")[2] for part in self.process.stdout.readline().split(", replay ")]
            self.endpoints.append([f"tcp://127.0.0.1:{int(port)}" for port in found])

    def go(self):
        self.process.stdin.write("go\n")
        self.process.stdin.flush()

    def state(self):
        """The next checkpoint: group, number of its last batch, blocks. Or nothing: the end."""
        words = self.process.stdout.readline().split()
        if not words or words[0] != "checkpoint":
            self.end = words
            return None
        blocks = {}
        for _ in range(int(words[3])):
            block, parent, ids, *extras = self.process.stdout.readline().split()
            blocks[int(block)] = (None if parent == "-" else int(parent), ids, *(None if extra == "-" else extra for extra in extras))
        return int(words[1]), int(words[2]), blocks

    def kill(self):
        self.process.kill()
        self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()


class KvEvents(unittest.TestCase):
    def source(self, **options):
        source = Source(**options)
        self.addCleanup(source.kill)
        return source

    def consumer(self, endpoints, **options):
        consumer = Consumer(*endpoints, **options)
        self.addCleanup(consumer.close)
        consumer.wait_for_connection()
        return consumer

    def compare_all(self, source, consumers, limit=None):
        """Every checkpoint, or the first `limit` of them."""
        compared = 0
        source.go()
        while compared != limit and (state := source.state()):
            group, number, blocks = state
            for consumer in consumers:
                if consumer.group == group:
                    consumer.hear_until(number)
                    self.assertEqual(consumer.blocks, blocks)
                    self.assertEqual(consumer.last, number)
            compared += 1
            if compared != limit:
                source.go()
        return compared

    def test_a_consumer_knows_what_the_cache_holds(self):
        """Four lives of an engine, one after the other at the same address, for consumers that stay. The second one loses events to
        whoever does not read in time, the third to a publisher that falls behind; the fourth is killed."""
        lives = [{}, {"hwm": 4, "buffer_steps": 50}, {"max_queue_size": 2}, {}]
        consumers, endpoints, compared, ends = [], {}, 0, []
        for life, events in enumerate(lives):
            killed = life == len(lives) - 1
            requests = 100_000_000 if killed else -(-REQUESTS // (len(lives) - 1))
            source = self.source(requests=requests, checkpoint_steps=max(20, REQUESTS // 1000), seed=4 + life, events={**endpoints, **events})
            if consumers:
                for consumer in consumers:
                    consumer.wait_for_connection()
                    consumer.start_again()
            else:
                consumers = [self.consumer(source.endpoints[0]), self.consumer(source.endpoints[0], deaf=0.2)]
                fixed = [endpoint.replace("127.0.0.1", "*") for endpoint in source.endpoints[0]]
                endpoints = dict(zip(("endpoint", "replay_endpoint"), fixed))
            compared += self.compare_all(source, consumers, limit=5 if killed else None)
            if killed:
                source.kill()
            else:
                self.assertEqual(source.process.wait(), 0)
                ends.append([int(word) for word in source.end[1:]])
        requests, steps, preemptions, dropped, refused = (sum(column) for column in zip(*ends))
        for consumer in consumers:
            print(f"{requests} requests in {steps} steps with {preemptions} preemptions: {compared} checkpoints equal for a consumer that does not "
                  f"hear {consumer.deaf:.0%} of what comes; {consumer.batches} batches, {consumer.removed} blocks removed, {consumer.pictures} stored "
                  f"with pictures, {consumer.gaps} gaps repaired, {consumer.listings} of them by a list of all blocks, {consumer.restarts} restarts; "
                  f"{dropped} events dropped, {refused} batches refused by the publisher", file=sys.stderr)
            self.assertGreater(consumer.removed, 50)
            self.assertGreater(consumer.pictures, 50)
            self.assertEqual(consumer.restarts, len(lives) - 1)
        self.assertGreater(consumers[1].gaps, 5)
        self.assertGreater(compared, 10)
        self.assertGreater(preemptions, 0)

    def test_gaps_are_found_and_repaired(self):
        """By arrays, too; two groups; and where the replay buffer is too short, by a list of all there is."""
        source = self.source(requests=400, checkpoint_steps=10, seed=5, groups=2, events={"format": "array", "buffer_steps": 2})
        consumers = [self.consumer(source.endpoints[group], group=group, array_like=True, deaf=0.3, seed=group) for group in (0, 1)]
        self.compare_all(source, consumers)
        self.assertEqual(source.process.wait(), 0)
        for consumer in consumers:
            self.assertGreater(consumer.gaps, 3)
            self.assertGreater(consumer.listings, 0)

    def test_who_comes_late_asks_for_what_was_before(self):
        source = self.source(requests=200, checkpoint_steps=50, seed=6)
        early = self.consumer(source.endpoints[0])
        self.compare_all(source, [early], limit=2)
        late = self.consumer(source.endpoints[0])
        late.replay(0)
        self.assertEqual(late.blocks, early.blocks)
        self.compare_all(source, [early, late])

    def test_a_restart_is_noticed(self):
        first = self.source(requests=10_000, checkpoint_steps=30, seed=7)
        consumer = self.consumer(first.endpoints[0])
        self.compare_all(first, [consumer], limit=3)
        self.assertTrue(consumer.blocks)
        first.kill()
        fixed = [endpoint.replace("127.0.0.1", "*") for endpoint in first.endpoints[0]]
        second = self.source(requests=100, checkpoint_steps=30, seed=8, events={"endpoint": fixed[0], "replay_endpoint": fixed[1]})
        consumer.wait_for_connection()
        consumer.start_again()
        self.compare_all(second, [consumer])
        self.assertEqual(second.process.wait(), 0)

    def test_a_server_publishes(self):
        folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, folder)
        model = make_model(SPARROW, folder)
        config = {"enable_kv_cache_events": True, "endpoint": "tcp://*:0", "replay_endpoint": "tcp://*:0"}
        server = Server(folder, [SPARROW, "serve", model, "--kv-events-config", json.dumps(config)])
        self.addCleanup(server.kill)
        server.wait_for_start()
        line = next(line for line in pathlib.Path(server.log_path).read_text().splitlines() if "events of the prefix cache" in line)
        ports = [part.rpartition(":")[2] for part in line.split(", replay ")]
        consumer = self.consumer([f"tcp://127.0.0.1:{port}" for port in ports])
        prompt = [7 * i % 250 + 1 for i in range(300)]
        status, answer = server.post("/v1/completions", {"prompt": prompt, "max_tokens": 4, "cache_salt": "mine"})
        self.assertEqual(status, 200, answer)
        deadline = time.monotonic() + PATIENCE
        while not consumer.blocks and time.monotonic() < deadline:
            consumer.hear(100)
        sums = {sum_of(prompt[i:i + 128]) for i in (0, 128)}
        self.assertEqual({ids for _, ids, _, _ in consumer.blocks.values()}, sums)
        self.assertEqual(sum(salt is not None and salt.endswith("mine") for _, _, salt, _ in consumer.blocks.values()), 1)
        status, metrics = server.get("/metrics")
        self.assertRegex(metrics, r'sparrow:kv_events_dropped_total\{[^}]*\} 0\n')
        self.assertRegex(metrics, r'sparrow:kv_event_subscribers\{[^}]*\} 1\n')


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]])
