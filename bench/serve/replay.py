#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A trace against a real server, for `sparrow simulate` to be compared with.

    replay.py make chat|agents|batch [--requests N] [--rate R] [--seconds S] > trace.jsonl
    replay.py warm http://127.0.0.1:8000
    replay.py run trace.jsonl http://127.0.0.1:8000 > measured.json
    replay.py compare measured.json simulated.json

Needs nothing but Python. A session's next prompt has the answers that came, as an agent's has. `warm` has a server run decode steps of
all sizes once: on a GPU each is captured when it is first met, which a server that is up for a day does not notice and a minute does.
"""

import argparse
import http.client
import json
import multiprocessing
import random
import re
import sys
import threading
import time
import urllib.request

FIRST_ID, IDS = 1000, 100_000  # of prompts: ordinary tokens of M3
PROCESSES = 8
SIZES = [*range(1, 8), *range(8, 16, 2), *range(16, 32, 4), *range(32, 64, 8), *range(64, 128, 16), *range(128, 257, 32)]
WARM = [(1500, 256), (6000, 256), (20_000, 256), (50_000, 48)]  # prompts' tokens, most at once


def make(options):
    source = random.Random(options.seed)

    def length(median, spread, most):
        return max(1, min(most, int(source.lognormvariate(0, spread) * median)))

    lines = []
    if options.workload == "batch":
        for _ in range(options.requests):
            lines.append({"arrival": 0, "prompt_tokens": length(1500, 0.8, 16_000), "output_tokens": length(200, 0.6, 1000)})
    chat = options.workload == "chat"
    begin, session = 0.0, 0
    while len(lines) < options.requests:
        begin += source.expovariate(options.rate)
        session += 1
        at, tokens = begin, 0 if chat else length(6000, 0.2, 12_000)
        for _ in range(1 + int(source.expovariate(1 / (3 if chat else 12)))):
            tokens += length(200, 0.9, 4000) if chat else length(700, 1.0, 8000)
            output = length(150, 0.7, 1000) if chat else length(100, 0.8, 1000)
            if tokens + output > 60_000 or len(lines) == options.requests:
                break
            lines.append({"arrival": round(at, 4), "prompt_tokens": tokens, "output_tokens": output, "session": session})
            tokens += output
            at += source.expovariate(1 / (10 if chat else 3))
    for line in sorted(lines, key=lambda line: line["arrival"]):
        if line["arrival"] <= options.seconds:
            print(json.dumps(line))


class Session:
    def __init__(self, seed):
        self.random, self.ids = random.Random(seed), []

    def prepare(self, request):
        """The request's text: many at once would take each other's time."""
        missing = request["prompt_tokens"] - len(self.ids)
        self.ids += [FIRST_ID + self.random.randrange(IDS) for _ in range(missing)]
        self.ids = self.ids[:request["prompt_tokens"]]
        return json.dumps({"prompt": self.ids, "max_tokens": request["output_tokens"], "ignore_eos": True, "temperature": 1, "stream": True,
                           "return_token_ids": True})

    def ask(self, host, body, request):
        """Seconds to the first token, gaps between tokens, seconds of all."""
        begin = last = time.monotonic()
        connection = http.client.HTTPConnection(host, timeout=600)
        connection.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        assert answer.status == 200, answer.read()
        first, gaps, drawn = None, [], []
        for line in answer:
            if not line.startswith(b"data: {"):
                continue
            ids = json.loads(line[6:])["choices"][0].get("token_ids") or []
            now = time.monotonic()
            for _ in ids:
                if first is None:
                    first = now - begin
                else:
                    gaps.append(now - last)
                last = now
            drawn += ids
        connection.close()
        assert len(drawn) == request["output_tokens"], (len(drawn), request)
        self.ids += drawn
        return first, gaps, last - begin


def converse(number, requests, start, host, results):
    session = Session(f"{start} {number}")  # nothing in common with what ran before
    for request in requests:
        body = session.prepare(request)
        time.sleep(max(0.0, start + request["arrival"] - time.monotonic()))
        sent = time.monotonic() - start
        results.append((*session.ask(host, body, request), sent, request))


def work(sessions, start, host, queue):
    results = []
    threads = [threading.Thread(target=converse, args=(number, requests, start, host, results)) for number, requests in sessions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    queue.put((results, time.monotonic()))


def warm(options):
    host, begin = options.url.removeprefix("http://").rstrip("/"), time.monotonic()

    def ask(prompt, tokens):
        connection = http.client.HTTPConnection(host, timeout=600)
        connection.request("POST", "/v1/completions", f'{{"prompt": {prompt}, "max_tokens": {tokens}, "ignore_eos": true}}',
                           {"Content-Type": "application/json"})
        answer = connection.getresponse()
        assert answer.status == 200, answer.read()
        answer.read()

    for length, most in WARM:
        prompt = json.dumps([FIRST_ID + random.randrange(IDS) for _ in range(length)])
        ask(prompt, 1)  # from here on it is in the cache
        # Requests end one size after the other, the largest first.
        tokens = [40 + 3 * sum(size > i for size in SIZES) for i in range(most)]
        threads = [threading.Thread(target=ask, args=(prompt, count)) for count in tokens]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        print(f"{length} tokens: {time.monotonic() - begin:.1f} s", file=sys.stderr)


def counted(host, name):
    text = urllib.request.urlopen(f"http://{host}/metrics").read().decode()
    return sum(float(value) for value in re.findall(rf"^{name}(?:{{[^}}]*}})? ([0-9.e+]+)$", text, re.MULTILINE))


def percentiles(values):
    values = sorted(values)
    return {"mean": sum(values) / len(values), **{f"p{p}": values[p * (len(values) - 1) // 100] for p in (50, 90, 99)}}


def run(options):
    host = options.url.removeprefix("http://").rstrip("/")
    sessions = {}
    for i, line in enumerate(open(options.trace)):
        request = json.loads(line)
        sessions.setdefault(request.get("session", -1 - i), []).append(request)
    before = {name: counted(host, f"vllm:prefix_cache_{name}_total") for name in ("hits", "queries")}
    queue, start = multiprocessing.Queue(), time.monotonic() + 3
    parts = [list(sessions.items())[i::PROCESSES] for i in range(PROCESSES)]
    processes = [multiprocessing.Process(target=work, args=(part, start, host, queue)) for part in parts]
    for process in processes:
        process.start()
    done = [queue.get() for _ in processes]
    results = [result for part, _ in done for result in part]
    expected = sum(len(requests) for requests in sessions.values())
    assert len(results) == expected, f"{expected - len(results)} requests failed"
    seconds = max(end for _, end in done) - start
    if options.raw:
        with open(options.raw, "w") as raw:
            for first, gaps, whole, sent, request in sorted(results, key=lambda result: result[3]):
                raw.write(json.dumps({**request, "sent": round(sent, 5), "first": round(first, 5), "whole": round(whole, 5),
                                      "gaps": [round(gap, 5) for gap in gaps]}) + "\n")
    tokens = sum(1 + len(gaps) for _, gaps, *_ in results)
    hits, queries = (counted(host, f"vllm:prefix_cache_{name}_total") - before[name] for name in ("hits", "queries"))
    print(json.dumps({"requests": len(results), "seconds": seconds, "output_tokens": tokens, "output_tokens_per_second": tokens / seconds,
                      "prefix_tokens_queried": queries, "prefix_tokens_hit": hits,
                      "first_token_seconds": percentiles([first for first, *_ in results]),
                      "token_gap_seconds": percentiles([gap for _, gaps, *_ in results for gap in gaps]),
                      "request_seconds": percentiles([whole for _, _, whole, *_ in results])}, indent=1))


def compare(options):
    """Throughput must be within 10%, the median and the 99th percentile of times within 20%."""
    measured, simulated = json.load(open(options.measured)), json.load(open(options.simulated))
    simulated = simulated[0] if isinstance(simulated, list) else simulated
    rows = [("output_tokens_per_second", None, 0.1)]
    rows += [(name, share, 0.2) for name in ("first_token_seconds", "token_gap_seconds", "request_seconds") for share in ("p50", "p99")]
    failed = 0
    for name, share, most in rows:
        real, guess = (value[name][share] if share else value[name] for value in (measured, simulated))
        error = guess / real - 1
        failed += abs(error) > most
        print(f"{name + ' ' + (share or ''):<30}{real:>12.4g}{guess:>12.4g}{100 * error:>+8.1f}%{'  too far' if abs(error) > most else ''}")
    shares = [value["prefix_tokens_hit"] / value["prefix_tokens_queried"] for value in (measured, simulated)]
    print(f"{'share of prompts in the cache':<30}{shares[0]:>12.4g}{shares[1]:>12.4g}")
    return 1 if failed else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    command = commands.add_parser("make")
    command.add_argument("workload", choices=["chat", "agents", "batch"])
    command.add_argument("--requests", type=int, default=400)
    command.add_argument("--rate", type=float, default=2)
    command.add_argument("--seed", type=int, default=1)
    command.add_argument("--seconds", type=float, default=float("inf"), help="only requests that arrive within so many")
    command.set_defaults(run=make)
    command = commands.add_parser("warm")
    command.add_argument("url")
    command.set_defaults(run=warm)
    command = commands.add_parser("run")
    command.add_argument("trace")
    command.add_argument("url")
    command.add_argument("--raw", help="write each request's times there, too")
    command.set_defaults(run=run)
    command = commands.add_parser("compare")
    command.add_argument("measured")
    command.add_argument("simulated")
    command.set_defaults(run=compare)
    options = parser.parse_args()
    return options.run(options)


if __name__ == "__main__":
    sys.exit(main())
