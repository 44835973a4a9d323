"""What vLLM, SGLang and torch_memory_saver do in this process, seen by the methods that are looked up: nothing is called in
another way, and nothing of ours is in a traceback."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

from ..interpreter.patching import Noted

GENERATE = "generate"
_PROFILE = "profile"
_CAPTURE = "graph capture"
_WEIGHT_SYNC = dict.fromkeys(
    (
        "reload_weights",
        "update_weights",
        "update_weights_from_disk",
        "update_weights_from_distributed",
        "update_weights_from_ipc",
        "update_weights_from_tensor",
    ),
    "weight sync",
)
_VLLM = {
    "load_model": "load weights",
    "determine_available_memory": _PROFILE,
    "determine_num_available_blocks": _PROFILE,
    "initialize_cache": "KV cache",
    "initialize_from_config": "KV cache",
    "compile_or_warm_up_model": _CAPTURE,
    "execute_model": GENERATE,
    "sleep": "sleep",
    "wake_up": "wake",
    **_WEIGHT_SYNC,
}
_SGLANG = {
    "load_model": "load weights",
    "init_memory_pool": "KV cache",
    "init_cuda_graphs": _CAPTURE,
    "init_device_graphs": _CAPTURE,
    "forward_batch_generation": GENERATE,
    **_WEIGHT_SYNC,
}
_SAVER = {"pause": "sleep", "resume": "wake"}

_METHODS = (
    ("vllm.v1.worker.gpu_worker", "Worker", _VLLM),
    ("vllm.worker.worker", "Worker", _VLLM),
    ("vllm.device_allocator.cumem", "CuMemAllocator", _VLLM),
    ("sglang.srt.managers.tp_worker", "BaseTpWorker", _SGLANG),
    ("sglang.srt.managers.tp_worker", "TpModelWorker", _SGLANG),
    ("sglang.srt.model_executor.model_runner", "ModelRunner", _SGLANG),
    ("torch_memory_saver.entrypoint", "TorchMemorySaver", _SAVER),
)
"""Modules, classes, and the phases that their methods begin."""

_CALLERS = {
    "generate": GENERATE,
    **{method: phase for method, phase in (_VLLM | _SGLANG).items() if phase in (GENERATE, _PROFILE, _CAPTURE)},
}
"""What a module is called for without gradients, by the functions around the call: of Transformers, vLLM, SGLang, and of programs
that name theirs alike."""
_MAX_DEPTH = 64
"""Frames that are looked at for such a function."""


class Engines:
    """Calls `began` with the name of a phase."""

    def __init__(self, began: Callable[[str], None]) -> None:
        self._began = began
        self._left = list(_METHODS)
        self._undo: list[Callable[[], None]] = []

    def install(self) -> None:
        """For what is imported by now."""
        for entry in list(self._left):
            module, name, methods = entry
            kind: Any = getattr(sys.modules.get(module), name, None)
            if kind is not None:
                self._left.remove(entry)
                for method in methods.keys() & vars(kind).keys():
                    self._note(kind, method, methods[method])

    def remove(self) -> None:
        while self._undo:
            self._undo.pop()()

    def _note(self, kind: Any, method: str, phase: str) -> None:
        original = vars(kind)[method]
        noted = Noted(lambda _: self._began(phase), original)
        setattr(kind, method, noted)

        def undo() -> None:
            if vars(kind).get(method) is noted:
                setattr(kind, method, original)

        self._undo.append(undo)


def called_for(frame: FrameType | None) -> str | None:
    """What the functions around a call do, if that is known. An engine that starts runs batches as well."""
    found = None
    for _ in range(_MAX_DEPTH):
        if frame is None:
            break
        name = _CALLERS.get(frame.f_code.co_name)
        if name is not None and name != GENERATE:
            return name
        found = found or name
        frame = frame.f_back
    return found
