# SPDX-License-Identifier: Apache-2.0
"""Tables of the experts and of linear layers of few rows, from bench/results and bench/kernels/peers.json."""

import re

from doc_records import kernel_peers, newest, number


def grouped_us(peer):
    """PyTorch's grouped products of a rank of eight, by rows."""
    return {r["rows"]: r["us"] for r in peer.head["grouped"] if r["channels"] == 384}


def beside_pytorch(lines, peer):
    return lines[:-1] + [lines[-1] + f" PyTorch: [{peer.name}](../bench/results/{peer.name})."]


def experts(table, under):
    record, peer = newest("h200-moe"), newest("h200-experts-peer")
    cases, grouped = record.cases(), grouped_us(peer)
    rows = []
    for case, r in cases.items():
        match = re.fullmatch(r"moe/(few|many)/B(\d+)/all", case)
        if not match:
            continue
        kind, tokens = match[1], int(match[2])
        parts = [cases.get(f"moe/{kind}/B{tokens}/{part}") for part in ("gate_up", "down", "route", "sum")]
        tiles = ", tiles" if kind == "many" and f"moe/few/B{tokens}/all" in cases else ""
        rows.append([f"{tokens:,}{tiles}", number(r["floor_us"]), number(r["us"]), f"{r['floor_us'] / r['us']:.0%}",
                     *[number(p["us"]) if p else "–" for p in parts], number(grouped[tokens]) if tokens in grouped else "–"])
    columns = ["tokens", "floor", "all", "of the floor", "gate and up alone", "down alone", "sort", "sum", "PyTorch"]
    return beside_pytorch(under(table(columns, rows), record), peer)


def formats(table, under):
    """The experts in each format, as moe() runs them: streams up to 64 tokens, tiles above."""
    record, peer = newest("h200-moe"), newest("h200-experts-peer")
    cases, grouped = record.cases(), grouped_us(peer)
    rows = []
    for tokens in (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 4096, 8192):
        row = [f"{tokens:,}"]
        for name in ("", "mxfp8/", "mxfp4/"):
            r = cases[f"moe/{name}{'few' if tokens <= 64 else 'many'}/B{tokens}/all"]
            row += [number(r["us"]), f"{r['floor_us'] / r['us']:.0%}"]
        rows.append(row + [number(grouped[tokens]) if tokens in grouped else "–"])
    columns = ["tokens", "bf16", "of its floor", "MXFP8", "of its floor", "MXFP4", "of its floor", "PyTorch, bf16"]
    return beside_pytorch(under(table(columns, rows, left=0), record), peer)


def widths(table, under):
    record = newest("h200-moe")
    cases, peers = record.cases(), kernel_peers()["experts"]
    rows = []
    for tokens in (1, 8, 16, 64, 128, 256, 1024):
        row = [f"{tokens:,}"]
        for width in (384, 768, 1536, 3072):
            streams = 32 if width >= 1536 else 64  # as moe() chooses
            name = "" if width == 384 else f"I{width}/"
            r = cases[f"moe/{name}{'few' if tokens <= streams else 'many'}/B{tokens}/all"]
            row.append(f"{number(r['us'])} ({r['us'] / r['floor_us']:.2f})")
            if str(width) in peers:
                row.append(number(peers[str(width)][str(tokens)]))
        rows.append(row)
    return under(table(["tokens", "384", "vLLM", "768", "vLLM", "1,536", "3,072", "vLLM"], rows, left=0), record)


def mlp(table, under):
    record = newest("h200-moe")
    rows = []
    for case, r in record.cases().items():
        match = re.fullmatch(r"mlp/B(\d+)/all", case)
        if match:
            rows.append([f"{int(match[1]):,}", number(r["floor_us"]), number(r["us"])])
    return under(table(["rows", "floor", "us"], rows, left=0), record)


def linear(table, under):
    record = newest("h200-moe")
    layers = {}
    for case, r in record.cases().items():
        match = re.fullmatch(r"linear/(\d+)x(\d+)/B(\d+)", case)
        if match:
            layers.setdefault(f"{match[1]} x {match[2]}", {})[int(match[3])] = r
    widths = sorted({width for row in layers.values() for width in row})
    names = {"1280 x 6144": "q/k/v, 1280 x 6144", "6144 x 1024": "output, 6144 x 1024", "25008 x 6144": "vocabulary, 25008 x 6144"}
    rows = [[names.get(layer, layer), number(row[widths[0]]["floor_us"]), *[number(row[w]["us"]) for w in widths]]
            for layer, row in layers.items()]
    return under(table(["layer", "floor", *[f"{w} rows" if w > 1 else "1 row" for w in widths]], rows), record)
