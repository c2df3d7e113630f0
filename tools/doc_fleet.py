# SPDX-License-Identifier: Apache-2.0
"""Tables of simulated fleets, from bench/results."""

from doc_records import newest


def seconds(value):
    return f"{1000 * value:.0f} ms" if value < 0.9995 else f"{value:.1f} s"


def agents(table, name):
    """Fleets of bench/cost/agents, by the question that they answer."""
    asked = newest("fleet-agents").head["results"][name]
    rows = []
    for f in asked["fleets"]:
        first, gap = f["first_token_seconds"], f["token_gap_seconds"]
        rows.append([f["layout"], f["router"], str(f["instances"]), str(f["gpus"]), f"{f['prefix_tokens_hit'] / f['prefix_tokens_queried']:.0%}",
                     *(seconds(first[p]) for p in ("p50", "p90", "p99")), *(seconds(gap[p]) for p in ("p50", "p99")),
                     f"{f['output_tokens_per_second']:,.0f}", f"{f['gpu_hours_per_million_tokens']:.1f}"])
    columns = ["layout", "router", "instances", "GPUs", "hits", "first token p50", "p90", "p99", "gap p50", "p99", "tokens/s", "GPU-hours / M tokens"]
    return table(columns, rows, left=2) + ["", f"`{asked['command']}`"]


def servers(table):
    """Simulated servers behind the test's router, in real time."""
    record = newest("fleet-servers")
    rows = [[r["router"], f"{r['hit_rate']:.1%}", *(seconds(r["first_token_seconds"][p]) for p in ("p50", "p90", "p99")),
             *(seconds(r["request_seconds"][p]) for p in ("p50", "p99"))] for r in record.head["results"]]
    columns = ["router", "hits", "first token p50", "p90", "p99", "whole answer p50", "p99"]
    return table(columns, rows) + ["", f"From {record.origin()}."]


def cost_models(table):
    """Cost models against steps that they were not fitted to."""
    record = newest("fleet-cost")
    questions = {"held_back": "the model of `bench/cost`, shapes that its fit has not seen",
                 "held_back_mixed": "of these, decodes beside a prompt",
                 "shapes_of_the_fit_at_other_commits": "the same, shapes of the fit measured at other commits",
                 "each_tenth_by_the_others": "each tenth of all shapes, a model fitted to the other nine"}
    names = {"h200-m3-tp8": "bf16, TP8", "h200-m3-mxfp8-tp8": "MXFP8, TP8", "h200-m3-mxfp8-tp4": "MXFP8, TP4"}
    rows = []
    for key, question in questions.items():
        for name, layout in names.items():
            r = record.head["results"].get(name, {}).get(key)
            if not r or not r["shapes"]:
                continue
            rows.append([question, layout, str(r["shapes"]), str(r["within_10_percent"]), f"{r['median_error']:.1%}", f"{r['largest_error']:.1%}"])
    return table(["steps of one H200 of several", "layout", "shapes", "within 10%", "median error", "largest"], rows, left=2) + \
        ["", f"From {record.origin()}."]


def served(table):
    """A simulated server against a real one on the same traces."""
    record = newest("fleet-serve")
    names = {"output_tokens_per_second": "tokens/s", "first_token_seconds": "first token", "token_gap_seconds": "gap", "request_seconds": "whole answer"}
    rows = []
    for run in record.head["runs"]:
        for workload, result in run["results"].items():
            cells = [f"{100 * row['error']:+.1f}%" for row in result["rows"]]
            rows.append([run["model"], f"{workload}, {result['requests']} requests", *cells])
    first = next(iter(record.head["runs"][0]["results"].values()))["rows"]
    columns = [" ".join([names[row["figure"].split()[0]], *row["figure"].split()[1:]]) for row in first]
    return table(["one GPU of eight", "workload", *columns], rows, left=2) + ["", f"From {record.origin()}."]
