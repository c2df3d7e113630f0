# SPDX-License-Identifier: Apache-2.0
"""Ranks that are lost at random moments while clients stream: killed, stopped, or cut off from the network.

Usage: lost_ranks.py PATH_OF_SPARROW [--seeds N] [--first F] [--patience F] [--record FILE] [unittest arguments]

Seeds take turns: each rank is killed, then each is stopped, then what started them is killed, then the cable between two hosts is cut.
--patience multiplies the times that are allowed; 1 is what the design promises on a machine that has nothing else to do.
"""

import argparse
import http.client
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import threading
import time
import unittest

from rank_server import LOST_RANK, START_SECONDS, Client, Hosts, Server, is_alive, make_model, ranks_of, wait_until

PARSER = argparse.ArgumentParser()
PARSER.add_argument("sparrow")
PARSER.add_argument("--seeds", type=int, default=10)
PARSER.add_argument("--first", type=int, default=0)
PARSER.add_argument("--patience", type=float, default=5)
PARSER.add_argument("--record")
OPTIONS, REST = PARSER.parse_known_args()
SPARROW = OPTIONS.sparrow

RED_SECONDS = 1  # from the moment that a failure is known until probes say so
GONE_SECONDS = 5  # from the failure until no process is left
SILENT_SECONDS = 3.25  # until a silent rank counts as lost
WORLD = 4


class Prober(threading.Thread):
    """Asks for /health until it is red, or nobody answers any more."""

    def __init__(self, server):
        super().__init__(daemon=True)
        self.server, self.red, self.text = server, None, ""
        self.start()

    def run(self):
        if self.server.host:
            self.server.host.enter()
        while True:
            try:
                status, text = self.server.get("/health")
            except (OSError, http.client.HTTPException):
                return
            if status == 503:
                self.red, self.text = time.monotonic(), text
                return
            time.sleep(0.01)


class LostRanks(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.mkdtemp()
        cls.model = make_model(SPARROW, cls.folder)
        cls.shared = set(os.listdir("/dev/shm"))
        cls.record = []

    @classmethod
    def tearDownClass(cls):
        shutil.rmtree(cls.folder)
        if OPTIONS.record:
            with open(OPTIONS.record, "w") as file:
                json.dump(cls.record, file, indent=1)

    def test_seeds(self):
        for seed in range(OPTIONS.first, OPTIONS.first + OPTIONS.seeds):
            with self.subTest(seed=seed):
                self.lose(random.Random(seed), seed % (2 * WORLD + 2), seed)

    def start(self, *flags, host=None, environment=None):
        server = Server(self.folder, [SPARROW, "serve", self.model, *flags], environment, host)
        self.addCleanup(server.kill)
        return server

    def lose(self, rng, kind, seed):
        if kind == 2 * WORLD + 1:
            return self.cut(rng, seed)
        server = self.start("--tensor-parallel-size", str(WORLD)).wait_for_start()
        pids = ranks_of(server.process.pid)
        self.assertEqual(sorted(pids), list(range(WORLD)))
        if kind == 2 * WORLD:
            def strike():
                os.kill(server.process.pid, signal.SIGKILL)
            self.judge(rng, seed, "kill", None, [server], pids, strike)
        else:
            rank, number = kind % WORLD, signal.SIGSTOP if kind >= WORLD else signal.SIGKILL

            def strike():
                os.kill(pids[rank], number)
            self.judge(rng, seed, "stop" if kind >= WORLD else "kill", rank, [server], pids, strike)

    def cut(self, rng, seed):
        hosts = Hosts()
        self.addCleanup(hosts.close)
        if not hosts.connect():
            print(f"seed {seed}: no cable is cut: no network namespaces here (needs root and ip)", flush=True)
            return
        servers = [self.start("--tensor-parallel-size", "2", "--data-parallel-size", "2", "--nnodes", "2", "--node-rank", str(node),
                              "--rendezvous", f"{hosts.ADDRESS}:29500", host=hosts.hosts[node],
                              environment={"SPARROW_TOKEN": "a-token-of-sixteen-characters"}) for node in range(2)]
        servers[0].wait_for_start()
        pids = {**ranks_of(servers[0].process.pid), **ranks_of(servers[1].process.pid)}
        self.assertEqual(sorted(pids), list(range(WORLD)))
        self.judge(rng, seed, "cut", 2, servers, pids, hosts.cut)
        hosts.close()

    def judge(self, rng, seed, what, rank, servers, pids, strike):
        """`rank`: who is lost, one of those who may be named; None: what started them."""
        clients = [Client(servers[0]) for _ in range(3)]
        time.sleep(rng.random() * 1.5)
        strike()
        event = time.monotonic()
        prober = Prober(servers[0])
        bound = GONE_SECONDS * OPTIONS.patience
        gone = wait_until(lambda: not any(map(is_alive, pids.values())), bound)
        seconds = time.monotonic() - event
        logs = "".join(server.log() for server in servers)
        self.assertTrue(gone, f"ranks are left after {seconds:.2f} s: {logs}")
        for server in servers:
            code = server.process.wait(timeout=bound)
            self.assertEqual(code, -signal.SIGKILL if rank is None else LOST_RANK, logs)
        for client in clients:
            client.join(bound)
            self.assertIsNotNone(client.ended, "a client hangs")
        prober.join(bound)
        red = prober.red - event if prober.red else None
        self.record.append({"seed": seed, "what": what, "rank": "supervisor" if rank is None else rank,
                            "red_s": None if red is None else round(red, 3), "gone_s": round(seconds, 3)})
        print(f"seed {seed}: {what} of {'the supervisor' if rank is None else f'rank {rank}'}: red after "
              f"{'-' if red is None else f'{red:.2f}'} s, gone after {seconds:.2f} s", flush=True)
        if rank:
            named = [f"rank {r}: " for r in ((2, 3) if what == "cut" else (rank,))]
            self.assertIsNotNone(red, "probes never said so: " + logs)
            self.assertLess(red, (RED_SECONDS + (0 if what == "kill" else SILENT_SECONDS)) * OPTIONS.patience)
            for text in (prober.text, logs, "".join(client.text for client in clients)):
                self.assertTrue(any(name in text for name in named), text)
        self.assertEqual(set(os.listdir("/dev/shm")) - self.shared, set())


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *REST], warnings="ignore")
