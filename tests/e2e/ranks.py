# SPDX-License-Identifier: Apache-2.0
"""Several ranks as processes, on a CPU: what they answer, how they end, and what is left of them.

Usage: ranks.py PATH_OF_SPARROW [--seeds N] [--patience F] [unittest arguments]

A seed kills or stops one rank, or kills what started them, at a random moment while clients stream. --patience multiplies the times that
are allowed; 1 is what the design promises on a machine that has nothing else to do.
"""

import argparse
import http.client
import json
import os
import pathlib
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest

PARSER = argparse.ArgumentParser()
PARSER.add_argument("sparrow")
PARSER.add_argument("--seeds", type=int, default=8)
PARSER.add_argument("--patience", type=float, default=5)
OPTIONS, REST = PARSER.parse_known_args()
SPARROW = OPTIONS.sparrow

RED_SECONDS = 1  # from the moment that a failure is known until probes say so
GONE_SECONDS = 5  # from the failure until no process is left
PING_SECONDS = 3  # until a silent rank counts as lost
START_SECONDS = 120
LOST_RANK = 70


def ranks_of(supervisor):
    """The processes that it started, by rank."""
    found = {}
    for entry in pathlib.Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            parent = int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1])
            args = (entry / "cmdline").read_bytes().decode().split("\0")
        except (OSError, IndexError):
            continue
        if parent == supervisor and "--rank" in args:
            found[int(args[args.index("--rank") + 1])] = int(entry.name)
    return found


def is_alive(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def wait_until(condition, seconds):
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


class Server:
    """`sparrow serve` at a free port."""

    def __init__(self, folder, model, *flags):
        self.log_path = pathlib.Path(tempfile.mkstemp(dir=folder, suffix=".log")[1])
        with open(self.log_path, "w") as log:
            self.process = subprocess.Popen(
                [SPARROW, "serve", model, "--port", "0", "--device", "cpu", "--threads", "1", "--kv-cache-memory", "16M", *flags],
                stderr=log, start_new_session=True)
        if not wait_until(lambda: self.port() or self.process.poll() is not None, START_SECONDS) or not self.port():
            self.kill()
            raise RuntimeError("the server did not start: " + self.log())

    def log(self):
        return self.log_path.read_text()

    def port(self):
        found = re.search(r"at http://127.0.0.1:(\d+),", self.log())
        return int(found.group(1)) if found else None

    def kill(self):
        self.process.kill()
        self.process.wait()

    def get(self, path):
        connection = http.client.HTTPConnection("127.0.0.1", self.port(), timeout=10 * OPTIONS.patience)
        try:
            connection.request("GET", path)
            response = connection.getresponse()
            return response.status, response.read().decode()
        finally:
            connection.close()

    def post(self, path, body):
        connection = http.client.HTTPConnection("127.0.0.1", self.port(), timeout=START_SECONDS)
        connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
        response = connection.getresponse()
        answer = response.status, json.loads(response.read())
        connection.close()
        return answer


class Client(threading.Thread):
    """Streams one long answer after the other until something goes wrong, and notes what and when."""

    def __init__(self, port):
        super().__init__(daemon=True)
        self.port, self.events, self.done, self.text, self.ended = port, 0, 0, "", None
        self.start()

    def run(self):
        try:
            while True:
                connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=START_SECONDS)
                body = {"prompt": [1, 2, 3, 4, 5], "max_tokens": 200, "stream": True, "temperature": 1, "ignore_eos": True}
                connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
                response = connection.getresponse()
                for line in response:
                    self.events += line.startswith(b"data: ")
                    self.done += line.startswith(b"data: [DONE]")
                    if b'"error"' in line:
                        self.text = line.decode()
                        return
                if response.status != 200:
                    return
        except (OSError, http.client.HTTPException) as error:
            self.text = repr(error)
        finally:
            self.ended = time.monotonic()


class Ranks(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.mkdtemp()
        cls.model = os.path.join(cls.folder, "tiny")
        subprocess.run([SPARROW, "make-model", "--preset", "tiny", "--seed", "3", "--out", cls.model], check=True,
                       stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        cls.shared = set(os.listdir("/dev/shm"))

    @classmethod
    def tearDownClass(cls):
        shutil.rmtree(cls.folder)

    def serve(self, *flags):
        server = Server(self.folder, self.model, *flags)
        self.addCleanup(server.kill)
        return server

    def end(self, server, number=signal.SIGTERM):
        os.kill(server.process.pid, number)
        self.assertEqual(server.process.wait(timeout=START_SECONDS), 0, server.log())

    def answers(self, *flags):
        server = self.serve("--seed", "5", *flags)
        found = []
        for seed, length in enumerate([1, 7, 130, 300]):
            prompt = [(11 * i + 3 * seed) % 250 + 1 for i in range(length)]
            for temperature in (0, 1):
                status, answer = server.post("/v1/completions", {
                    "prompt": prompt, "max_tokens": 24, "temperature": temperature, "seed": seed, "logprobs": 3, "ignore_eos": True})
                self.assertEqual(status, 200, answer)
                found.append(answer["choices"])
        status, metrics = server.get("/metrics")
        self.end(server)
        return found, metrics

    def test_answers_are_those_of_one_rank(self):
        alone, _ = self.answers()
        for ranks in (2, 4):
            together, metrics = self.answers("--tensor-parallel-size", str(ranks))
            self.assertEqual(together, alone)
            self.assertRegex(metrics, r"sparrow:ranks_alive\{[^}]*\} " + str(ranks))
            self.assertRegex(metrics, r'sparrow:rank_step_seconds\{[^}]*rank="1"[^}]*\} 0\.\d*[1-9]')

    def test_generate(self):
        def generate(*flags):
            return subprocess.run([SPARROW, "generate", "--model", self.model, "--prompt-ids", "1,2,3", "--max-tokens", "12", "--device", "cpu",
                                   "--threads", "1", "--temperature", "0", *flags], capture_output=True, text=True, check=True).stdout
        self.assertEqual(generate("--tensor-parallel-size", "2"), generate())

    def test_the_exit_code_is_that_of_rank_0(self):
        """The others are told to stop, and end well, before it has ended; also under a parent that ignores SIGCHLD."""
        prompts = os.path.join(self.folder, "prompts.jsonl")
        with open(prompts, "w") as file:
            file.write('{"id": 1, "prompt_ids": [1, 2]}\n{"id": 2, "prompt_ids": [999999]}\n')
        command = [SPARROW, "generate", "--model", self.model, "--prompts", prompts, "--out", os.path.join(self.folder, "out.jsonl"),
                   "--max-tokens", "4", "--device", "cpu", "--threads", "1", "--tensor-parallel-size", "2"]
        for ignored in (False, True):
            for _ in range(3):
                done = subprocess.run(command, capture_output=True, text=True, timeout=START_SECONDS,
                                      preexec_fn=(lambda: signal.signal(signal.SIGCHLD, signal.SIG_IGN)) if ignored else None)
                self.assertEqual(done.returncode, 1, done.stderr)

    def test_a_signal_to_all_of_them_drains(self):
        """As Ctrl-C in a terminal, and as a launcher that tells every rank."""
        server = self.serve("--tensor-parallel-size", "2")
        client = Client(server.port())
        self.assertTrue(wait_until(lambda: client.events > 3, START_SECONDS))
        os.killpg(server.process.pid, signal.SIGINT)
        for rank, pid in ranks_of(server.process.pid).items():
            if rank > 0:
                os.kill(pid, signal.SIGTERM)
        self.assertEqual(server.process.wait(timeout=START_SECONDS), 0, server.log())
        client.join(START_SECONDS)
        self.assertGreaterEqual(client.done, 1, client.text)
        self.assertNotIn("error", client.text)

    def test_lost_ranks(self):
        for seed in range(OPTIONS.seeds):
            with self.subTest(seed=seed):
                self.lose_a_rank(random.Random(seed), seed)

    def lose_a_rank(self, rng, seed):
        world = 4
        server = self.serve("--tensor-parallel-size", str(world))
        port = server.port()
        pids = ranks_of(server.process.pid)
        self.assertEqual(sorted(pids), list(range(world)))
        clients = [Client(port) for _ in range(3)]
        # Every rank is killed and stopped in turn; then also what started them.
        kind = seed % (2 * world + 1)
        rank, number = kind % world, signal.SIGSTOP if kind >= world else signal.SIGKILL
        supervisor = kind == 2 * world
        if supervisor:
            number = signal.SIGKILL
        time.sleep(rng.random() * 1.5)
        red, probe_text = [], []

        def probe():
            while True:
                try:
                    status, text = server.get("/health")
                except (OSError, http.client.HTTPException):
                    return
                if status == 503:
                    red.append(time.monotonic())
                    probe_text.append(text)
                    return
                time.sleep(0.01)

        os.kill(server.process.pid if supervisor else pids[rank], number)
        event = time.monotonic()
        prober = threading.Thread(target=probe, daemon=True)
        prober.start()
        detection = PING_SECONDS if number == signal.SIGSTOP else 0
        bound = (GONE_SECONDS + detection) * OPTIONS.patience
        self.assertTrue(wait_until(lambda: not any(map(is_alive, pids.values())), bound), "ranks are left: " + server.log())
        gone = time.monotonic() - event
        code = server.process.wait(timeout=bound)
        self.assertEqual(code, -signal.SIGKILL if supervisor else LOST_RANK, server.log())
        for client in clients:
            client.join(bound)
            self.assertIsNotNone(client.ended, "a client hangs")
        prober.join(bound)
        seen = red[0] - event if red else None
        if rank != 0 and not supervisor:
            self.assertIsNotNone(seen, "probes never said so: " + server.log())
            self.assertLess(seen, (RED_SECONDS + detection) * OPTIONS.patience)
            self.assertIn(f"rank {rank}: ", probe_text[0])
            self.assertIn(f"rank {rank}: ", server.log())
            self.assertTrue(any(f"rank {rank}: " in client.text for client in clients), [client.text for client in clients])
        self.assertEqual(set(os.listdir("/dev/shm")) - self.shared, set())
        print(f"seed {seed}: {signal.Signals(number).name} of {'the supervisor' if supervisor else f'rank {rank}'}: red after "
              f"{'-' if seen is None else f'{seen:.2f}'} s, gone after {gone:.2f} s", flush=True)

    def by_hand(self, rank, program=SPARROW, model=None, token="a-token-of-sixteen-characters", flags=()):
        """One rank, started as a launcher would."""
        environment = dict(os.environ, RANK=str(rank), WORLD_SIZE="2", LOCAL_RANK=str(rank), LOCAL_WORLD_SIZE="2", SPARROW_TOKEN=token)
        return subprocess.Popen([program, "serve", model or self.model, "--port", "0", "--device", "cpu", "--threads", "1", "--kv-cache-memory",
                                 "16M", "--tensor-parallel-size", "2", *flags], env=environment, stderr=subprocess.PIPE, text=True)

    def expect_refusal(self, other, says):
        first = self.by_hand(0)
        for process in (first, other):
            self.addCleanup(process.kill)
        for process in (first, other):
            _, err = process.communicate(timeout=START_SECONDS)
            self.assertEqual(process.returncode, 2, err)
            self.assertEqual(err.count("\n"), 1, err)
        self.assertRegex(err, says)

    def test_ranks_that_do_not_belong_together(self):
        build = shutil.copy(SPARROW, os.path.join(self.folder, "other-build"))
        with open(build, "ab") as file:
            file.write(b"x")
        self.expect_refusal(self.by_hand(1, program=build), "build|program")
        self.expect_refusal(self.by_hand(1, token="another-token-of-that-length"), "token")
        self.expect_refusal(self.by_hand(1, flags=("--max-num-seqs", "7")), "config|options|model")


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *REST], warnings="ignore")
