# SPDX-License-Identifier: Apache-2.0
"""Files and traces of other tools, told by how they begin: what each is, and the way out.

A file that holds no trace events at all is refused with `not_a_trace`. A trace of another maker is
read as far as it goes; `other_maker` says whose it is, and every command says so.
"""

from __future__ import annotations

import re
from typing import NamedTuple

_BLANKS = b"\xef\xbb\xbf \t\r\n"
_ZIP_OF_TORCH = re.compile(
    rb"PK\x03\x04.{26}[^/]{1,80}/(?:data\.pkl|\.format_version|\.data/)", re.DOTALL
)

_BEGINNINGS: tuple[tuple[bytes, str], ...] = (
    (
        b"version https://git-lfs.github.com/spec/",
        "a Git LFS pointer, which stands for the file itself; get the file with `git lfs pull`",
    ),
    (b"PK\x03\x04", "a zip archive; unpack it and name the trace that is in it"),
    (b"SQLite format 3\0", "an SQLite database, such as `nsys export` writes; {nsys}"),
    (b"\x89HDF", "an HDF5 file, such as `nsys export` writes; {nsys}"),
    (b"PAR1", "a Parquet file; name the trace that it was made of"),
    (b"ARROW1", "an Arrow file, such as `nsys export` writes; {nsys}"),
    (b"BZh", "compressed by bzip2; unpack it with `bunzip2`"),
    (b"\xfd7zXZ\0", "compressed by xz; unpack it with `unxz`"),
    (b"\x04\x22\x4d\x18", "compressed by lz4; unpack it with `unlz4`"),
    (b"7z\xbc\xaf\x27\x1c", "a 7z archive; unpack it and name the trace that is in it"),
)
_NSYS = (
    "this reads traces of torch.profiler; take `nsys stats`, or record again with torch.profiler"
)
_NSYS_JSON = re.compile(
    rb'"(?:CudaEvent|TraceProcessEvent|NvtxEvent|CompositeEvent|CUPTI_ACTIVITY_KIND_\w+)"\s*:'
)
_CHAKRA = re.compile(rb'"schema"\s*:\s*"[\d.]+-chakra|"ctrl_deps"\s*:|"rf_id"\s*:')
_PICKLE = re.compile(rb"\x80[\x02-\x05]")
_XPLANE = re.compile(rb"/host:(?:CPU|metadata)|/device:[A-Z]+:\d|Task Environment")

_TORCH = re.compile(
    rb'"schemaVersion"|"cat"\s*:\s*"(?:cpu_op|Operator|cuda_runtime|kernel|Kernel)"'
)
_XLA = re.compile(
    rb'"hlo_(?:op|module)"\s*:|"name"\s*:\s*"/(?:host:CPU|device:(?:GPU|TPU|CUSTOM)\b)'
)
_TENSORFLOW = re.compile(
    rb'"name"\s*:\s*"(?:/job:|/(?:device:)?(?:gpu|cpu|GPU|CPU):\d+)[^"]*(?:Compute|Tensors)"'
    rb'|"cat"\s*:\s*"(?:Op|Tensor|DataFlow)"'
)
_LEGACY = re.compile(rb'"pid"\s*:\s*"(?:CPU|CUDA) functions"')
_BEGIN = re.compile(rb'"ph"\s*:\s*"B"')
_COMPLETE = re.compile(rb'"ph"\s*:\s*"X"')
_MOST_BEGINS = 0.1
"""Of a trace by torch.profiler, for what its user added by hand."""


class Maker(NamedTuple):
    """Who else wrote a trace.

    Args:
        sentence: what it is, and the way out.
        leaves_gaps: it looks like torch.profiler's, with work that is not read.
    """

    sentence: str
    leaves_gaps: bool = False


def not_a_trace(head: bytes) -> str:
    """Why a file without trace events is none, from how it begins: what it is, the way out."""
    if not head.strip(_BLANKS):
        return "the file is empty"
    if _ZIP_OF_TORCH.match(head):
        return "a file of torch.save, such as a checkpoint; name a trace of torch.profiler"
    for beginning, reason in _BEGINNINGS:
        if head.startswith(beginning):
            return reason.format(nsys=_NSYS)
    if _PICKLE.match(head):
        return (
            "a pickle, such as an allocator snapshot; `torch-trace memory` reads a snapshot, and "
            "https://pytorch.org/memory_viz shows it"
        )
    if head[257:262] == b"ustar":
        return "a tar archive; unpack it and name the trace that is in it"
    text = head.lstrip(_BLANKS)
    if head[:1] == b"\x0a" and text[:1] not in (b"{", b"[", b"<") and _is_binary(head):
        if _XPLANE.search(head):
            return "an XPlane of JAX or TensorFlow; open it with XProf (`xprof --logdir`)"
        return (
            "a Perfetto timeline (.pftrace) or another protobuf; open it in "
            "https://ui.perfetto.dev, and name the trace that it was made of"
        )
    if b"brain.Event:" in head[:64]:
        return "an event file of TensorBoard; open it with `tensorboard --logdir`"
    if text[:1] in (b"{", b"["):
        return _json(text)
    if text[:1] == b"<":
        return "an HTML or XML page; name the trace itself"
    return "neither a JSON object nor an array of events"


def _is_binary(head: bytes) -> bool:
    return any(byte < 9 or 13 < byte < 32 or byte > 126 for byte in head[:256])


def _json(text: bytes) -> str:
    if _CHAKRA.search(text):
        return (
            "a JSON object, but without traceEvents: an execution trace (Chakra), which holds no "
            "times of a GPU; name what torch.profiler's export_chrome_trace wrote"
        )
    if _NSYS_JSON.search(text):
        return f"JSON of `nsys export`; {_NSYS}"
    if b"rocprofiler-sdk-tool" in text:
        return "JSON of rocprofv3; name what torch.profiler's export_chrome_trace wrote"
    if b"speedscope.app" in text:
        return "a profile of speedscope; open it in https://www.speedscope.app"
    if text[:1] == b"[":
        return "a JSON array, but not of trace events"
    return "a JSON object, but without traceEvents"


def other_maker(head: bytes) -> Maker | None:
    """Who wrote trace events that are not torch.profiler's; None if they may be."""
    begins = len(_BEGIN.findall(head))
    if begins > _MOST_BEGINS * len(_COMPLETE.findall(head)):
        return Maker(
            "Events are written as begin and end (B, E), which torch.profiler does not write and "
            "torch-trace does not read: the work in these events is missing from every number. "
            "Open the trace in Perfetto, or have its tool write complete events (X).",
            leaves_gaps=True,
        )
    if _LEGACY.search(head):
        return Maker(
            "A trace of torch.autograd.profiler's old exporter (before torch 1.9, or "
            "use_kineto=False), which names no kernels and no streams: open it in Perfetto, or "
            "record again with torch.profiler."
        )
    if _TORCH.search(head):
        return None
    if _TENSORFLOW.search(head):
        return Maker(
            "A timeline of TensorFlow, not of torch.profiler: open it in Perfetto, or analyse the "
            "profile with XProf (TensorBoard's profile plugin)."
        )
    if _XLA.search(head):
        return Maker(
            "A trace of JAX or TensorFlow (XLA), not of torch.profiler: open it in Perfetto, or "
            "analyse the profile with XProf (TensorBoard's profile plugin)."
        )
    return None
