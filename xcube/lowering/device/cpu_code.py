"""LLVM text in, addresses of native functions out.

A text is compiled once for the host's processor and kept in the cache on disk. Texts that are asked
for together are compiled together, because starting LLVM's code generator costs as much as a small
kernel: a *pack* is one object file with several functions, each under a symbol that no other text
has. Kernels arrive as good vector code already, so few passes run. Code that was linked stays for
the life of the process: a thread may be inside.
"""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import llvmlite
import llvmlite.binding as llvm

from xcube import errors
from xcube.lowering import cache

PASSES = ("sroa",)
"""The passes run on every text: mutable locals into registers. Measured: combining and simplifying
instructions first makes kernels no shorter and costs a tenth of the compile time."""

PACK = 32
"""The most functions compiled together: beyond, nothing is gained, and reading one costs more."""

_OPTIMIZATION = 2
_ELSEWHERE = b"->"


@dataclass(frozen=True, slots=True)
class _Pack:
    """An object file and its functions: key -> symbol."""

    symbols: dict[str, str]
    code: bytes

    def to_bytes(self) -> bytes:
        lines = [f"{key} {symbol}\n" for key, symbol in self.symbols.items()]
        return "".join([*lines, "\n"]).encode() + self.code

    @classmethod
    def from_bytes(cls, data: bytes) -> _Pack:
        head, _, code = data.partition(b"\n\n")
        pairs = (line.split(" ", 1) for line in head.decode().split("\n"))
        return cls({key: symbol for key, symbol in pairs}, code)


class Code:
    """The compiler for this machine and all native code made so far."""

    def __init__(self) -> None:
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        self.triple = llvm.get_process_triple()
        self.cpu = llvm.get_host_cpu_name()
        self.features = llvm.get_host_cpu_features()
        self._machine = llvm.Target.from_triple(self.triple).create_target_machine(
            cpu=self.cpu,
            features=self.features.flatten(),
            opt=_OPTIMIZATION,
            reloc="pic",
            codemodel="small",
            jit=True,
        )
        self._engine = llvm.create_lljit_compiler(self._machine, use_jit_link=True)
        self._prefix = (
            f'target datalayout = "{self._machine.target_data}"\ntarget triple = "{self.triple}"\n'
        )
        versions = (
            llvmlite.__version__,
            llvm.llvm_version_info,
            PASSES,
            _OPTIMIZATION,
            "small pic",
        )
        self._recipe = repr((self.triple, self.cpu, self.features.flatten(), versions))
        self._addresses: dict[str, int] = {}
        self._libraries: list[llvm.ResourceTracker] = []
        self._numbers = itertools.count()
        self._lock = threading.RLock()
        if hasattr(os, "register_at_fork"):
            # A child must not inherit a compiler that another thread is in the middle of using.
            os.register_at_fork(
                before=self._lock.acquire,
                after_in_parent=self._lock.release,
                after_in_child=self._lock.release,
            )

    @property
    def architecture(self) -> str:
        """The first part of the triple, in LLVM's spelling ("x86_64", "aarch64")."""
        name = self.triple.split("-")[0].lower()
        return {"arm64": "aarch64", "amd64": "x86_64"}.get(name, name)

    def functions(self, sources: Sequence[tuple[str, str]]) -> list[int]:
        """Addresses of the functions given as (name, text); each text exports only that name.

        Raises LoweringError if a text is not valid LLVM or does not define its name.
        """
        keys = [cache.key(self._recipe, name, text) for name, text in sources]
        with self._lock:
            wanted = dict(zip(keys, sources, strict=True))
            for key in wanted:
                if key not in self._addresses:
                    self._find(key)
            absent = [(key, *wanted[key]) for key in wanted if key not in self._addresses]
            for start in range(0, len(absent), PACK):
                self._make(absent[start : start + PACK])
            return [self._addresses[key] for key in keys]

    def module(
        self, text: str, exports: Sequence[str], imports: Mapping[str, int]
    ) -> dict[str, int]:
        """Addresses of several functions of one text that calls the functions in `imports`."""
        key = cache.key(self._recipe, *exports, text)
        store = cache.current()
        with self._lock:
            code = store.load(key)
            if code is None:
                code = self._machine.emit_object(self._optimized(exports[0], text))
                store.store(key, code)
            return self._link(code, exports, imports)

    def assembly(self, name: str, text: str) -> str:
        """The machine code of one text as assembly, for people."""
        with self._lock:
            return self._machine.emit_assembly(self._optimized(name, text))

    def _find(self, key: str) -> None:
        """Link the pack that holds a function, if the cache has one."""
        store = cache.current()
        data = store.load(key)
        if data is not None and data.startswith(_ELSEWHERE):
            data = store.load(data.removeprefix(_ELSEWHERE).decode())
        if data is None or data.startswith(_ELSEWHERE):
            return
        pack = _Pack.from_bytes(data)
        if key in pack.symbols:
            self._use(pack)

    def _make(self, batch: Sequence[tuple[str, str, str]]) -> None:
        """Compile (key, name, text) triples together, keep and link them."""
        symbols = {key: f"{name}.{key}" for key, name, _ in batch}
        modules = [self._renamed(name, text, symbols[key]) for key, name, text in batch]
        whole = modules[0]
        for module in modules[1:]:
            whole.link_in(module)
        pack = _Pack(symbols, self._machine.emit_object(whole))
        self._use(pack)
        # The pack lies under the key of its first function; the others say where.
        store = cache.current()
        first, *others = symbols
        store.store(first, pack.to_bytes())
        for key in others:
            store.store(key, _ELSEWHERE + first.encode())

    def _use(self, pack: _Pack) -> None:
        found = self._link(pack.code, list(pack.symbols.values()), {})
        for key, symbol in pack.symbols.items():
            self._addresses.setdefault(key, found[symbol])

    def _renamed(self, name: str, text: str, symbol: str) -> llvm.ModuleRef:
        module = self._optimized(name, text)
        try:
            function = module.get_function(name)
        except NameError as error:
            raise errors.LoweringError(
                f"compile: the text of kernel {name!r} must define a function of that name; "
                f"it defines {[function.name for function in module.functions]}."
            ) from error
        function.name = symbol
        return module

    def _optimized(self, name: str, text: str) -> llvm.ModuleRef:
        try:
            module = llvm.parse_assembly(self._prefix + text)
            module.verify()
        except RuntimeError as error:
            raise errors.LoweringError(
                f"compile: the text of kernel {name!r} must be valid LLVM; {error}. "
                "This is a fault of xcube's LLVM emitter, please report it with the kernel."
            ) from error
        options = llvm.create_pipeline_tuning_options(speed_level=_OPTIMIZATION)
        builder = llvm.create_pass_builder(self._machine, options)
        passes = llvm.create_new_module_pass_manager()
        for step in PASSES:
            getattr(passes, f"add_{step}_pass")()
        passes.run(module, builder)
        return module

    def _link(
        self, code: bytes, exports: Sequence[str], imports: Mapping[str, int]
    ) -> dict[str, int]:
        builder = llvm.JITLibraryBuilder().add_object_img(code).add_current_process()
        for name in exports:
            builder.export_symbol(name)
        for name, address in imports.items():
            builder.import_symbol(name, address)
        try:
            library = builder.link(self._engine, f"xcube{next(self._numbers)}")
        except RuntimeError as error:
            raise errors.LoweringError(
                f"link: every function that {', '.join(exports)} call must exist in this process; "
                f"{error} (standard error names what was not found)."
            ) from error
        self._libraries.append(library)
        return {name: library[name] for name in exports}
