# SPDX-License-Identifier: Apache-2.0
"""Reads bench/results for the docs: the newest record of a benchmark, its origin and its cases in words."""

import glob
import json
import os
import re

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
RESULTS = os.path.join(ROOT, "bench/results")


class Record:
    """One file of bench/results. `head` says what was run where; `rows` are the lines of a .jsonl after it."""

    def __init__(self, path):
        self.name = os.path.basename(path)
        with open(path, encoding="utf-8") as file:
            if path.endswith(".jsonl"):
                self.head, *self.rows = [json.loads(line) for line in file]
            else:
                self.head, self.rows = json.load(file), []

    def origin(self):
        h = self.head
        return f"[{self.name}](../bench/results/{self.name}): commit {h['commit']}, {h['machine']}, `{h['command']}`"

    def cases(self):
        return {row["case"]: row for row in self.rows}


def newest(stem):
    """The latest record called `stem-YYYY-MM-DD`."""
    paths = glob.glob(os.path.join(RESULTS, stem + "-20[0-9][0-9]-[0-9][0-9]-[0-9][0-9].json*"))
    if not paths:
        raise SystemExit(f"no {stem}-YYYY-MM-DD.json or .jsonl in bench/results")
    return Record(max(paths))


def kernel_peers():
    """What other programs' kernels took."""
    with open(os.path.join(ROOT, "bench/kernels/peers.json"), encoding="utf-8") as file:
        return json.load(file)


def size(tokens):
    """8192 -> 8K."""
    for unit, name in ((1 << 20, "M"), (1 << 10, "K")):
        if tokens >= unit and tokens % unit == 0:
            return f"{tokens // unit}{name}"
    return str(tokens)


def number(value):
    """Three digits: 4.23, 42.3, 423, 4,230."""
    for limit, digits in ((9.995, 2), (99.95, 1)):
        if value < limit:
            return f"{value:.{digits}f}"
    return f"{value:,.0f}"


def words(case):
    """`prefill/TP4/S8192/ctx131072/fp8` -> `prefill TP4 8K @ 128K, e4m3`."""
    field = {}
    before, after = [], []
    for part in case.split("/"):
        match = re.fullmatch(r"(B|S|ctx|q)(\d+)", part)
        if match:
            field[match[1]] = int(match[2])
        elif re.fullmatch(r"prefill|decode|extend|TP\d+", part):
            before.append(part)
        elif part != "bf16":
            after.append("e4m3" if part == "fp8" else part)
    if field.get("q", 1) > 1:
        after.insert(0, f"{field['q']} queries")
    if "B" in field:
        shape = f"{field['B']} x {size(field['ctx'] if 'ctx' in field else field['S'])}"
    else:
        shape = size(field["S"]) + (f" @ {size(field['ctx'])}" if "ctx" in field else "")
    return ", ".join([" ".join(before + [shape])] + after)
