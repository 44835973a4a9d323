"""Keeps a run with emulated values from doing harm: its checkpoints are worthless and must not replace real ones.

Whatever goes through `torch.save`, `safetensors.torch.save_file` and their relatives is not written. Programs read
their own checkpoints, though: the best one at the end, the last one after a failure. So what was saved is remembered by
its path, as its structure with a description in the place of each storage (saved_files.py), and loading that path in the same
run gives zeros of the same shapes and types on the same devices. A file that the run has not saved is loaded as always.

If there is no file at that path yet, an empty placeholder is created, because programs look for it (`os.path.exists`,
`from_pretrained`), and removed at the end. A killed run leaves it behind; an empty file cannot be mistaken for a checkpoint.

Renaming, copying and removing a path that was saved happens in that memory too. A checkpoint that is older than the run
is not moved, replaced or removed: programs make room for newer ones, and here there are none.

Not guarded: files that the program writes itself (`open`, `pickle`, `numpy`). `torch.jit.save`, `torch.onnx.export` and
distributed checkpoints write nothing and remember nothing; loading such a distributed checkpoint leaves the tensors as they
are.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import inspect
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from types import ModuleType
from typing import Any

import torch

from ..interpreter.importing import Report, around_import
from ..interpreter.patching import LikeBuiltin, replace
from .saved_files import OpenedTensors, Saved, SavedTensors

SUFFIXES = (".pt", ".pth", ".pt.tar", ".pth.tar", ".ckpt", ".bin", ".safetensors", ".distcp")
"""What checkpoints are called."""


_guard: Guard | None = None


def install(report: Report | None = None) -> None:
    """Guards checkpoints from now on; failures of ours go to `report`."""
    global _guard
    _guard = Guard()
    _guard.install(report)
    atexit.register(leave_no_trace)


def leave_no_trace() -> None:
    """Removes the placeholders; for a process that ends without its exit handlers."""
    if _guard is not None:
        _guard.leave_no_trace()


class Guard:
    def __init__(self) -> None:
        self.started = time.time()
        self.saved: dict[str, Saved | SavedTensors] = {}
        self.unwritten: set[str] = set()
        """Paths that were saved and cannot be given back."""
        self.empty: set[str] = set()
        """Paths of placeholders."""
        self.process = os.getpid()
        self.remove = os.remove
        self.said: set[str] = set()

    def install(self, report: Report | None) -> None:
        replace(torch, "save", self._saving(torch.save, "torch.save"))
        replace(torch, "load", self._loading(torch.load))
        replace(torch.jit, "save", self._skipping(torch.jit.save, "f", "torch.jit.save"))
        replace(torch.onnx, "export", self._skipping(torch.onnx.export, "f", "torch.onnx.export"))
        around_import("safetensors", after=self._guard_safe_open, report=report)
        around_import("safetensors.torch", after=self._guard_safetensors, report=report)
        around_import("torch.distributed.checkpoint", after=self._guard_distributed, report=report)
        for package in ("lightning.fabric", "lightning_fabric"):
            around_import(f"{package}.utilities.cloud_io", after=self._guard_lightning, report=report)
        self._guard_files()

    def _saving(self, save: Callable[..., Any], name: str) -> Callable[..., Any]:
        @functools.wraps(save)
        def remembering(obj: Any, f: Any, *args: Any, **kwargs: Any) -> Any:
            path = _path(f)
            if path is None:
                return save(obj, f, *args, **kwargs)
            self._say(name)
            self._remember(path, Saved.of, obj)
            return None

        return remembering

    def _loading(self, load: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(load)
        def loading(f: Any, map_location: Any = None, *args: Any, **kwargs: Any) -> Any:
            saved = self.saved.get(_path(f) or "")
            if isinstance(saved, Saved):
                return saved.load(map_location)
            return load(f, map_location, *args, **kwargs)

        return loading

    def _skipping(self, save: Callable[..., Any], parameter: str, name: str) -> Callable[..., Any]:
        """Nothing is done at all if it would end in a file."""
        signature = inspect.signature(save)

        @functools.wraps(save)
        def skipping(*args: Any, **kwargs: Any) -> Any:
            path = _path(signature.bind(*args, **kwargs).arguments.get(parameter))
            if path is None:
                return save(*args, **kwargs)
            self._say(name)
            self.unwritten.add(path)
            return None

        return skipping

    def _guard_safetensors(self, module: Any) -> None:
        # `save_model` and `load_model` call these.
        load = module.load_file

        @functools.wraps(module.save_file)
        def save_file(tensors: dict[str, torch.Tensor], filename: Any, *_args: Any, **_kwargs: Any) -> None:
            self._say("safetensors.torch.save_file")
            self._remember(_path(filename) or "", SavedTensors.of, tensors)

        @functools.wraps(load)
        def load_file(filename: Any, device: Any = "cpu", *args: Any, **kwargs: Any) -> dict[str, torch.Tensor]:
            saved = self.saved.get(_path(filename) or "")
            if isinstance(saved, SavedTensors):
                return saved.load(device)
            loaded: dict[str, torch.Tensor] = load(filename, device, *args, **kwargs)
            return loaded

        module.save_file = save_file
        module.load_file = load_file

    def _guard_safe_open(self, module: Any) -> None:
        opening = module.safe_open

        @functools.wraps(opening, updated=())
        def safe_open(filename: Any, framework: Any = "pt", device: Any = "cpu", *args: Any, **kwargs: Any) -> Any:
            saved = self.saved.get(_path(filename) or "")
            if isinstance(saved, SavedTensors):
                return OpenedTensors(saved, device)
            return opening(filename, framework, device, *args, **kwargs)

        module.safe_open = safe_open

    def _guard_distributed(self, module: Any) -> None:
        module.save = self._skipping(module.save, "checkpoint_id", "torch.distributed.checkpoint.save")
        load = module.load
        signature = inspect.signature(load)

        @functools.wraps(load)
        def loading(*args: Any, **kwargs: Any) -> Any:
            if _path(signature.bind(*args, **kwargs).arguments.get("checkpoint_id")) not in self.unwritten:
                load(*args, **kwargs)

        module.load = loading
        if hasattr(module, "async_save"):
            save = self._skipping(module.async_save, "checkpoint_id", "torch.distributed.checkpoint.async_save")

            @functools.wraps(save)
            def async_save(*args: Any, **kwargs: Any) -> Any:
                future = save(*args, **kwargs)
                if future is None:
                    future = Future()
                    future.set_result(None)
                return future

            module.async_save = async_save

    def _guard_lightning(self, module: ModuleType) -> None:
        """Lightning has `torch.save` write to memory, and writes that to a file itself."""
        module._atomic_save = self._saving(module._atomic_save, "Lightning's save")  # type: ignore[attr-defined]
        module._load = self._loading(module._load)  # type: ignore[attr-defined]

    def _guard_files(self) -> None:
        for name in ("rename", "replace"):
            replace(os, name, LikeBuiltin(self._moving(getattr(os, name), keep=False), getattr(os, name)))
        for name in ("copyfile", "copy", "copy2"):
            setattr(shutil, name, self._moving(getattr(shutil, name), keep=True))
        for name in ("remove", "unlink"):
            replace(os, name, LikeBuiltin(self._removing(getattr(os, name)), getattr(os, name)))
        shutil.rmtree = self._removing_folder(shutil.rmtree)  # type: ignore[assignment]

    def _moving(self, move: Callable[..., Any], keep: bool) -> Callable[..., Any]:
        @functools.wraps(move)
        def moving(src: Any, dst: Any, *args: Any, **kwargs: Any) -> Any:
            old, new = _path(src), _path(dst)
            if old is None or new is None:
                return move(src, dst, *args, **kwargs)
            if os.path.isdir(new) and keep:
                new = os.path.join(new, os.path.basename(old))
            if self._forget(old, new, keep=keep):
                if not keep:
                    self._drop_empty(old)
                self._place_empty(new)
                return dst if keep else None
            older = [path for path in ((new,) if keep else (old, new)) if self._is_older(path)]
            if older:
                self._say_kept(older[0])
                return dst if keep else None
            return move(src, dst, *args, **kwargs)

        return moving

    def _removing(self, remove: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(remove)
        def removing(path: Any, *args: Any, **kwargs: Any) -> None:
            place = _path(path)
            if place is not None:
                if self._forget(place):
                    self._drop_empty(place)
                    return
                if self._is_older(place):
                    self._say_kept(place)
                    return
            remove(path, *args, **kwargs)

        return removing

    def _removing_folder(self, rmtree: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(rmtree)
        def removing(path: Any, *args: Any, **kwargs: Any) -> None:
            place = _path(path)
            if place is not None:
                inside = os.path.join(place, "")
                for saved in [*self.saved, *self.unwritten]:
                    if saved == place or saved.startswith(inside):
                        self._forget(saved)
                        self._drop_empty(saved)
                if any(self._is_older(file) for file in _files(place)):
                    self._say_kept(place)
                    return
            rmtree(path, *args, **kwargs)

        return removing

    def _remember(self, path: str, describe: Callable[[Any], Saved | SavedTensors], obj: Any) -> None:
        self.saved.pop(path, None)
        self.unwritten.discard(path)
        try:
            self.saved[path] = describe(obj)
            self._place_empty(path)
        except Exception as error:  # the program goes on, as it would have
            self.unwritten.add(path)
            print(f"oomph: what was saved as {path} cannot be loaded in this run: {error}", file=sys.stderr)

    def _place_empty(self, path: str) -> None:
        """Where there is nothing yet and something could be written."""
        with contextlib.suppress(OSError), open(path, "xb"):
            self.empty.add(path)

    def _drop_empty(self, path: str) -> None:
        if path in self.empty:
            self.empty.discard(path)
            with contextlib.suppress(OSError):
                if os.path.getsize(path) == 0:
                    self.remove(path)

    def leave_no_trace(self) -> None:
        """Removes the placeholders; a forked child leaves that to its parent."""
        if os.getpid() == self.process:
            for path in list(self.empty):
                self._drop_empty(path)

    def _forget(self, path: str, new: str | None = None, *, keep: bool = False) -> bool:
        """Whether a path was saved in this run; if so, it is gone from now on, or also or only under a new name."""
        if path not in self.saved and path not in self.unwritten:
            return False
        saved = self.saved.get(path)
        if not keep:
            self.saved.pop(path, None)
            self.unwritten.discard(path)
        if saved is not None and new is not None:
            self.saved[new] = saved
        elif new is not None:
            self.unwritten.add(new)
        return True

    def _is_older(self, path: str) -> bool:
        """Whether a path is a checkpoint of an earlier run."""
        try:
            # Not the time of the content, which files from archives and copies bring along.
            return path.endswith(SUFFIXES) and os.stat(path).st_ctime < self.started
        except OSError:
            return False

    def _say(self, name: str) -> None:
        if name not in self.said:
            self.said.add(name)
            print(f"oomph: {name} writes nothing: on an emulated GPU values are not real (--keep-files)", file=sys.stderr)

    def _say_kept(self, path: str) -> None:
        print(f"oomph: {path} is a checkpoint of another run and was left alone", file=sys.stderr)


def _path(target: Any) -> str | None:
    """Where something is written to; nowhere if it stays in memory, as in an `io.BytesIO`."""
    if not isinstance(target, (str, bytes, os.PathLike)):
        target = getattr(target, "name", None)
        if not isinstance(target, (str, bytes)):
            return None
    return os.path.realpath(os.fsdecode(target))


def _files(folder: str) -> Iterator[str]:
    for place, _, names in os.walk(folder):
        yield from (os.path.join(place, name) for name in names)
