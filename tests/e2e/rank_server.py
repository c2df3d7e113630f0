# SPDX-License-Identifier: Apache-2.0
"""What the tests of several ranks share: a server at a free port, its processes, a client that streams, and two hosts."""

import ctypes
import http.client
import json
import os
import pathlib
import re
import subprocess
import tempfile
import threading
import time

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


def make_model(sparrow, folder, preset="tiny"):
    model = os.path.join(folder, preset)
    subprocess.run([sparrow, "make-model", "--preset", preset, "--seed", "3", "--out", model], check=True, stdout=subprocess.DEVNULL,
                   stderr=subprocess.DEVNULL)
    return model


class Server:
    """A command that ends in the arguments of `sparrow serve`, here or on one of the Hosts."""

    def __init__(self, folder, command, environment=None, host=None, device="cpu"):
        self.host = host
        self.log_path = pathlib.Path(tempfile.mkstemp(dir=folder, suffix=".log")[1])
        command = [*command, "--port", "0", "--device", device]
        if device == "cpu":
            command += ["--threads", "1", "--kv-cache-memory", "16M"]
        with open(self.log_path, "w") as log:
            self.process = subprocess.Popen(host.command(command) if host else command, stderr=log, start_new_session=True,
                                            env=dict(os.environ, **(environment or {})))

    def wait_for_start(self):
        if not wait_until(lambda: self.port() or self.process.poll() is not None, START_SECONDS) or not self.port():
            self.kill()
            raise RuntimeError("the server did not start: " + self.log())
        return self

    def log(self):
        return self.log_path.read_text()

    def port(self):
        found = re.search(r"at http://127.0.0.1:(\d+),", self.log())
        return int(found.group(1)) if found else None

    def kill(self):
        self.process.kill()
        self.process.wait()

    def get(self, path, timeout=START_SECONDS):
        connection = http.client.HTTPConnection("127.0.0.1", self.port(), timeout=timeout)
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

    def __init__(self, server):
        super().__init__(daemon=True)
        self.host, self.port = server.host, server.port()
        self.events, self.done, self.text, self.ended = 0, 0, "", None
        self.start()

    def run(self):
        try:
            if self.host:
                self.host.enter()
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


class Host:
    """A network namespace, one of two with a cable between them."""

    def __init__(self, number):
        self.number, self.name, self.cable = number, f"sparrow-e2e-{os.getpid()}-{number}", f"sp{os.getpid() % 1000000}{number}"

    def command(self, command):
        return ["ip", "netns", "exec", self.name, *command]

    def enter(self):
        """Moves the calling thread there."""
        with open(f"/run/netns/{self.name}") as file:
            if ctypes.CDLL(None, use_errno=True).setns(file.fileno(), 0x40000000) != 0:
                raise OSError(ctypes.get_errno(), "setns")


class Hosts:
    ADDRESS = "10.231.78.1"

    def __init__(self):
        self.hosts = [Host(0), Host(1)]

    def connect(self):
        """False: namespaces are not allowed here."""
        try:
            for host in self.hosts:
                self.ip("netns", "add", host.name)
            a, b = self.hosts
            self.ip("link", "add", a.cable, "netns", a.name, "type", "veth", "peer", "name", b.cable, "netns", b.name)
            for host in self.hosts:
                self.ip("-n", host.name, "addr", "add", f"10.231.78.{host.number + 1}/24", "dev", host.cable)
                for link in ("lo", host.cable):
                    self.ip("-n", host.name, "link", "set", link, "up")
            return True
        except (OSError, subprocess.CalledProcessError):
            return False

    def cut(self):
        self.ip("-n", self.hosts[1].name, "link", "set", self.hosts[1].cable, "down")

    def close(self):
        for host in self.hosts:
            subprocess.run(["ip", "netns", "del", host.name], capture_output=True)

    @staticmethod
    def ip(*words):
        subprocess.run(["ip", *words], check=True, capture_output=True)
