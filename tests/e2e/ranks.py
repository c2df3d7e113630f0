# SPDX-License-Identifier: Apache-2.0
"""Several ranks as processes, on a CPU: what they answer, who starts them, what they read, and how they end.

Usage: ranks.py PATH_OF_SPARROW [unittest arguments]
"""

import os
import pathlib
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import unittest

from rank_server import LOST_RANK, START_SECONDS, Client, Server, is_alive, make_model, ranks_of, wait_until

SPARROW = sys.argv[1]


def server_with_a_free_neighbour():
    """At a port whose next one is free, too, and stays so: both lie below those that connections are given."""
    for port in random.sample(range(10_000, 32_000, 2), 100):
        try:
            socket.create_server(("127.0.0.1", port + 1)).close()
            return socket.create_server(("127.0.0.1", port))
        except OSError:
            continue
    raise AssertionError("no free ports")


class Ranks(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.mkdtemp()
        cls.model = make_model(SPARROW, cls.folder)

    @classmethod
    def tearDownClass(cls):
        shutil.rmtree(cls.folder)

    def serve(self, *flags):
        server = Server(self.folder, [SPARROW, "serve", self.model, *flags])
        self.addCleanup(server.kill)
        return server.wait_for_start()

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
            for series in ("rank_step_seconds", "peer_wait_seconds_total"):
                self.assertRegex(metrics, r'sparrow:' + series + r'\{[^}]*rank="1"[^}]*\} \d+\.\d*[1-9]')
            found = re.findall(r'^sparrow:rank_step_seconds\{[^}]*rank="(\d+)"\} (\S+)$', metrics, re.MULTILINE)
            self.assertEqual([rank for rank, _ in found], [str(rank) for rank in range(ranks)])
            times = [float(seconds) for _, seconds in found]
            skew = float(re.search(r"^sparrow:step_skew_seconds\{[^}]*\} (\S+)$", metrics, re.MULTILINE).group(1))
            self.assertAlmostEqual(skew, max(times) - min(times), delta=1e-9)

    def generate(self, *flags, launcher=(), tokens=12):
        return [*launcher, SPARROW, "generate", "--model", self.model, "--prompt-ids", "1,2,3", "--max-tokens", str(tokens), "--device", "cpu",
                "--threads", "1", "--temperature", "0", *flags]

    def output(self, command, **options):
        done = subprocess.run(command, capture_output=True, text=True, timeout=START_SECONDS, **options)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout

    def test_generate(self):
        self.assertEqual(self.output(self.generate("--tensor-parallel-size", "2")), self.output(self.generate()))

    def test_torchrun(self):
        """Two nodes of two ranks in its environment; its agent listens at the port that it names."""
        with server_with_a_free_neighbour() as agent:
            port = agent.getsockname()[1]
            ranks = [subprocess.Popen(
                self.generate("--tensor-parallel-size", "4"), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                env=dict(os.environ, RANK=str(rank), WORLD_SIZE="4", LOCAL_RANK=str(rank % 2), LOCAL_WORLD_SIZE="2", GROUP_RANK=str(rank // 2),
                         MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), TORCHELASTIC_USE_AGENT_STORE="True",
                         SPARROW_TOKEN="a-token-of-sixteen-characters")) for rank in range(4)]
            for rank in ranks:
                self.addCleanup(rank.kill)
            outputs = [rank.communicate(timeout=START_SECONDS) for rank in ranks]
        for rank, (_, err) in zip(ranks, outputs):
            self.assertEqual(rank.returncode, 0, err)
        self.assertEqual("".join(out for out, _ in outputs), self.output(self.generate()))

    def test_mpirun(self):
        if not shutil.which("mpirun"):
            print("no mpirun here (apt install openmpi-bin): it is not tried", flush=True)
            self.skipTest("no mpirun here")
        root = ("--allow-run-as-root",) if os.geteuid() == 0 else ()
        launcher = ("mpirun", *root, "--oversubscribe", "-n", "4")
        self.assertEqual(self.output(self.generate("--tensor-parallel-size", "4", launcher=launcher)), self.output(self.generate()))
        server = Server(self.folder, [*launcher, SPARROW, "serve", self.model, "--tensor-parallel-size", "4"])
        self.addCleanup(server.kill)
        client = Client(server.wait_for_start())
        self.assertTrue(wait_until(lambda: client.events > 3, START_SECONDS))
        children = pathlib.Path(f"/proc/{server.process.pid}/task/{server.process.pid}/children")
        ranks = [int(pid) for pid in children.read_text().split()]
        self.assertEqual(len(ranks), 4)
        os.kill(ranks[2], signal.SIGKILL)
        self.assertNotEqual(server.process.wait(timeout=START_SECONDS), 0)
        self.assertTrue(wait_until(lambda: not any(map(is_alive, ranks)), START_SECONDS))
        client.join(START_SECONDS)
        self.assertIsNotNone(client.ended, "a client hangs")

    def test_several_nodes_need_a_token_and_wait_no_longer_than_they_are_told(self):
        """One line and exit code 2, also where the nodes are one machine."""
        nodes = ("--tensor-parallel-size", "2", "--nnodes", "2", "--node-rank", "1", "--rendezvous", "127.0.0.1:9")
        environment = {name: value for name, value in os.environ.items() if name != "SPARROW_TOKEN"}
        for more, says in (({}, r"^sparrow: ranks on 2 nodes need a token: --token-file or SPARROW_TOKEN"),
                           ({"SPARROW_TOKEN": "a-token-of-sixteen-characters"}, r"rank 0 of 2 did not answer at 127\.0\.0\.1:9 within 1 s: ")):
            done = subprocess.run(self.generate(*nodes, "--join-timeout", "1"), capture_output=True, text=True, timeout=START_SECONDS,
                                  env={**environment, **more})
            self.assertEqual((done.returncode, done.stderr.count("\n")), (2, 1), done.stderr)
            self.assertRegex(done.stderr, says)

    def test_a_node_reads_each_file_once(self):
        """Counted by the system, over all ranks, from the disk alone."""
        files = sorted(pathlib.Path(self.model).glob("*.safetensors"))
        for path in files:
            with open(path, "rb") as file:
                os.fsync(file.fileno())
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        server = self.serve("--tensor-parallel-size", "4")
        counts = [pathlib.Path(f"/proc/{pid}/io").read_text() for pid in ranks_of(server.process.pid).values()]
        read = [int(count.split("read_bytes: ")[1].split()[0]) for count in counts]
        self.end(server)
        size, slack = sum(path.stat().st_size for path in files), 512 << 10
        if sum(read) < size // 2:
            print("nobody counts what is read from this disk: it is not tried", flush=True)
            self.skipTest("nobody counts what is read from this disk")
        self.assertLess(sum(read), size + slack, read)

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

    def test_a_signal_ends_generate_without_a_word(self):
        process = subprocess.Popen(self.generate("--tensor-parallel-size", "2", "--ignore-eos", tokens=60000),
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.addCleanup(process.kill)
        self.assertTrue(process.stdout.read(1))
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=START_SECONDS)
        self.assertEqual(process.returncode, 128 + signal.SIGINT, err)
        self.assertNotIn("connection", err)

    def test_a_signal_to_all_of_them_drains(self):
        """As Ctrl-C in a terminal, and as a launcher that tells every rank."""
        server = self.serve("--tensor-parallel-size", "2")
        client = Client(server)
        self.assertTrue(wait_until(lambda: client.events > 3, START_SECONDS))
        os.killpg(server.process.pid, signal.SIGINT)
        for rank, pid in ranks_of(server.process.pid).items():
            if rank > 0:
                os.kill(pid, signal.SIGTERM)
        self.assertEqual(server.process.wait(timeout=START_SECONDS), 0, server.log())
        client.join(START_SECONDS)
        self.assertGreaterEqual(client.done, 1, client.text)
        self.assertNotIn("error", client.text)

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

    def test_a_rank_that_cannot_load_ends_the_others(self):
        """It has the same names and sizes, so nobody refuses it before; those who lost it say so once, and are to be started again."""
        broken = shutil.copytree(self.model, os.path.join(self.folder, "broken"))
        path = next(pathlib.Path(broken).glob("*.safetensors"))
        path.write_bytes(bytes(path.stat().st_size))
        ranks = self.by_hand(0), self.by_hand(1, model=broken)
        for process in ranks:
            self.addCleanup(process.kill)
        lost, failed = [process.communicate(timeout=START_SECONDS)[1] for process in ranks]
        self.assertEqual([process.returncode for process in ranks], [LOST_RANK, 2], lost + failed)
        self.assertEqual(lost.count("rank 1: "), 1, lost)
        self.assertIn(path.name, lost)
        self.assertEqual(failed.count("\n"), 1, failed)

    def test_a_port_in_use_is_said_by_the_program_that_was_started(self):
        with socket.create_server(("127.0.0.1", 0)) as taken:
            done = subprocess.run([SPARROW, "serve", self.model, "--device", "cpu", "--tensor-parallel-size", "2", "--port",
                                   str(taken.getsockname()[1])], capture_output=True, text=True, timeout=START_SECONDS)
        self.assertEqual((done.returncode, done.stderr.count("\n")), (2, 1), done.stderr)
        self.assertIn("in use", done.stderr)

    def test_ranks_that_do_not_belong_together(self):
        build = shutil.copy(SPARROW, os.path.join(self.folder, "other-build"))
        with open(build, "ab") as file:
            file.write(b"x")
        self.expect_refusal(self.by_hand(1, program=build), "build|program")
        self.expect_refusal(self.by_hand(1, token="another-token-of-that-length"), "token")
        self.expect_refusal(self.by_hand(1, flags=("--max-num-seqs", "7")), "config|options|model")


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]], warnings="ignore")
