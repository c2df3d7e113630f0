#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Times PyTorch's grouped product over the experts of one layer, the peer of moe_bench, and prints a record of it.

    grouped_peer.py            on a GPU: medians of CUDA-graph replays, one JSON object
    grouped_peer.py --check    on any machine: compares a small grouped product with plain ones

Both products of 128 experts, hidden size 6144, top 4, uniform random routing, rows sorted by expert, random bf16 weights:
without shared expert, activation, sorting and sum, which moe_bench has. A graph holds eight routings (one for many rows), so
that few experts' weights stay in the L2.
"""

import argparse
import datetime
import json
import statistics
import sys

import torch

HIDDEN, EXPERTS, TOP_K = 6144, 128, 4
ROWS = {384: (1, 8, 16, 64, 128, 256, 512, 1024, 8192), 768: (1, 8, 16, 64, 128, 256, 1024), 3072: (1, 8, 16, 64, 128, 256, 1024)}
REPLAYS = 30


def group_ends(rows, experts, top_k, random):
    """Where each expert's rows end when every row goes to `top_k` experts at random."""
    picked = torch.stack([torch.randperm(experts, generator=random)[:top_k] for _ in range(rows)])
    return torch.bincount(picked.flatten(), minlength=experts).cumsum(0).to(torch.int32)


def weights_of(experts, outputs, inputs, device):
    """Rows of outputs, as checkpoints have them, seen as [experts, inputs, outputs]."""
    return (torch.randn(experts, outputs, inputs, dtype=torch.bfloat16, device=device) / inputs**0.5).transpose(-2, -1)


def check():
    torch.manual_seed(1)
    x, w = torch.randn(12, 64, dtype=torch.bfloat16), weights_of(5, 32, 64, "cpu")
    ends = group_ends(6, 5, 2, torch.Generator().manual_seed(2))
    grouped, begin = torch._grouped_mm(x, w, offs=ends), 0
    for expert, end in enumerate(ends.tolist()):
        torch.testing.assert_close(grouped[begin:end], x[begin:end] @ w[expert], rtol=2e-2, atol=1e-2)
        begin = end
    print("grouped products agree with plain ones")


def time_us(channels, rows, gate_up, down):
    random = torch.Generator().manual_seed(7)
    ends = [group_ends(rows, EXPERTS, TOP_K, random).cuda() for _ in range(8 if rows <= 256 else 1)]
    x = torch.randn(rows * TOP_K, HIDDEN, dtype=torch.bfloat16, device="cuda")
    hidden = torch.randn(rows * TOP_K, channels, dtype=torch.bfloat16, device="cuda")

    def layers():
        for offs in ends:
            torch._grouped_mm(x, gate_up, offs=offs)
            torch._grouped_mm(hidden, down, offs=offs)

    layers()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        layers()
    times = []
    for _ in range(REPLAYS):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) * 1e3 / len(ends))
    return statistics.median(times)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--machine", default="unknown", help="its name in the record")
    parser.add_argument("--check", action="store_true", help="compare small products on the CPU and end")
    args = parser.parse_args()
    if args.check:
        return check()
    if not torch.cuda.is_available():
        sys.exit("grouped_peer: no GPU here; --check needs none")
    grouped = []
    for channels, all_rows in ROWS.items():
        gate_up, down = weights_of(EXPERTS, 2 * channels, HIDDEN, "cuda"), weights_of(EXPERTS, HIDDEN, channels, "cuda")
        for rows in all_rows:
            grouped.append({"channels": channels, "rows": rows, "us": round(time_us(channels, rows, gate_up, down), 1)})
        del gate_up, down
    print(json.dumps({"commit": "none of ours", "date": datetime.date.today().isoformat(), "machine": args.machine,
                      "command": f"grouped_peer.py: torch._grouped_mm, both products, PyTorch {torch.__version__}",
                      "grouped": grouped}))


if __name__ == "__main__":
    main()
