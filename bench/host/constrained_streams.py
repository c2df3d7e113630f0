#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Throughput of streams that are held to a schema, beside as many that are not: a real server whose steps take the time of a cost model.

    python3 -m venv peers && peers/bin/pip install tokenizers
    peers/bin/python constrained_streams.py SPARROW FOLDER [--rounds 5] [--streams 32] [--tokens 400] [--cost-model FILE]

FOLDER gets a tokenizer of M3's size, trained on the sources of Python's library, and no weights. Every round asks with schemas and
prompts that the server has not seen; the two kinds take turns. Prints lines for bench/results.
"""
import argparse
import json
import os
import pathlib
import random
import re
import signal
import socket
import subprocess
import sys
import sysconfig
import threading
import time

import constraint_cases

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROMPT_TOKENS = 512


def letters_of_bytes():
    """How byte-level tokenizers write bytes."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in plain]
    return {**{byte: chr(byte) for byte in plain}, **{byte: chr(256 + i) for i, byte in enumerate(others)}}


def make_model(sparrow, folder):
    if (folder / "done").exists():
        return
    import tokenizers
    subprocess.run([sparrow, "make-model", "--preset", "tiny", "--out", folder], check=True, stdout=subprocess.DEVNULL)
    config = json.loads((folder / "config.json").read_text())
    tiny = json.loads((folder / "tokenizer.json").read_text())
    trained = tokenizers.Tokenizer.from_str((folder / "tokenizer.json").read_text())
    files = sorted(pathlib.Path(sysconfig.get_paths()["stdlib"]).glob("**/*.py"))
    texts = (path.read_text(errors="ignore") for path in files if "site-packages" not in path.parts)
    trained.train_from_iterator(texts, tokenizers.trainers.BpeTrainer(
        vocab_size=150_000, initial_alphabet=sorted(letters_of_bytes().values()), show_progress=False))
    model = json.loads(trained.to_str())["model"]
    # Ids of added tokens stay theirs; the others move out of their way.
    taken = {token["id"] for token in tiny["added_tokens"]}
    free = (i for i in range(constraint_cases.VOCABULARY) if i not in taken)
    names = [name for name, _ in sorted(model["vocab"].items(), key=lambda item: item[1])]
    letters = letters_of_bytes()
    more = ("".join(letters[byte] for byte in token) for token in constraint_cases.vocabulary(random.Random(19)))
    known = {*names, *(token["content"] for token in tiny["added_tokens"])}
    names += [name for name in more if name not in known]
    tiny["model"]["vocab"] = dict(zip(names, free))
    tiny["model"]["merges"] = model["merges"]
    config["vocab_size"] = constraint_cases.VOCABULARY
    if "text_config" in config:
        config["text_config"]["vocab_size"] = constraint_cases.VOCABULARY
    (folder / "tokenizer.json").write_text(json.dumps(tiny))
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "done").touch()


class Server:
    def __init__(self, sparrow, folder, cost_model):
        self.log = open(folder / "log", "w+")
        self.process = subprocess.Popen(
            [sparrow, "serve", folder, "--device", "sim", "--cost-model", cost_model, "--port", "0", "--served-model-name", "m3"],
            stderr=self.log)
        while not (found := re.search(r"at http://([^:]+):(\d+)", pathlib.Path(self.log.name).read_text())):
            if self.process.poll() is not None:
                raise SystemExit(pathlib.Path(self.log.name).read_text())
            time.sleep(0.1)
        self.address = found[1], int(found[2])

    def stream(self, body):
        """All that a stream says."""
        body = json.dumps({"model": "m3", "stream": True, "stream_options": {"include_usage": True}, **body}).encode()
        with socket.create_connection(self.address) as connection:
            connection.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nConnection: close\r\n"
                               b"Content-Length: %d\r\n\r\n" % len(body) + body)
            pieces = []
            while piece := connection.recv(1 << 16):
                pieces.append(piece)
        return b"".join(pieces).decode()

    def cpu_seconds(self):
        """Of its threads, by id: how long each ran, whoever else wants the processor."""
        tasks = pathlib.Path(f"/proc/{self.process.pid}/task")
        return {task.name: int((task / "schedstat").read_text().split()[0]) / 1e9 for task in tasks.iterdir()}

    def close(self):
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(60)


def bounded(schema):
    """The schema with strings that random tokens come to the end of."""
    if isinstance(schema, list):
        return [bounded(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    made = {key: bounded(value) for key, value in schema.items()}
    if made.get("type") == "string" and not {"enum", "format", "pattern"} & set(made):
        made["maxLength"] = min(made.get("maxLength", 40), 40)
    return made


def measure(server, options, rng, schemas):
    """Tokens a second of all streams together, and how long the busiest thread, which is the engine's, ran for a token of each.
    Schemas: none, or one for each."""
    answers = [None] * options.streams

    def ask(i):
        own = random.Random(seeds[i])
        body = {"prompt": [own.randint(1000, 100_000) for _ in range(PROMPT_TOKENS)], "max_tokens": options.tokens,
                "ignore_eos": True, "seed": seeds[i]}
        if schemas:
            body["structured_outputs"] = {"json": {"type": "array", "items": schemas[i], "minItems": 10_000}}
        answers[i] = server.stream(body)

    seeds = [rng.randrange(1 << 30) for _ in range(options.streams)]
    threads = [threading.Thread(target=ask, args=(i,)) for i in range(options.streams)]
    start, ran = time.monotonic(), server.cpu_seconds()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seconds = time.monotonic() - start
    busiest = max(after - ran.get(name, 0) for name, after in server.cpu_seconds().items())
    for answer in answers:
        assert f'"completion_tokens":{options.tokens}' in answer and '"finish_reason":"length"' in answer, answer[-2000:]
    return {"tokens_per_s": round(options.streams * options.tokens / seconds, 1), "engine_ms": round(busiest / options.tokens * 1e3, 3)}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("sparrow")
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--streams", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=400)
    parser.add_argument("--cost-model", default=str(ROOT / "bench/cost/h200-m3-tp8.json"))
    options = parser.parse_args()
    make_model(options.sparrow, options.folder)
    rng = random.Random(7)
    cases = [bounded(constraint_cases.record(rng, rng.randint(0, 3), {})[0]) for _ in range(options.streams * (options.rounds + 1))]
    server = Server(options.sparrow, options.folder, options.cost_model)
    try:
        for i in range(options.rounds + 1):  # the first makes trees of the tokens
            free = measure(server, options, rng, None)
            held = measure(server, options, rng, cases[i * options.streams:][:options.streams])
            print(f"{i}: free {free}, constrained {held}", file=sys.stderr)
            if i > 0:
                print(json.dumps({"case": f"round {i}", "free": free, "constrained": held, "load": round(os.getloadavg()[0], 1)}),
                      flush=True)
    finally:
        server.close()


if __name__ == "__main__":
    main()
