#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The pace of text streams while images of 672 x 672 arrive.

    streams_beside_images.py http://127.0.0.1:8000 [--streams 32] [--rates 0,5,10] [--repeats 1,8] [--seconds 5]

Needs nothing but Python. Streams decode all the time; images come as chats that draw one token, at a steady rate. No two images are alike;
with --repeats 8 each is sent eight times, behind another text: its prompt is computed every time, the tower runs once, as it does for one of
eight GPUs that share the images out. One line of JSON for each rate.
"""

import argparse
import base64
import http.client
import json
import multiprocessing
import random
import re
import struct
import threading
import time
import urllib.request
import zlib

SIDE, PROCESSES, PROMPT = 672, 4, 1000


def png(seed):
    source = random.Random(seed)
    rows = b"".join(b"\0" + source.randbytes(24) * (SIDE // 8) for _ in range(8))
    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", SIDE, SIDE, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", zlib.compress(rows * (SIDE // 8), 1)) + chunk(b"IEND", b"")


def body_of(seed, repeat):
    picture = base64.b64encode(png(seed)).decode()
    parts = [{"type": "text", "text": f"{random.Random(f'{seed} {repeat}').random()} what is this?"},
             {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{picture}"}}]
    return json.dumps({"messages": [{"role": "user", "content": parts}], "max_tokens": 1})


def post(host, path, body):
    connection = http.client.HTTPConnection(host, timeout=120)
    connection.request("POST", path, body, {"Content-Type": "application/json"})
    return connection, connection.getresponse()


def stream(host, seed, arrivals, failed, ended):
    """Notes when each token came. A stream that ends begins again."""
    source = random.Random(seed)
    try:
        while not ended.is_set():
            ids = [10 + source.randrange(400) for _ in range(PROMPT)]
            connection, answer = post(host, "/v1/completions", json.dumps(
                {"prompt": ids, "max_tokens": 20_000, "ignore_eos": True, "temperature": 1, "stream": True, "return_token_ids": True}))
            if answer.status != 200:
                raise RuntimeError(answer.read()[:300])
            for line in answer:
                if ended.is_set():
                    break
                if line.startswith(b"data: {"):
                    now = time.monotonic()
                    arrivals += [now] * len(json.loads(line[6:])["choices"][0].get("token_ids") or [])
            connection.close()
    except Exception as error:
        failed.append(repr(error))


def streams(host, seeds, stop, queue):
    ended, failed, all_arrivals = threading.Event(), [], [[] for _ in seeds]
    threads = [threading.Thread(target=stream, args=(host, f"stream {seed}", arrivals, failed, ended), daemon=True)
               for seed, arrivals in zip(seeds, all_arrivals)]
    for thread in threads:
        thread.start()
    stop.wait()
    ended.set()
    queue.put((all_arrivals, failed))


def send_images(host, jobs, start, rate, seconds, queue):
    """Those of this process: (place in the flow, seed, repeat). Who has no answer at the end hangs up."""
    bodies = [(place, body_of(seed, repeat)) for place, seed, repeat in jobs]
    results, threads = [], []

    def ask(body):
        begin = time.monotonic()
        try:
            connection, answer = post(host, "/v1/chat/completions", body)
            text = answer.read()
            results.append((begin, time.monotonic(), answer.status, text[:200].decode() if answer.status != 200 else ""))
            connection.close()
        except Exception as error:
            results.append((begin, time.monotonic(), 0, repr(error)))

    start.wait()
    begin = time.monotonic()
    for place, body in bodies:
        time.sleep(max(0.0, begin + place / rate - time.monotonic()))
        threads.append(threading.Thread(target=ask, args=(body,), daemon=True))
        threads[-1].start()
    for thread in threads:
        thread.join(max(0.0, begin + seconds + 0.3 - time.monotonic()))
    queue.put(list(results))


def metrics(host):
    text = urllib.request.urlopen(f"http://{host}/metrics").read().decode()
    return {name: float(value) for name, value in re.findall(r"^([\w:]*(?:encode|step)_seconds_(?:total|sum))(?:{[^}]*})? ([0-9.e+-]+)$", text, re.MULTILINE)}


def share(numbers, part):
    return sorted(numbers)[min(len(numbers) - 1, int(part * len(numbers)))] if numbers else None


def run_rate(options, host, rate, repeats, phase):
    """Begin and end of the part that counts, and the images' answers."""
    queue, start, count = multiprocessing.Queue(), multiprocessing.Event(), round(rate * options.seconds)
    jobs = [(i, f"{phase} {i // repeats}", i % repeats) for i in range(count)]
    senders = [multiprocessing.Process(target=send_images, args=(host, jobs[p::PROCESSES], start, rate, options.seconds, queue)) for p in range(PROCESSES)]
    for sender in senders:
        sender.start()
    time.sleep(0.3 + 0.003 * count)  # bodies are made
    before, begin = metrics(host), time.monotonic()
    start.set()
    time.sleep(options.seconds)
    end, after = time.monotonic(), metrics(host)
    answers = sum((queue.get(timeout=90) for _ in senders), [])
    for sender in senders:
        sender.join()
    return begin + options.seconds * 0.2, end, answers, {k: round(after[k] - before.get(k, 0), 3) for k in after}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url")
    parser.add_argument("--streams", type=int, default=32)
    parser.add_argument("--rates", default="0,5,10,20,50,100")
    parser.add_argument("--repeats", default="1,8")
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument("--warm", type=float, default=5, help="seconds before the first rate")
    options = parser.parse_args()
    host = options.url.removeprefix("http://").rstrip("/")
    stop, queue = multiprocessing.Event(), multiprocessing.Queue()
    readers = [multiprocessing.Process(target=streams, args=(host, range(p, options.streams, PROCESSES), stop, queue)) for p in range(PROCESSES)]
    for reader in readers:
        reader.start()
    time.sleep(options.warm)
    run_rate(argparse.Namespace(seconds=1.0), host, 8, 1, "warm")
    phases = []
    for repeats in map(int, options.repeats.split(",")):
        for rate in map(float, options.rates.split(",")):
            if rate > 0 or not phases:
                phases.append((rate, repeats, *run_rate(options, host, rate, repeats, f"{time.time()} {rate}")))
                time.sleep(0.5)
    stop.set()
    arrivals, failed = [], []
    for _ in readers:
        some, errors = queue.get(timeout=60)
        arrivals += some
        failed += errors
    for reader in readers:
        reader.terminate()
    quiet = None
    for rate, repeats, begin, end, answers, counted in phases:
        inside = [[t for t in times if begin <= t < end] for times in arrivals]
        gaps = [(b - a) * 1e3 for times in inside for a, b in zip(times, times[1:])]
        pace = sum(map(len, inside)) / len(arrivals) / (end - begin)
        quiet = quiet or pace or 1
        done = [(a, b) for a, b, status, _ in answers if status == 200]
        wrong = [text for _, _, status, text in answers if status != 200]
        print(json.dumps({
            "images_per_s": rate, "repeats": repeats, "streams": options.streams, "tokens_per_s_stream": round(pace, 2),
            "pace_lost": round(1 - pace / quiet, 4), "gap_p50_ms": round(share(gaps, 0.5) or 0, 2), "gap_p99_ms": round(share(gaps, 0.99) or 0, 2),
            "images_answered_per_s": round(sum(b < end for _, b in done) / options.seconds, 2),
            "image_p50_ms": round(1e3 * (share([b - a for a, b in done], 0.5) or 0), 1), "counted": counted,
            **({"wrong": wrong[:2], "num_wrong": len(wrong)} if wrong else {})}), flush=True)
    if failed:
        print(json.dumps({"streams_failed": failed[:3]}))


if __name__ == "__main__":
    main()
