# SPDX-License-Identifier: Apache-2.0
"""Simulated servers behind a router: one that reads their events finds more prefixes than one that sends requests in turn, and a
server that stops is left in time.

Usage: fleet.py PATH_OF_SPARROW
       fleet.py PATH_OF_SPARROW --servers 64 --sessions 192 --pause 10 --cost-model FILE --json FILE   (many at once: a measurement)
"""

import argparse
import http.client
import json
import pathlib
import random
import re
import shutil
import signal
import sys
import tempfile
import threading
import time

try:
    from fleet_router import BLOCK, Router, keys_of
except ImportError:
    print("skipped: pyzmq or msgspec is not installed here")
    sys.exit(77)

from rank_server import Server, make_model, wait_until

PATIENCE = 300
# A step of a millisecond, and 10 us more for each token of a prompt.
COST_MODEL = {"name": "test", "cache_tokens": 1000 * BLOCK, "rows": {"at": [1, 10001], "us": [1000, 101000]}}
EVENTS = json.dumps({"enable_kv_cache_events": True, "endpoint": "tcp://*:0", "replay_endpoint": "tcp://*:0"})


def write_cost_model(options, **changes):
    pathlib.Path(options.cost_model).write_text(json.dumps(dict(COST_MODEL, **changes)))


class Session:
    """An agent: a prompt that many share, then what it was told, which grows."""

    def __init__(self, seed, shared, growth):
        self.source, self.growth = random.Random(seed), growth
        self.ids, self.keys, self.text = [], [], ""
        self.add(random.Random(-1 - seed % 3), shared)

    def add(self, source, count):
        new = [source.randrange(300) + 10 for _ in range(count)]
        self.text += "".join(f",{id}" for id in new)
        self.ids += new
        self.keys = keys_of(self.ids, self.keys)

    def grow(self):
        self.add(self.source, self.source.randrange(self.growth // 2, self.growth * 3 // 2))

    def ask(self, port, max_tokens):
        """Seconds until the first token, and until the end."""
        begin = time.monotonic()
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
        body = f'{{"prompt":[{self.text[1:]}],"max_tokens":{max_tokens},"ignore_eos":true,"stream":true}}'
        connection.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        first, last = None, b""
        for line in answer:
            first = first or time.monotonic() - begin
            last = line.strip() or last
        connection.close()
        assert answer.status == 200 and last == b"data: [DONE]", (answer.status, last)
        return first, time.monotonic() - begin


class Fleet:
    def __init__(self, options, folder, *flags):
        command = [options.sparrow, "serve", options.model, "--cost-model", options.cost_model, "--kv-events-config", EVENTS, *flags]
        self.model = options.model
        self.servers = [Server(folder, command, device="sim") for _ in range(options.servers)]

    def __enter__(self):
        try:
            self.ports = [server.wait_for_start().port() for server in self.servers]
        except RuntimeError:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        for server in self.servers:
            server.kill()

    def endpoints(self):
        found = []
        for server in self.servers:
            line = next(line for line in server.log().splitlines() if "events of the prefix cache" in line)
            found.append([f"tcp://127.0.0.1:{part.rpartition(':')[2]}" for part in line.split(", replay ")])
        return found

    def counted(self, name):
        pattern = re.compile(rf"^{name}(?:\{{[^}}]*\}})? ([0-9.e+]+)$", re.MULTILINE)
        return sum(float(pattern.search(server.get("/metrics")[1]).group(1)) for server in self.servers)


def in_turn(options, fleet, router):
    """One request at a time, so that what a router knows is certain. The share of tokens that a fleet of one would have found."""
    sessions = [Session(seed, options.shared, options.growth) for seed in range(options.sessions)]
    asked, sent_before, seen = 0, 0, set()
    for _ in range(options.turns):
        for session in sessions:
            session.grow()
            server = router.pick(session.keys)
            session.ask(fleet.ports[server], options.max_tokens)
            router.done(server)
            assert wait_until(lambda: router.knows(server, session.keys), PATIENCE), "an event did not come"
            asked += len(session.ids)
            sent_before += BLOCK * sum(key in seen for key in session.keys)
            seen.update(session.keys)
    return sent_before / asked


def at_once(options, fleet, router):
    """All sessions at once, each with pauses."""
    times, failures = [], []

    def converse(seed):
        try:
            pauses, session = random.Random(-1000 - seed), Session(seed, options.shared, options.growth)
            time.sleep(pauses.random() * options.pause)
            for _ in range(options.turns):
                session.grow()
                server = router.pick(session.keys)
                try:
                    times.append(session.ask(fleet.ports[server], options.max_tokens))
                finally:
                    router.done(server)
                time.sleep(pauses.expovariate(1 / options.pause))
        except Exception as error:
            failures.append(repr(error))

    clients = [threading.Thread(target=converse, args=(seed,)) for seed in range(options.sessions)]
    for client in clients:
        client.start()
    for client in clients:
        client.join()
    assert not failures, failures[0]
    result = {"requests": len(times)}
    for name, values in zip(("first_token_seconds", "request_seconds"), zip(*times)):
        values = sorted(values)
        result[name] = {f"p{share}": round(values[share * (len(values) - 1) // 100], 4) for share in (50, 90, 99)}
    return result


def measure(options, folder, policy):
    with Fleet(options, folder) as fleet:
        router = Router(policy, fleet.endpoints())
        result = {"router": policy, "servers": options.servers}
        if options.pause:
            result.update(at_once(options, fleet, router))
        else:
            result["sent_before"] = round(in_turn(options, fleet, router), 4)
        router.close()
        hits, queries = (fleet.counted(f"vllm:prefix_cache_{name}_total") for name in ("hits", "queries"))
        result["hit_rate"] = round(hits / queries, 4)
        assert fleet.counted("sparrow:kv_events_dropped_total") == 0
    print(result, flush=True)
    return result


def check_engines(fleet):
    """What is a data-parallel group's is labelled with it, and the one queue is not."""
    text = fleet.servers[0].get("/metrics")[1]
    for name in ("num_requests_running", "kv_cache_usage_perc", "prefix_cache_hits_total", "prefix_cache_queries_total"):
        assert re.findall(rf'^vllm:{name}{{.*engine="(.)"', text, re.MULTILINE) == ["0", "1"], name
    assert re.findall(r"^vllm:num_requests_waiting{(.*)}", text, re.MULTILINE) == [f'model_name="{fleet.model}"']


def drain(options, folder):
    """Clients never stop asking. A server is told to end: the router sees it at /ready, and no answer is lost."""
    write_cost_model(options, groups=2)
    with Fleet(options, folder, "--drain-delay", "4") as fleet:
        check_engines(fleet)
        router, leaving, failures, said = Router("least-loaded", fleet.endpoints()), threading.Event(), [], []

        def watch():
            while not leaving.is_set():
                for i, server in enumerate(fleet.servers):
                    try:
                        status = server.get("/ready")[0]
                    except OSError:
                        status = 0
                    router.ready[i] = status == 200
                    if i == 0 and status != 200:
                        said.append(status)
                time.sleep(0.05)

        def converse(seed):
            try:
                session = Session(seed, BLOCK, BLOCK)
                while not leaving.is_set():
                    server = router.pick(session.keys)
                    try:
                        session.ask(fleet.ports[server], 20)
                    finally:
                        router.done(server)
            except Exception as error:
                failures.append(repr(error))

        threads = [threading.Thread(target=watch)] + [threading.Thread(target=converse, args=(seed,)) for seed in range(8)]
        for thread in threads:
            thread.start()
        first = fleet.servers[0]
        assert wait_until(lambda: "POST /v1/completions" in first.log(), PATIENCE)
        first.process.send_signal(signal.SIGTERM)
        code = first.process.wait(timeout=PATIENCE)
        leaving.set()
        for thread in threads:
            thread.join()
        router.close()
        assert not failures, failures[0]
        assert said[0] == 503, "the server was gone before it said so"
        assert code == 0, code
    print("a server left, and no answer was lost")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("sparrow")
    parser.add_argument("--servers", type=int, default=4)
    parser.add_argument("--sessions", type=int, default=9)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--shared", type=int, default=8 * BLOCK, help="tokens that many sessions begin with")
    parser.add_argument("--growth", type=int, default=4 * BLOCK, help="tokens of a turn, on average")
    parser.add_argument("--max-tokens", type=int, default=4)
    parser.add_argument("--pause", type=float, default=0, help="seconds, on average; 0: one request at a time")
    parser.add_argument("--cost-model")
    parser.add_argument("--json")
    options = parser.parse_args()
    folder = tempfile.mkdtemp()
    try:
        options.model = make_model(options.sparrow, folder)
        if not options.cost_model:
            options.cost_model = str(pathlib.Path(folder) / "cost.json")
            write_cost_model(options)
        results = [measure(options, folder, policy) for policy in ("round-robin", "least-loaded", "events")]
        if not options.pause:
            drain(options, folder)
    finally:
        shutil.rmtree(folder)
    if options.json:
        pathlib.Path(options.json).write_text(json.dumps(results, indent=1) + "\n")
    blind, _, knowing = results
    if options.pause:
        return 0
    # All that was sent before is found, but for the part of a prompt's last block; in turn, every turn comes to another server.
    assert knowing["hit_rate"] >= knowing["sent_before"], knowing
    assert blind["hit_rate"] < knowing["hit_rate"] - 0.1, (blind, knowing)
    return 0


if __name__ == "__main__":
    sys.exit(main())
