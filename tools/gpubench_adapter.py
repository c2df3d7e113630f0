# SPDX-License-Identifier: Apache-2.0
"""Adapter for a PyTorch kernel bench: runs libsparrow_msa.so through ctypes beside other implementations.

    harness.py --adapter-dir tools --adapters sparrow --set sparrow.path=build/release/libsparrow_msa.so

The bench provides the modules `adapter` (its base class and cache packing) and `cases` (sizes). Structs and
functions below mirror src/msa/sparrow_msa.h.
"""

import ctypes
import os
from ctypes import POINTER, Structure, byref, c_char_p, c_float, c_int, c_int32, c_int64, c_size_t, c_void_p

import torch

from adapter import Adapter, pack
from cases import BLK, D, INIT_BLOCKS, LOCAL_BLOCKS, TOPK

NAME = "sparrow"
TYPES = {"bf16": 0, "fp8": 1}


class Config(Structure):
    _fields_ = [
        ("struct_bytes", c_size_t),
        ("query_heads", c_int32),
        ("kv_heads", c_int32),
        ("top_k", c_int32),
        ("local_blocks", c_int32),
        ("init_blocks", c_int32),
        ("kv_type", c_int32),
        ("index_type", c_int32),
        ("max_requests", c_int32),
        ("max_queries", c_int32),
        ("max_blocks", c_int32),
        ("rotary_dim", c_int32),
        ("attention_factor", c_float),
        ("inv_freq", c_void_p),
        ("batch_invariant", c_int32),
    ]


class Part(Structure):
    _fields_ = [
        ("num_requests", c_int32),
        ("total_queries", c_int32),
        ("max_queries", c_int32),
        ("max_blocks", c_int32),
        ("cu_seqlens_q", c_void_p),
        ("seq_lens", c_void_p),
        ("block_table", c_void_p),
    ]


class Step(Structure):
    _fields_ = [
        ("struct_bytes", c_size_t),
        ("decode", Part),
        ("prefill", Part),
        ("positions", c_void_p),
    ]


class IndexArgs(Structure):
    _fields_ = [
        ("struct_bytes", c_size_t),
        ("q", c_void_p),
        ("k_pages", c_void_p),
        ("num_blocks", c_int64),
        ("selected", c_void_p),
    ]


class AttendArgs(Structure):
    _fields_ = [
        ("struct_bytes", c_size_t),
        ("q", c_void_p),
        ("kv_pages", c_void_p),
        ("num_blocks", c_int64),
        ("kv_scales", c_void_p),
        ("selected", c_void_p),
        ("out", c_void_p),
        ("scale", c_float),
    ]


def sized(struct, **fields):
    return struct(struct_bytes=ctypes.sizeof(struct), **fields)


def stream():
    return c_void_p(torch.cuda.current_stream().cuda_stream)


class Plan:
    """Owns one plan of the library, prepared for one batch."""

    def __init__(self, library, config, step):
        self.library, self.handle = library, c_void_p()
        library.call("sparrow_msa_plan_create", byref(config), byref(self.handle))
        library.call("sparrow_msa_prepare", self.handle, byref(step), stream())

    def words(self):
        text = ctypes.create_string_buffer(512)
        self.library.call("sparrow_msa_describe", self.handle, text, len(text))
        return text.value.decode().strip()

    def __del__(self):
        self.library.functions.sparrow_msa_plan_destroy(self.handle)


class Library:
    def __init__(self, path):
        f = self.functions = ctypes.CDLL(os.path.abspath(path))
        f.sparrow_msa_last_error.restype = c_char_p
        f.sparrow_msa_plan_create.argtypes = [POINTER(Config), POINTER(c_void_p)]
        f.sparrow_msa_plan_destroy.argtypes = [c_void_p]
        f.sparrow_msa_prepare.argtypes = [c_void_p, POINTER(Step), c_void_p]
        f.sparrow_msa_index.argtypes = [c_void_p, POINTER(IndexArgs), c_void_p]
        f.sparrow_msa_attend.argtypes = [c_void_p, POINTER(AttendArgs), c_void_p]
        f.sparrow_msa_dense.argtypes = [c_void_p, POINTER(AttendArgs), c_void_p]
        f.sparrow_msa_describe.argtypes = [c_void_p, c_char_p, c_size_t]
        for name in ("create", "destroy"):
            getattr(f, "sparrow_msa_plan_" + name).restype = c_int

    def call(self, name, *arguments):
        status = getattr(self.functions, name)(*arguments)
        if status != 0:
            message = self.functions.sparrow_msa_last_error().decode()
            raise RuntimeError(f"{name} returned {status}: {message}")


class Handle:
    """One slot's arguments, made once: a call only hands them over."""

    def __init__(self, t, slot, kv, plan, heads):
        self.plan, self.slot = plan, slot
        rows = slot.q.shape[0]
        # the library's order is [rows, heads, 16]; the bench sees it as [heads, rows, 16]
        self.native = torch.empty(rows, heads, TOPK, dtype=torch.int32, device=slot.q.device)
        self.selection = self.native.permute(1, 0, 2)
        self.kept = (t, kv)
        self.index = None
        if slot.index_q is not None:
            self.index = sized(
                IndexArgs,
                q=slot.index_q.data_ptr(),
                k_pages=t.index_k.data_ptr(),
                num_blocks=t.index_k.shape[0],
                selected=self.native.data_ptr(),
            )
        self.attend = sized(
            AttendArgs,
            q=slot.q.data_ptr(),
            kv_pages=kv.data_ptr(),
            num_blocks=kv.shape[0],
            out=slot.out.data_ptr(),
            scale=t.sm_scale,
        )
        self.given = {}  # selections of the bench in the library's order, by identity

    def selected(self, selection):
        if selection is self.selection or selection.shape[0] == 1:
            return selection
        if id(selection) not in self.given:
            self.given[id(selection)] = (selection, selection.permute(1, 0, 2).contiguous())
        return self.given[id(selection)][1]


class Sparrow(Adapter):
    kinds = ("msa", "dense")
    ascending = True

    def __init__(self, options):
        super().__init__(options)
        self.path = self.option("path", "build/release/libsparrow_msa.so")
        if not os.path.exists(self.path):
            raise RuntimeError(f"no library at {self.path}: --set {NAME}.path=FILE")
        self.library = Library(self.path)
        self.words = {}

    def notes(self):
        return {"library": os.path.basename(self.path), "kernels": self.words}

    def plan(self, case, t, slot):
        requests, blocks = slot.block_table.shape
        rows = slot.q.shape[0]
        config = sized(
            Config,
            query_heads=case["hq"],
            kv_heads=case["hkv"],
            top_k=TOPK,
            local_blocks=LOCAL_BLOCKS,
            init_blocks=INIT_BLOCKS,
            kv_type=TYPES[case["dtype"]],
            index_type=TYPES[case["index_dtype"]],
            max_requests=requests,
            max_queries=rows,
            max_blocks=blocks,
        )
        part = Part(
            num_requests=requests,
            total_queries=rows,
            max_queries=t.max_q,
            max_blocks=blocks,
            seq_lens=t.seq_lens.data_ptr(),
            block_table=slot.block_table.data_ptr(),
        )
        step = sized(Step)
        if case["phase"] == "decode":
            step.decode = part
        else:
            part.cu_seqlens_q = t.cu_q.data_ptr()
            step.prefill = part
        return Plan(self.library, config, step)

    def prepare(self, case, t):
        pages, hkv = t.k.shape[:2]
        kv = pack(
            t.kv_storage,
            (pages, hkv, 2, BLK, D),
            lambda: torch.stack([t.k.view(torch.uint8), t.v.view(torch.uint8)], 2).contiguous().view(t.k.dtype),
        )
        plans = {}  # slots of one page set share lengths and block table
        handles = []
        for slot in t.slots:
            if slot.page_set not in plans:
                plans[slot.page_set] = self.plan(case, t, slot)
            handles.append(Handle(t, slot, kv, plans[slot.page_set], hkv))
        key = "/".join(str(case[k]) for k in ("kind", "phase", "shape", "ctx", "S", "B", "dql"))
        self.words[key] = next(iter(plans.values())).words()
        return handles

    def decode_index(self, h):
        self.library.call("sparrow_msa_index", h.plan.handle, byref(h.index), stream())
        return h.selection

    def decode_attend(self, h, selection):
        h.attend.selected = h.selected(selection).data_ptr()
        self.library.call("sparrow_msa_attend", h.plan.handle, byref(h.attend), stream())
        return h.slot.out

    prefill_index = decode_index
    prefill_attend = decode_attend

    def dense_variants(self, case):
        return [NAME]

    def dense_attend(self, h, variant):
        h.attend.selected = None
        self.library.call("sparrow_msa_dense", h.plan.handle, byref(h.attend), stream())
        return h.slot.out
