"""Carries out what the ranks have agreed on. Collective over the set, blocking; called by one thread."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from torch.autograd.graph import increment_version

from unisono.comm.arithmetic import Scratch
from unisono.comm.base import MAX, MIN, SUM, Communicator, Op
from unisono.horovod._impl.engine.adasum import adasum
from unisono.horovod._impl.engine.agreed_operation import Agreement
from unisono.horovod._impl.engine.host_copies import deliver, new_output, sources, targets
from unisono.horovod._impl.engine.operation_entry import Entry
from unisono.horovod._impl.engine.operation_request import (
    ALLGATHER,
    ALLREDUCE,
    ALLTOALL,
    BARRIER,
    BROADCAST,
    JOIN,
    REDUCESCATTER,
    ReduceOp,
    Request,
)
from unisono.horovod._impl.engine.reduction_arithmetic import finish_reduction, product, reduction_type, scale
from unisono.horovod._impl.exceptions import HorovodInternalError
from unisono.horovod._impl.timeline.operation_timeline import OFF, Timeline

_ENGINE_OPS: Mapping[int, Op] = {ReduceOp.AVERAGE: SUM, ReduceOp.SUM: SUM, ReduceOp.MIN: MIN, ReduceOp.MAX: MAX}

GATHERED_BYTES = 4 << 20
"""A product is made from everybody's values, so many bytes of them at a time."""

Written = list[tuple[Entry, list[Tensor]]]
"""Each entry with its results on the host."""

Entries = Mapping[str, Entry]
"""What this rank has submitted, by name; a rank that has joined lacks what the others do."""


class Carrier:
    """Carries out operations over one communicator. `ranks` are the ranks in the whole job, by rank of the communicator."""

    def __init__(self, comm: Communicator, ranks: Sequence[int], timeline: Timeline = OFF) -> None:
        self._comm = comm
        self._ranks = tuple(ranks)
        self._timeline = timeline
        self._scratch = Scratch(comm)
        self._gathered = Scratch(comm)

    def carry(self, bucket: Sequence[Agreement], entries: Entries) -> None:
        """Carries out all agreements of a bucket; none of them is a refusal."""
        first = bucket[0]
        if first.first.kind in (BARRIER, JOIN):  # that all ranks have agreed is the barrier, or the join, itself
            entry = entries.get(first.name)
            if entry is not None:
                entry.last_joined = first.last_joined
            return
        carry = {
            ALLREDUCE: self._allreduce,
            REDUCESCATTER: self._reducescatter,
            BROADCAST: self._broadcast,
            ALLGATHER: self._allgather,
            ALLTOALL: self._alltoall,
        }[first.first.kind]
        for entry, written in carry(bucket, entries):
            deliver(entry, written)

    def _entry_or_none(self, agreement: Agreement, entries: Entries) -> Entry | None:
        """Returns the entry that this rank has submitted; None only if it has joined. Zeros in place of lost data would falsify the
        results of all others, so lost data is an error."""
        entry = entries.get(agreement.name)
        if entry is None and self._comm.rank not in agreement.joined:
            raise HorovodInternalError(f"all ranks agreed on {agreement.name}, but it is no longer in flight on this rank")
        return entry

    def _own_entry(self, agreement: Agreement, entries: Entries) -> Entry:
        """Returns the entry of this rank for an operation that is refused where a rank has joined, so that there is one."""
        entry = self._entry_or_none(agreement, entries)
        assert entry is not None, f"{agreement.name} is refused where a rank has joined"
        return entry

    # ---- reductions ------------------------------------------------------------------------------------------------

    def _allreduce(self, bucket: Sequence[Agreement], entries: Entries) -> Written:
        """Reduces the tensors of a bucket, those of one type as one vector; ranks that have joined add zeros. Returns the entries
        with their results."""
        ins: list[Tensor] = []
        outs: list[Tensor] = []
        written: list[tuple[Entry, list[Tensor]]] = []
        for agreement in bucket:
            entry = self._entry_or_none(agreement, entries)
            if entry is None:
                held = wanted = _zeros_like_request(agreement.first)
            else:
                held = sources(entry)
                wanted = targets(entry, held)
                written.append((entry, wanted))
            ins += held
            outs += wanted
        for dtype in {tensor.dtype: None for tensor in ins}:
            alike = [number for number, tensor in enumerate(ins) if tensor.dtype == dtype]
            self._reduce_together([ins[number] for number in alike], [outs[number] for number in alike], bucket[0].first)
        return written

    def _reduce_together(self, ins: list[Tensor], outs: list[Tensor], request: Request) -> None:
        """Reduces tensors of one type as one vector; a single tensor in place."""
        lengths = [tensor.numel() for tensor in ins]
        dtype = reduction_type(ins[0].dtype, request.op)
        vector = outs[0]
        alone = len(ins) == 1 and vector.dtype == dtype
        if not alone:
            self._timeline.on_copy_in()
            vector = self._scratch.get(sum(lengths), dtype)
            torch.cat(ins, out=vector)
        elif vector is not ins[0]:
            vector.copy_(ins[0])
        if vector.numel():
            self._timeline.on_send(ALLREDUCE)
            scale(vector, request.prescale)
            self._reduce_vector(vector, lengths, request.op)
            finish_reduction(vector, request.postscale, self._comm.size if request.op == ReduceOp.AVERAGE else 1)
        if alone:
            increment_version(vector)  # autograd must hear of it, as it does where values are copied
        else:
            self._timeline.on_copy_out()
            torch._foreach_copy_(outs, list(vector.split_with_sizes(lengths)))

    def _reduce_vector(self, vector: Tensor, lengths: Sequence[int], op: int) -> None:
        """Reduces a vector over the ranks, in place. Adasum treats each of its tensors, whose `lengths` are given, by itself."""
        if op in _ENGINE_OPS:
            self._comm.allreduce(vector, _ENGINE_OPS[op])
        elif op == ReduceOp.ADASUM:
            rows = self._gather_vectors(vector)
            begin = 0
            for length in lengths:
                part = slice(begin, begin + length)
                vector[part].copy_(adasum([row[part] for row in rows]))
                begin += length
        else:
            step = max(1, GATHERED_BYTES // vector.element_size() // self._comm.size)
            for piece in torch.split(vector, step):
                product(piece, self._gather_vectors(piece))

    def _gather_vectors(self, vector: Tensor) -> Tensor:
        """Returns the vectors of all ranks, a row for each rank; valid until the next call."""
        out = self._gathered.get(self._comm.size * vector.numel(), vector.dtype)
        self._comm.allgather(out, vector)
        return out.view(self._comm.size, -1)

    def _reducescatter(self, bucket: Sequence[Agreement], entries: Entries) -> Written:
        """Scatters tensors of one type as one vector: the rows of all tensors for the first rank, then those for the second, and so
        on. Returns the entries with their results."""
        owned = [self._own_entry(agreement, entries) for agreement in bucket]
        written = [(entry, _new_row_outputs(entry, self._comm)) for entry in owned]
        by_type: dict[torch.dtype, list[tuple[Tensor, Tensor, list[int]]]] = {}
        for entry, outs in written:
            for source, out, (_, shape) in zip(sources(entry), outs, entry.request.parts, strict=True):
                lengths = [count * math.prod(shape[1:]) for count in rows_of_ranks(shape[0], self._comm.size)]
                by_type.setdefault(source.dtype, []).append((source, out, lengths))
        for triples in by_type.values():
            self._scatter_together(triples, bucket[0].first)
        return written

    def _scatter_together(self, triples: Sequence[tuple[Tensor, Tensor, list[int]]], request: Request) -> None:
        """Reduces tensors of one type as one vector and writes this rank's rows. Each triple is a tensor, its output, and how many
        of its numbers each rank gets."""
        counts = [sum(column) for column in zip(*(lengths for _, _, lengths in triples), strict=True)]
        if not sum(counts):
            return
        self._timeline.on_copy_in()
        dtype = reduction_type(triples[0][0].dtype, request.op)
        vector = self._scratch.get(sum(counts), dtype)
        cut = [source.split_with_sizes(lengths) for source, _, lengths in triples]
        torch.cat([piece for column in zip(*cut, strict=True) for piece in column], out=vector)
        scale(vector, request.prescale)
        alone = len(triples) == 1 and triples[0][1].dtype == dtype
        mine = triples[0][1] if alone else self._gathered.get(counts[self._comm.rank], vector.dtype)
        self._timeline.on_send(REDUCESCATTER)
        self._comm.reduce_scatter(mine, vector, counts, SUM)
        finish_reduction(mine, request.postscale, self._comm.size if request.op == ReduceOp.AVERAGE else 1)
        if not alone:
            self._timeline.on_copy_out()
            outs = [out for _, out, _ in triples]
            torch._foreach_copy_(outs, list(mine.split_with_sizes([out.numel() for out in outs])))

    # ---- copies ----------------------------------------------------------------------------------------------------

    def _broadcast(self, bucket: Sequence[Agreement], entries: Entries) -> Written:
        """Broadcasts the tensors of a bucket from their common root, all at once. Returns the entries with their results."""
        root = self._ranks.index(bucket[0].first.root)
        moved: list[Tensor] = []
        written: list[tuple[Entry, list[Tensor]]] = []
        for agreement in bucket:
            entry = self._own_entry(agreement, entries)
            ins = sources(entry)
            outs = targets(entry, ins)
            if self._comm.rank == root:
                for source, target in zip(ins, outs, strict=True):
                    if target is not source:
                        target.copy_(source)
            moved += [out for out in outs if out.numel()]
            written.append((entry, outs))
        if moved:
            self._timeline.on_send(BROADCAST)
            self._comm.broadcast(moved, root)
            increment_version(moved)
        return written

    def _allgather(self, bucket: Sequence[Agreement], entries: Entries) -> Written:
        """Gathers each rank's rows of all tensors as one vector of bytes; a single tensor directly into its output. Returns the
        entries with their results."""
        written: list[tuple[Entry, list[Tensor]]] = []
        rows_of: list[list[int]] = []
        for agreement in bucket:
            entry, outs = self._own_entry(agreement, entries), []
            for position, (dtype, shape) in enumerate(agreement.first.parts):
                rows = [request.parts[position][1][0] for request in agreement.requests if request is not None]
                outs.append(new_output(entry, position, (sum(rows), *shape[1:])))
                entry.sizes.append(rows)
                rows_of.append([count * math.prod(shape[1:]) * dtype.itemsize for count in rows])
            written.append((entry, outs))
        counts = [sum(column) for column in zip(*rows_of, strict=True)]
        ins = [source.view(torch.uint8) for entry, _ in written for source in sources(entry)]
        outs = [out.view(torch.uint8) for _, outs_of in written for out in outs_of]
        if len(ins) == 1 and sum(counts):
            self._timeline.on_send(ALLGATHER)
            self._comm.allgather(outs[0], ins[0], counts)
        elif sum(counts):
            self._timeline.on_copy_in()
            mine = self._scratch.get(counts[self._comm.rank], torch.uint8)
            torch.cat(ins, out=mine)
            everything = self._gathered.get(sum(counts), torch.uint8)
            self._timeline.on_send(ALLGATHER)
            self._comm.allgather(everything, mine, counts)
            self._timeline.on_copy_out()
            pieces = [out.split_with_sizes(lengths) for out, lengths in zip(outs, rows_of, strict=True)]
            by_rank = [piece for column in zip(*pieces, strict=True) for piece in column]
            torch._foreach_copy_(by_rank, list(everything.split_with_sizes([piece.numel() for piece in by_rank])))
        return written

    def _alltoall(self, bucket: Sequence[Agreement], entries: Entries) -> Written:
        """Sends each rank its rows of the only tensor in the bucket. Returns the entry with the rows that came; how many came from
        each rank is added to `entry.sizes`."""
        (agreement,) = bucket
        entry, rank = self._own_entry(agreement, entries), self._comm.rank
        rows = [request.splits[rank] for request in agreement.requests if request is not None]
        _, shape = agreement.first.parts[0]
        out = new_output(entry, 0, (sum(rows), *shape[1:]))
        entry.sizes.append(rows)
        row = math.prod(shape[1:])
        if any(sum(request.splits) for request in agreement.requests if request is not None) and row:
            sent = [count * row for count in entry.request.splits]
            self._timeline.on_send(ALLTOALL)
            self._comm.alltoall(out, sources(entry)[0][: sum(sent)], [count * row for count in rows], sent)
        return [(entry, [out])]


def rows_of_ranks(num_rows: int, size: int) -> list[int]:
    """Returns how many rows each rank gets; the first ranks get one more where they do not divide. Pure."""
    each, more = divmod(num_rows, size)
    return [each + (rank < more) for rank in range(size)]


def _zeros_like_request(request: Request) -> list[Tensor]:
    """Returns zeros for the tensors of a request: the contribution of a rank that has joined."""
    return [torch.zeros(math.prod(shape), dtype=dtype, device="cpu") for dtype, shape in request.parts]


def _new_row_outputs(entry: Entry, comm: Communicator) -> list[Tensor]:
    """Returns new outputs for this rank's rows of each tensor of an entry."""
    return [
        new_output(entry, position, (rows_of_ranks(shape[0], comm.size)[comm.rank], *shape[1:]))
        for position, (_, shape) in enumerate(entry.request.parts)
    ]
