"""What vLLM, SGLang and torch_memory_saver do in this process, seen by the methods that are looked up: nothing is called in
another way, and nothing of ours is in a traceback."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from ..interpreter.patching import Noted

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
    "determine_available_memory": "profile",
    "determine_num_available_blocks": "profile",
    "initialize_cache": "KV cache",
    "initialize_from_config": "KV cache",
    "compile_or_warm_up_model": "graph capture",
    "execute_model": "generate",
    "sleep": "sleep",
    "wake_up": "wake",
    **_WEIGHT_SYNC,
}
_SGLANG = {
    "load_model": "load weights",
    "init_memory_pool": "KV cache",
    "init_cuda_graphs": "graph capture",
    "init_device_graphs": "graph capture",
    "forward_batch_generation": "generate",
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
