# SPDX-License-Identifier: Apache-2.0
"""The forecast for eight H200s: the step of one rank as it was measured, and what its exchanges take by their bytes.

Records, each the newest of its name; what has no record or no case yet is left out:
    h200-rank-tp8, -tp8-mxfp8, -tp4dp2, -tp4dp2-mxfp8   `bench step` of one rank that runs alone, all layers
    h200-ranks-index-tp8, -tp4dp2                       `bench step --all-ranks` of steps whose index ranks share
    h200-exchange, h200-moe                             the exchange's own time, experts by rows
"""

import glob
import os

from doc_records import RESULTS, newest, number, size

HIDDEN, VOCABULARY, LAYERS, SPARSE = 6144, 200064, 60, 57
LINK = 450e3  # bytes a us out of a GPU
HOP = 1.0  # us for one way over the link
SHARED_INDEX_TOKENS = 384 * 1024  # of a group, from which on ranks share the scan (engine_types.h)
PROMPT_WEIGHT = 3  # of a prompt's tokens among them (rank_step.cc)
SELECTED_TOKENS = 2048  # contexts up to here are not scanned
KV_HEADS = 4  # groups with more ranks share prompts, too
FEW_ROWS = 128  # of all ranks of a mailbox (ops/cuda/comm/peers.h)


def find(*stems):
    """The newest record of the first of these names that has one, or none."""
    for stem in stems:
        if glob.glob(os.path.join(RESULTS, stem + "-20[0-9][0-9]-[0-9][0-9]-[0-9][0-9].json*")):
            return newest(stem)
    return None


class Grid:
    def __init__(self, name, tp, dp):
        self.name, self.tp, self.dp = name, tp, dp

    def group_batch(self, batch):
        """Requests of each group; one request is in one of them, and the others have a row of padding."""
        return max(batch // self.dp, 1)


GRIDS = [Grid("TP8", 8, 1), Grid("TP4 x DP2", 4, 2)]
FORMATS = {"bf16": "", "MXFP8": "-mxfp8"}


def rank_record(grid, suffix):
    stem = f"h200-rank-tp{grid.tp}{f'dp{grid.dp}' if grid.dp > 1 else ''}{suffix}"
    known = {"h200-rank-tp8": "h200-model", "h200-rank-tp8-mxfp8": "h200-model-mxfp8-tp8"}
    return find(stem, known[stem]) if stem in known else find(stem)


def case_of(record, phase, batch, queries, context):
    rows = record.rows if record else []
    return next((r for r in rows if (r["phase"], r["batch"], r["queries"], r["context"]) == (phase, batch, queries, context)), None)


def protocol_us(rows):
    """Of one sum over eight ranks on one GPU, residual and norm included: all but the link. More rows than 64 add bytes alone."""
    measured = {r["rows"]: r["us"] for r in newest("h200-exchange").head["one_launch"] if r["ranks"] == 8 and r["rows"] <= 64}
    return measured[min((r for r in measured if r >= min(rows, 64)), default=64)]


def sum_us(grid, rows, others, to_all, from_all):
    """One sum over ranks of a group's rows, on a rank of it; the other groups have so many in all."""
    world, row = grid.tp * grid.dp, 2 * HIDDEN
    if rows <= FEW_ROWS // world // grid.dp:  # to every mailbox
        bytes_out = (rows * ((world if to_all else grid.tp) - 1) + (others * grid.tp if from_all else 0)) * row
        return protocol_us(rows) + HOP + bytes_out / LINK
    own = rows / grid.tp
    read_by_others = rows - own + (others if from_all else 0)
    written = own * ((world if to_all else grid.tp) - 1)
    return protocol_us(rows) + 3 * HOP + (read_by_others + written) * row / LINK


def lists_us(grid, rows):
    """Lists of 128 bytes to each rank that has the head, in all layers."""
    return SPARSE * (protocol_us(rows) + HOP + rows * 128 * (grid.tp - 1) / LINK)


def exchange_us(grid, rows, others, logits, shares_index):
    """All exchanges of a step, on a rank of a group with so many rows, and rows of logits."""
    dense = LAYERS - SPARSE
    us = (1 + 2 * dense) * sum_us(grid, rows, others, False, False)  # embedding and dense layers stay in the group
    us += SPARSE * (sum_us(grid, rows, others, True, False) + sum_us(grid, rows, others, False, True))
    us += 3 * HOP + logits * VOCABULARY * 4 * (grid.tp - 1) / grid.tp / LINK
    return us + (lists_us(grid, rows) if shares_index else 0)


def more_experts_us(grid, batch, suffix):
    """A rank that runs alone has its own group's rows in the experts, and not those of the others."""
    if batch < grid.dp:
        return 0
    cases, name = newest("h200-moe").cases(), suffix[1:] + "/" if suffix else ""

    def us(rows):
        case = cases.get(f"moe/{name}{'few' if rows <= 64 else 'many'}/B{rows}/all")
        return case["us"] if case else None

    one, all_rows = us(batch // grid.dp), us(batch)
    return SPARSE * (all_rows - one) if one and all_rows else None


def shared_record(grid):
    return find(f"h200-ranks-index-tp{grid.tp}{f'dp{grid.dp}' if grid.dp > 1 else ''}")


def shared_index_us(grid, rank_case):
    """The index of a step that shares it, measured in a model of fewer layers."""
    shared = case_of(shared_record(grid), *[rank_case[key] for key in ("phase", "batch", "queries", "context")])
    return shared["parts"]["index"]["us"] * SPARSE / shared["sparse_layers"] if shared else None


def index_gain_us(grid, rank_case):
    """What a rank saves where a group shares the scan; none: it does not."""
    weight = 1 if rank_case["phase"] == "decode" else PROMPT_WEIGHT if grid.tp > KV_HEADS else 0
    context = rank_case["context"]
    if context <= SELECTED_TOKENS or rank_case["batch"] * context * weight < SHARED_INDEX_TOKENS:
        return None
    shared = shared_index_us(grid, rank_case)
    return rank_case["parts"]["index"]["us"] - shared if shared else None


def decode_cell(grid, suffix, batch, context):
    rows = grid.group_batch(batch)
    case = case_of(rank_record(grid, suffix), "decode", rows, 1, context)
    experts = more_experts_us(grid, batch, suffix)
    if not case or experts is None:
        return "–"
    gain = index_gain_us(grid, case)
    exchange = exchange_us(grid, rows, rows * (grid.dp - 1), rows, gain is not None)
    step = case["step_us"] + experts - (gain or 0) + exchange
    return f"{number(step / 1e3)} ({number(exchange / 1e3)}){' *' if gain is not None else ''}"


def prefill_us(grid, suffix, tokens, context):
    """A chunk that ends at `context`, of one request."""
    case = case_of(rank_record(grid, suffix), "prefill", 1, tokens, context)
    if not case:
        return None
    gain = index_gain_us(grid, case)
    return case["step_us"] - (gain or 0) + exchange_us(grid, tokens, grid.dp - 1, 1, gain is not None)


def million_us(grid, suffix, chunk=8192, ends=(8192, 131072, 524288, 1048576)):
    """A prompt of a million tokens, chunk by chunk; between the contexts that were measured time grows evenly."""
    known = [(end, prefill_us(grid, suffix, chunk, end)) for end in ends]
    if any(us is None for _, us in known):
        return None
    total = 0
    for end in range(chunk, ends[-1] + 1, chunk):
        (low, a), (high, b) = next(pair for pair in zip(known, known[1:]) if end <= pair[1][0])
        total += a + (b - a) * (end - low) / (high - low)
    return total


PUBLISHED = {(64, 2048): "SGLang, bf16: 70.8", (4, 1024): "vLLM, MXFP8: 8.4"}


def used():
    names = []
    for grid in GRIDS:
        for suffix in FORMATS.values():
            if record := rank_record(grid, suffix):
                names.append(record)
    names.append(newest("h200-exchange"))
    return ", ".join(f"[{r.name}](../bench/results/{r.name})" for r in names)


def filled(table, columns, rows):
    """The table without rows and columns that have no figure of ours yet."""
    rows = [row for row in rows if any(cell != "–" for cell in row[1:-1])]
    last = len(columns) - 1
    kept = [c for c in range(len(columns)) if c in (0, last) or any(row[c] != "–" for row in rows)]
    return table([columns[c] for c in kept], [[row[c] for c in kept] for row in rows])


def decode(table):
    columns = ["requests x context", *[f"{g.name}, {f}" for g in GRIDS for f in FORMATS], "published TPOT"]
    rows = []
    for batch, context in [(4, 1024), *[(b, c) for c in (2048, 32768, 131072) for b in (1, 8, 64, 256)]]:
        cells = [decode_cell(g, s, batch, context) for g in GRIDS for s in FORMATS.values()]
        rows.append([f"{batch} x {size(context)}", *cells, PUBLISHED.get((batch, context), "–")])
    lines = filled(table, columns, rows)
    shared = " * the index is shared by the ranks of a group." if any("*" in line for line in lines) else ""
    return lines + ["", f"ms from step to step, in brackets what of it is exchanges.{shared} From {used()}."]


def prefill(table):
    columns = ["prompt", *[f"{g.name}, {f}" for g in GRIDS for f in FORMATS], "published TTFT"]

    def row(name, us_of, unit, published):
        cells = [us_of(g, s) for g in GRIDS for s in FORMATS.values()]
        return [name, *[number(us / unit) if us else "–" for us in cells], published]

    rows = [row("8K, ms", lambda g, s: prefill_us(g, s, 8192, 8192), 1e3, "SGLang, bf16, 2K, 64 at a time: 1,054"),
            row("1M in chunks of 8K, s", million_us, 1e6, "–")]
    return filled(table, columns, rows)


def shared_index(table):
    """Of steps that share the index, and of those with fewer tokens that were made to."""
    rows = []
    for grid in GRIDS:
        for case in rank_record(grid, "").rows:
            was_shared = case["context"] > SELECTED_TOKENS and case["batch"] * case["context"] >= 131072
            shared = shared_index_us(grid, case) if was_shared else None
            if shared is None:
                continue
            name = f"{case['batch']} x {size(case['context'])}"
            if case["phase"] == "prefill":
                name = f"{size(case['queries'])} that end at {size(case['context'])}"
            queries = case["batch"] * case["queries"]
            rows.append([grid.name, name, number(case["parts"]["index"]["us"] / 1e3), number(shared / 1e3),
                         number(lists_us(grid, queries) / 1e3), "yes" if index_gain_us(grid, case) is not None else "no"])
    lines = table(["grid", "requests of a group", "all blocks, ms", "a share", "lists, counted", "shared"], rows, left=2)
    names = ", ".join(f"[{r.name}](../bench/results/{r.name})" for g in GRIDS for r in (rank_record(g, ""), shared_record(g)))
    return lines + ["", f"From {names}."]
