#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Prints kernel benchmarks beside the figures of the peers (bench/kernels/peers.json).

    tools/kernel_table.py bench/results/h200-*.jsonl

Cards and clocks differ between runs, so each time is also given as a multiple of the floor of its own run.
"""

import json
import os
import re
import sys

STAGES = {"index": "index", "decode": "attend", "prefill": "attend", "dense": "dense", "step": "step", "moe": "experts"}
PEERS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../bench/kernels/peers.json")


def label(case, stage):
    """A benchmark's case under the peers' name for it: `decode/TP4/B1/ctx8192/q1/bf16`."""
    name = case.replace("extend/", "prefill/")
    if stage == "dense":
        name = re.sub(r"^(prefill|decode)/", "dense/", name)
        return name if "/ctx" not in name or "/q" in name else name + "/q1"
    if stage == "step":
        name = ("prefill/" if "/S" in name else "decode/") + name
    if name.startswith("decode/") and not re.search(r"/q\d+", name):
        name = re.sub(r"(/ctx\d+)", r"\1/q1", name)
    # peers have no e4m3 index keys: theirs are bf16
    name = name.replace("/fp8", "/bf16") if stage == "index" else name
    return name if name.endswith(("/bf16", "/fp8")) else name + "/bf16"


def best_peer(peers, case, stage):
    """(name, us, multiple of its run's floor) of the fastest peer, or None."""
    if stage == "experts":
        match = re.fullmatch(r"moe/(?:I(\d+)/)?(?:few|many)/B(\d+)/all", case)
        us = match and peers["experts"].get(match[1] or "384", {}).get(match[2])
        return us and ("vllm", us, None)
    name = label(case, stage)
    if stage == "dense":
        us = peers["cudnn"].get(name)
        return us and ("cuDNN", us, None)
    # selections that overlap are compared with the peers' time for independent ones: theirs does not depend on it
    name = re.sub(r"/(correlated|identical)", "", name)
    names = (name, name.replace("/bf16", "/fp8")) if stage == "index" else (name,)
    for row in peers["cases"]:
        if row["case"] in names and stage == "step":  # the better index and the better attend, added
            us = sum(min(row[p][part] for p in ("vllm", "sglang")) for part in ("index", "attend"))
            return "both", us, us / (row["floor"]["index"] + row["floor"]["attend"])
        if row["case"] in names:
            peer = min(("vllm", "sglang"), key=lambda p: row[p][stage])
            return peer, row[peer][stage], row[peer][stage] / row["floor"][stage]
    return None


def rows_of(path, peers):
    stem = os.path.basename(path)
    stage = next((s for prefix, s in STAGES.items() if f"-{prefix}-" in stem), "")
    with open(path) as file:
        for line in file:
            r = json.loads(line)
            if "case" in r:
                peer = best_peer(peers, r["case"], stage) if stage else None
                yield r["case"], r["us"], r["floor_us"], peer
            elif "step_us" in r:  # a whole step: `sparrow bench step --json`
                case = f"{r['phase']}/TP{r['tensor_parallel_size']}/B{r['batch']}/S{r['queries']}/ctx{r['context']}"
                yield f"{case} (GPU busy {100 * r['gpu_busy']:.1f}%)", r["step_us"], r["floor_us"], None


def main(paths):
    with open(PEERS) as file:
        peers = json.load(file)
    head = f"{'case':44} {'us':>10} {'x floor':>8}   {'peer':7} {'us':>10} {'x floor':>8} {'peer/ours':>10}"
    for path in paths:
        print(f"\n== {os.path.basename(path)}\n{head}")
        for case, us, floor, peer in rows_of(path, peers):
            line = f"{case:44} {us:10.1f} {us / floor if floor else 0:8.2f}"
            if peer:
                name, peer_us, multiple = peer
                line += f"   {name:7} {peer_us:10.1f} {f'{multiple:.2f}' if multiple else '-':>8} {peer_us / us:10.2f}"
            print(line)
    o = peers["origin"]
    print(f"\npeers: measured {o['date']} on {o['card']}; vLLM {o['vllm']}; SGLang {o['sglang']}; cuDNN {o['cudnn']}")


if __name__ == "__main__":
    main(sys.argv[1:])
