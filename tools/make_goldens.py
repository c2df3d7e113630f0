#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes what Hugging Face transformers computes from a checkpoint, in the tensor names of tests/golden/README.md.

Needs torch, safetensors and a transformers with MiniMax-M3 (5.17 or later). A golden never comes from Sparrow itself.

    tools/make_goldens.py --model tests/golden/bf16 --ids ids.json --positions 0,127,-1 --decode 48 --out bf16.safetensors
"""
import argparse
import json

import torch
import transformers
from safetensors.torch import save_file


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="folder of the checkpoint")
    parser.add_argument("--ids", required=True, help="file with a JSON array of token ids")
    parser.add_argument("--positions", required=True, help="such as 0,127,-1")
    parser.add_argument("--decode", type=int, default=0, help="greedy steps after the prompt")
    parser.add_argument("--cast-buffers", action="store_true",
                        help="cast the whole model to the checkpoint's type, rotary frequencies included")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--out", required=True)
    return parser.parse_args()


def load_model(args):
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    config = transformers.AutoConfig.from_pretrained(args.model)
    dtype = getattr(torch, str(config.dtype).removeprefix("torch."))
    model = transformers.AutoModelForImageTextToText.from_pretrained(
        args.model, dtype=dtype, attn_implementation="eager").to(args.device).eval()
    return model.to(dtype) if args.cast_buffers else model


def record_selections(model):
    """A dict that each forward pass fills: layer -> ids [index heads, queries, top-k]."""
    selected = {}

    def hook(layer):
        def record(module, inputs, output):
            ids = output[0] if isinstance(output, tuple) else output
            if not ids.is_floating_point():
                selected[layer] = ids[0].to(torch.int32)
        return record

    for name, module in model.named_modules():
        if name.endswith("self_attn.indexer"):
            module.register_forward_hook(hook(int(name.split(".")[-3])))
    return selected


@torch.no_grad()
def main():
    args = parse_args()
    model = load_model(args)
    for name, buffer in model.named_buffers():
        if name.endswith("inv_freq") and "vision" not in name:
            print(f"{name}: {buffer.dtype}")
    selected = record_selections(model)
    ids = torch.tensor(json.load(open(args.ids)), dtype=torch.long, device=args.device)
    positions = [p % len(ids) for p in map(int, args.positions.split(","))]

    result = model(input_ids=ids[None], use_cache=True, output_hidden_states=True)
    tensors = {"input_ids": ids.int(), "logit_positions": torch.tensor(positions, dtype=torch.int32),
               "logits": result.logits[0, positions].float()}
    for layer, hidden in enumerate(result.hidden_states):
        tensors[f"hidden.{layer}"] = hidden[0, positions].float()
    for layer, blocks in selected.items():
        tensors[f"selected_blocks.{layer}"] = blocks[:, positions]

    greedy_ids, greedy_logits = [result.logits[0, -1].argmax().item()], []
    for _ in range(args.decode):
        result = model(input_ids=torch.tensor([[greedy_ids[-1]]], device=args.device), use_cache=True,
                       past_key_values=result.past_key_values)
        greedy_logits.append(result.logits[0, -1].float())
        greedy_ids.append(greedy_logits[-1].argmax().item())
    tensors["greedy_ids"] = torch.tensor(greedy_ids, dtype=torch.int32)
    if greedy_logits:
        tensors["greedy_logits"] = torch.stack(greedy_logits)

    arguments = {k: v for k, v in vars(args).items() if k not in ("out", "ids", "model")}
    save_file({k: v.cpu().contiguous() for k, v in tensors.items()}, args.out,
              metadata={"transformers": transformers.__version__, "args": json.dumps(arguments)})
    print("wrote", args.out, sorted(tensors))


if __name__ == "__main__":
    main()
