"""Packs lists of buffers into few messages: long buffers are sent alone, short ones of one type together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

PACK_BYTES = 256 * 1024
"""Longest buffer that is copied into a message with others."""

Pack = tuple[Tensor, list[Tensor]]
"""The message, and the buffers whose contents it carries."""


def pack(bufs: Sequence[Tensor], wire: Mapping[torch.dtype, torch.dtype]) -> list[Pack]:
    """Local: returns the messages of flat buffers, in the types that `wire` says. Empty buffers are left out."""
    packs: list[Pack] = []
    short: dict[torch.dtype, list[Tensor]] = {}
    for buf in bufs:
        dtype = wire.get(buf.dtype, buf.dtype)
        if buf.nbytes > PACK_BYTES or (len(bufs) == 1 and buf.numel()):
            packs.append((buf if buf.dtype == dtype else buf.to(dtype), [buf]))
        elif buf.numel():
            short.setdefault(dtype, []).append(buf)
    for dtype, together in short.items():
        joined = together[0].to(dtype) if len(together) == 1 else torch.cat([buf.to(dtype) for buf in together])
        packs.append((joined, together))
    return packs


def unpack(packs: Sequence[Pack]) -> None:
    """Local: copies the messages back into their buffers (nothing to do where a message is the buffer itself)."""
    for wire, bufs in packs:
        if wire is not bufs[0]:
            for buf, part in zip(bufs, wire.split_with_sizes([buf.numel() for buf in bufs]), strict=True):
                buf.copy_(part)
