"""Random programs of a device's steps, as lowering writes them, and what they mean: an interpreter
of steps over memory of the host. The kernels are x + y -> z, x * m + c -> y and x < limit -> y."""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from xcube.lowering.device.base import (
    Branch,
    Copy,
    HostCall,
    Launch,
    Loop,
    Operand,
    Ref,
    Register,
    Step,
    While,
)

I32 = np.dtype(np.int32)
X = Ref("input", 0)
ADD, AFFINE, LESS = range(3)


class RandomProgram:
    """Random programs over slots of eight numbers, as lowering writes them: bodies have slots of
    their own, loops carry values by rotations, and copy them to where they are wanted at last."""

    N, SLOT = 8, 256

    def __init__(self, seed: int, calls: bool) -> None:
        self.random, self.calls = np.random.default_rng(seed), calls
        self.offset, self.registers = 0, itertools.count()

    def slot(self) -> Ref:
        self.offset += self.SLOT
        return Ref("arena", 0, self.offset - self.SLOT)

    def pick(self, refs: Sequence[Ref]) -> Ref:
        return refs[int(self.random.integers(len(refs)))]

    def block(self, seen: list[Ref], depth: int, count: int) -> list[Step]:
        """Steps that read `seen` and add what they write to it."""
        makers = [self.add, self.affine, self.copy]
        if self.calls:
            makers.append(self.call)
        if depth:
            makers += [self.loop, self.until, self.branch] * 2
        steps: list[Step] = []
        for _ in range(count):
            steps += makers[int(self.random.integers(len(makers)))](seen, depth)
        return steps

    def add(self, seen: list[Ref], depth: int) -> list[Step]:
        out, x, y = self.slot(), self.pick(seen), self.pick(seen)
        seen.append(out)
        return [Launch(ADD, (x, y, out), (), self.N)]

    def affine(self, seen: list[Ref], depth: int) -> list[Step]:
        out, x = self.slot(), self.pick(seen)
        seen.append(out)
        return [Launch(AFFINE, (x, out), (int(self.random.integers(-2, 3)), 1), self.N)]

    def copy(self, seen: list[Ref], depth: int) -> list[Step]:
        out, x = self.slot(), self.pick(seen)
        seen.append(out)
        return [Copy(out, x, 4 * self.N)]

    def call(self, seen: list[Ref], depth: int) -> list[Step]:
        out, x = self.slot(), self.pick(seen)
        seen.append(out)
        shape = (2, self.N // 2)
        operand, result = Operand(x, shape, I32), Operand(out, shape, I32)
        return [HostCall(lambda arrays: [arrays[0][::-1] + 1], (operand,), (result,))]

    def carry(self, init: Ref) -> tuple[list[Register], tuple[int, int, int], Ref]:
        """Registers, their rotation, and the home of the carried value."""
        home, spare = self.slot(), self.slot()
        read, write, rest = (next(self.registers) for _ in range(3))
        places = (home, spare) if self.random.integers(2) else (spare, home)
        registers = [Register(read, init), Register(write, places[0]), Register(rest, places[1])]
        return registers, (read, write, rest), home

    def body(self, seen: list[Ref], depth: int, rotations: Sequence[Any]) -> list[Step]:
        """A turn: something, and what it carries on."""
        inner = [*seen, *(Ref("register", read) for read, _, _ in rotations)]
        steps = self.block(inner, depth - 1, int(self.random.integers(1, 4)))
        for read, write, _ in rotations:
            other = self.pick(inner)
            before, after = Ref("register", read), Ref("register", write)
            steps.append(Launch(ADD, (before, other, after), (), self.N))
            steps.append(Launch(ADD, (after, before, after), (), self.N))
        return steps

    def loop(self, seen: list[Ref], depth: int) -> list[Step]:
        turns = int(self.random.choice([0, 1, 2, 3, 5]))
        registers, rotation, home = self.carry(self.pick(seen))
        number, stacked = next(self.registers), self.slot()
        self.offset += self.SLOT * turns
        first = 4 * self.N * max(0, turns - 1)
        step, start = (4 * self.N, 0) if self.random.integers(2) else (-4 * self.N, first)
        registers.append(Register(number, Ref("arena", 0, stacked.offset + start), step))
        body = self.body(seen, depth, [rotation])
        body.append(Copy(Ref("register", number), Ref("register", rotation[1]), 4 * self.N))
        loop = Loop(turns, tuple(body), tuple(registers), (rotation,))
        seen.append(home)
        seen += [Ref("arena", 0, stacked.offset + 4 * self.N * k) for k in range(turns)]
        return [loop, Copy(home, Ref("register", rotation[0]), 4 * self.N)]

    def until(self, seen: list[Ref], depth: int) -> list[Step]:
        zero, predicate = self.slot(), self.slot()
        counted, count, end = self.carry(zero)
        carried, rotation, home = self.carry(self.pick(seen))
        body = self.body(seen, depth, [rotation])
        before, after = Ref("register", count[0]), Ref("register", count[1])
        body.append(Launch(AFFINE, (before, after), (1, 1), 8))
        limit = int(self.random.choice([0, 1, 2, 3]))
        test = Launch(LESS, (before, predicate), (limit,), 1)
        loop = While((test,), predicate, tuple(body), (*counted, *carried), (count, rotation))
        seen += [home, end]
        return [
            Launch(AFFINE, (X, zero), (0, 0), self.N),
            loop,
            Copy(home, Ref("register", rotation[0]), 4 * self.N),
            Copy(end, Ref("register", count[0]), 4 * self.N),
        ]

    def branch(self, seen: list[Ref], depth: int) -> list[Step]:
        out, branches = self.slot(), []
        for _ in range(int(self.random.integers(1, 4))):
            inner = list(seen)
            steps = self.block(inner, depth - 1, int(self.random.integers(0, 3)))
            branches.append((*steps, Launch(ADD, (self.pick(inner), X, out), (), self.N)))
        index = self.pick([Ref("input", 2, 4 * k) for k in range(8)])
        seen.append(out)
        return [Branch(index, tuple(branches))]


class Reference:
    """What steps mean: run one after the other over memory of the host."""

    def __init__(self, bases: dict[str, list[np.ndarray]]) -> None:
        self.bases = bases
        self.registers: dict[int, int] = {}

    def pointer(self, ref: Ref) -> int:
        if ref.space == "register":
            return self.registers[ref.index] + ref.offset
        return self.bases[ref.space][ref.index].ctypes.data + ref.offset

    def at(self, ref: Ref, count: int = 8, dtype: Any = np.int32) -> np.ndarray:
        nbytes = count * np.dtype(dtype).itemsize
        memory = (ctypes.c_uint8 * nbytes).from_address(self.pointer(ref))
        return np.ctypeslib.as_array(memory).view(dtype)

    def run(self, steps: Sequence[Step]) -> None:
        for step in steps:
            getattr(self, type(step).__name__.lower())(step)

    def launch(self, step: Launch) -> None:
        operands, out = step.buffers[:-1], step.buffers[-1]
        x = [self.at(ref, step.cubes) for ref in operands]
        if step.kernel == ADD:
            self.at(out, step.cubes)[:] = x[0] + x[1]
        elif step.kernel == AFFINE:
            self.at(out, step.cubes)[:] = x[0] * np.int32(step.scalars[0]) + step.scalars[1]
        else:
            self.at(out, step.cubes, np.bool_)[:] = x[0] < step.scalars[0]

    def copy(self, step: Copy) -> None:
        data = self.at(step.source, step.nbytes, np.uint8).copy()
        self.at(step.target, step.nbytes, np.uint8)[:] = data

    def hostcall(self, step: HostCall) -> None:
        shape = step.operands[0].shape
        x = self.at(step.operands[0].ref).reshape(shape).copy()
        self.at(step.results[0].ref)[:] = np.ravel(step.function([x])[0])

    def begin(self, step: Loop | While) -> None:
        for register in step.registers:
            self.registers[register.number] = self.pointer(register.start)

    def turn(self, step: Loop | While) -> None:
        self.run(step.body)
        held = self.registers
        for register in step.registers:
            held[register.number] += register.step
        for read, write, spare in step.rotations:
            held[read], held[write], held[spare] = held[write], held[spare], held[write]

    def loop(self, step: Loop) -> None:
        self.begin(step)
        for _ in range(step.turns):
            self.turn(step)

    def __getattr__(self, name: str) -> Callable[[Any], None]:
        return {"while": self.until}[name]

    def until(self, step: While) -> None:
        self.begin(step)
        self.run(step.test)
        while self.at(step.predicate, 1, np.bool_)[0]:
            self.turn(step)
            self.run(step.test)

    def branch(self, step: Branch) -> None:
        index = int(self.at(step.index, 1)[0])
        self.run(step.branches[max(0, min(index, len(step.branches) - 1))])
