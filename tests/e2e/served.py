# SPDX-License-Identifier: Apache-2.0
"""A tiny model with random weights behind `sparrow serve` at a free port, for tests with real clients."""

import json
import pathlib
import re
import signal
import subprocess
import tempfile
import time
import urllib.request

KEY = "sk-test-key"


class Server:
    def __init__(self, sparrow, *flags, model=None):
        self.sparrow, self.flags, self.model = sparrow, flags, model

    def __enter__(self):
        self.folder = tempfile.TemporaryDirectory()
        model = self.model or pathlib.Path(self.folder.name) / "tiny"
        if not self.model:
            subprocess.run([self.sparrow, "make-model", "--preset", "tiny", "--seed", "3", "--out", model], check=True,
                           stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.log = open(pathlib.Path(self.folder.name) / "log", "w+")
        self.process = subprocess.Popen(
            [self.sparrow, "serve", model, "--port", "0", "--served-model-name", "m3", "--api-key", KEY,
             "--kv-cache-memory", "512M", *self.flags], stderr=self.log)
        for _ in range(3000):
            found = re.search(r"at (http://[^,]+),", pathlib.Path(self.log.name).read_text())
            if found:
                self.url = found.group(1)
                return self
            if self.process.poll() is not None:
                break
            time.sleep(0.1)
        raise RuntimeError("the server did not start: " + pathlib.Path(self.log.name).read_text())

    def __exit__(self, *_):
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(timeout=120)
        self.log.close()
        self.folder.cleanup()
        assert code == 0, f"the server ended with {code}"

    def post(self, path, body, headers=None):
        request = urllib.request.Request(self.url + path, json.dumps(body).encode(),
                                         {"Authorization": "Bearer " + KEY, "Content-Type": "application/json",
                                          **(headers or {})})
        return json.load(urllib.request.urlopen(request))

    def ending_bias(self):
        """Random weights do not come to an end by themselves: with this, tags and ends come up now and then."""
        texts = ["]<]minimax[>[", "</mm:think>"]
        return {str(self.post("/tokenize", {"prompt": text})["tokens"][0]): 6 for text in texts}
