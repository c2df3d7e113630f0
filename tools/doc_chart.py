# SPDX-License-Identifier: Apache-2.0
"""Draws docs/peers.svg: the attention of one layer beside the best peer, from the newest records (see tools/doc_tables)."""

import html
import math

from doc_records import kernel_peers, newest, number

# (what it is called here, rank, the records' cases whose times are added)
SPARSE = [
    ("prefill of 8K tokens", "TP4", ["h200-index:prefill/TP4/S8192/ctx8192", "h200-prefill:prefill/TP4/S8192/ctx8192"]),
    ("prefill of 32K", "TP4", ["h200-index:prefill/TP4/S32768/ctx32768", "h200-prefill:prefill/TP4/S32768/ctx32768"]),
    ("8K more, up to 128K", "TP4", ["h200-index:prefill/TP4/S8192/ctx131072", "h200-prefill:prefill/TP4/S8192/ctx131072"]),
    ("8K more, up to 1M", "TP4", ["h200-index:prefill/TP4/S8192/ctx1048576", "h200-prefill:prefill/TP4/S8192/ctx1048576"]),
    ("a turn of 16 tokens at 128K", "TP8", ["h200-step:TP8/S16/ctx131072"]),
    ("a turn of 16 tokens at 1M", "TP8", ["h200-step:TP8/S16/ctx1048576"]),
    ("a turn of 128 tokens at 1M", "TP8", ["h200-step:TP8/S128/ctx1048576"]),
    ("decode, 1 request of 128K", "TP4", ["h200-step:TP4/B1/ctx131072"]),
    ("decode, 8 of 32K", "TP4", ["h200-step:TP4/B8/ctx32768"]),
    ("decode, 64 of 128K", "TP4", ["h200-step:TP4/B64/ctx131072"]),
    ("decode, 32 of 128K, fp8", "TP4", ["h200-step:TP4/B32/ctx131072/fp8"]),
]
DENSE = [
    ("prefill of 8K tokens", "TP4", ["h200-dense:prefill/TP4/S8192"]),
    ("prefill of 32K", "TP4", ["h200-dense:prefill/TP4/S32768"]),
    ("prefill of 32K", "TP8", ["h200-dense:prefill/TP8/S32768"]),
    ("decode, 32 of 128K", "TP4", ["h200-dense:decode/TP4/B32/ctx131072"]),
]

WIDTH, ROW, LEFT, RIGHT = 860, 24, 290, 640  # bars run from LEFT to RIGHT
LOW, HIGH = 0.7, 200.0                       # the axis is logarithmic: twice as fast is the same length everywhere
TICKS = (1, 2, 5, 10, 20, 50, 100)
STYLE = """
text { font: 14px system-ui, -apple-system, 'Segoe UI', sans-serif; fill: #1f2328 }
.title { font-weight: 600; font-size: 17px }
.group { font-weight: 600 }
.small { font-size: 12px; fill: #59636e }
.card { fill: #ffffff; stroke: #d1d9e0 }
.grid { stroke: #d1d9e0 }
.one { stroke: #59636e; stroke-width: 1.5 }
.faster { fill: #2f6fdd }
.slower { fill: #c4622d }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3 }
  .small { fill: #9198a1 }
  .card { fill: #0d1117; stroke: #3d444d }
  .grid { stroke: #30363d }
  .one { stroke: #9198a1 }
  .faster { fill: #6ea8fe }
  .slower { fill: #f0883e }
}
"""


def x(ratio):
    return LEFT + (RIGHT - LEFT) * math.log(ratio / LOW) / math.log(HIGH / LOW)


def text(at, y, words, kind="", anchor="start"):
    return f'<text x="{at:.0f}" y="{y}" class="{kind}" text-anchor="{anchor}">{html.escape(words)}</text>'


def duration(us):
    return f"{number(us)} us" if us < 1000 else f"{number(us / 1000)} ms"


def driver(machine):
    """gpu-check writes the card's name and the driver's version."""
    return machine if "driver" in machine else machine.replace(", ", ", driver ", 1)


class Chart:
    def __init__(self):
        self.records, self.shapes, self.y = {}, [], 64

    def times(self, cases):
        """(ours, the peer's) in microseconds, summed over the cases."""
        ours = peer = 0.0
        for name in cases:
            stem, case = name.split(":")
            record = self.records.setdefault(stem, newest(stem))
            if case not in record.cases() or not record.cases()[case]["peer_us"]:
                raise SystemExit(f"{record.name} has no peer's time for {case}")
            ours += record.cases()[case]["us"]
            peer += record.cases()[case]["peer_us"]
        return ours, peer

    def group(self, title, rows):
        self.y += ROW
        top = self.y + 8
        bars = []
        for name, rank, cases in rows:
            self.y += ROW
            ours, peer = self.times(cases)
            ratio = peer / ours
            left, right = sorted((x(1), x(ratio)))
            kind = "faster" if ratio >= 1 else "slower"
            bars += [
                text(LEFT - 55, self.y, name, anchor="end"),
                text(LEFT - 45, self.y, rank, "small"),
                f'<rect x="{left:.1f}" y="{self.y - 13}" width="{right - left:.1f}" height="16" class="{kind}"/>',
                text(right + 6, self.y, f"{ratio:.2f}x" if ratio < 2 else f"{ratio:.1f}x" if ratio < 10 else f"{ratio:.0f}x"),
                text(WIDTH - 20, self.y, f"{duration(ours)}, peer {duration(peer)}", "small", "end"),
            ]
        self.y += ROW // 2
        self.shapes.append(text(20, top - 8, title, "group"))
        for ratio in TICKS:
            kind = "one" if ratio == 1 else "grid"
            self.shapes.append(f'<line x1="{x(ratio):.1f}" x2="{x(ratio):.1f}" y1="{top}" y2="{self.y}" class="{kind}"/>')
        self.shapes += bars


def svg():
    chart = Chart()
    chart.group("Index and sparse attention, beside the better of vLLM and SGLang", SPARSE)
    chart.group("Dense attention, beside cuDNN", DENSE)
    bottom = chart.y
    axis = [text(x(ratio), bottom + 16, "peer" if ratio == 1 else f"{ratio}x", "small", "middle") for ratio in TICKS]
    heads = [record.head for record in chart.records.values()]
    runs = sorted({f"{h['date']}, commit {h['commit']}, {driver(h['machine'])}" for h in heads})
    origin = kernel_peers()["origin"]
    vllm, sglang = (origin[name].split(",")[0] for name in ("vllm", "sglang"))
    notes = [
        "One layer; medians of graph replays; neighbouring queries select independently. TP4: 16 query heads, TP8: 8; one KV head.",
        "bf16; fp8 means K, V and index keys, where the peers' index keys are bf16.",
        *[f"Sparrow: {run}." for run in runs],
        f"Peers: {origin['date']}, another run on an H200; cuDNN through PyTorch 2.11, over contiguous K and V;",
        f"vLLM {vllm} and SGLang {sglang}, tuned for each case and timed in the same way.",
    ]
    height = bottom + 36 + 18 * len(notes)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}" role="img">',
        "<title>M3's attention on one H200: speed beside the best peer</title>",
        f"<style>{STYLE}</style>",
        f'<rect x="0.5" y="0.5" width="{WIDTH - 1}" height="{height - 1}" rx="8" class="card"/>',
        text(20, 32, "M3's attention on one H200: times as fast as the best peer", "title"),
        text(20, 54, "Longer is faster, on a logarithmic scale. Made by tools/doc_tables from bench/results.", "small"),
        *chart.shapes,
        *axis,
        *[text(20, bottom + 40 + 18 * i, note, "small") for i, note in enumerate(notes)],
        "</svg>",
    ]
    return "\n".join(lines) + "\n"
