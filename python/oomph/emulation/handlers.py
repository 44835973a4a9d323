"""What happens with the values of one operator's tensors when it runs (values.py says why).

Each handler runs the operator exactly once, and nothing that fails in a handler's own work reaches the program.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch

from . import made_up
from .device_memory import KNOWN, MADE_UP, UNKNOWN, DeviceMemory, span, twin
from .dispatch_keys import own_work
from .operators import Operator
from .reads import Reads

Args = tuple[Any, ...]
Kwargs = dict[str, Any]
Handler = Callable[[Operator, Any, Args, Kwargs], Any]
"""Runs an operator, given the keys of those who come after us."""

KINDS = {UNKNOWN: "unknown", MADE_UP: "made up"}

# Of other types (complex, quantized, 8-bit floats) no values are computed.
_INTEGERS = {torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64}
_FLOATS = {torch.float16, torch.bfloat16, torch.float32, torch.float64}
_MAX_INTEGER_BYTES = 4 << 20
_MAX_FLOAT_BYTES = 4 << 10
# `torch.rand(…) < p`: masks come from random numbers.
_MAX_RANDOM_FLOAT_BYTES = 1 << 20
# Masks can be floating point too: `labels[:, None].eq(labels).float()`. Their values are whole numbers, which is rare in other
# large tensors.
_MAX_INTEGRAL_FLOAT_BYTES = 1 << 20
# Values computed from made-up ones, such as the gates of a router: counts of them have to agree with `nonzero`.
_MAX_MADE_UP_FLOAT_BYTES = 256 << 10
# What the library itself keeps of copies.
_MAX_COPIED_FLOAT_BYTES = 64 << 10

# Slow on the CPU: of made-up values, only small results are computed.
_EXPENSIVE = {
    f"aten::{name}"
    for name in ("mm", "bmm", "mv", "addmm", "addbmm", "baddbmm", "addmv", "dot", "linear", "convolution_overrideable",
                 "convolution", "_convolution", "cdist", "_cdist_forward", "_trilinear")
}  # fmt: skip

# They copy their first argument, which we see, and then write into the copy, which we do not.
_WRITING_INTO_COPIES = {
    f"aten::{name}"
    for name in (
        "scatter", "scatter_add", "scatter_reduce", "index_put", "index_add", "index_copy", "index_fill", "index_reduce",
        "masked_fill", "masked_scatter", "put", "slice_scatter", "select_scatter", "diagonal_scatter", "as_strided_scatter",
    )
}  # fmt: skip

_CPU = torch.device("cpu")
_CPU_KERNELS = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)

capturing: Callable[[], bool] = torch._C._cuda_isCurrentStreamCapturing


def tensors_in(values: Any) -> list[torch.Tensor]:
    """The tensors of a result or of an argument, in order."""
    if isinstance(values, torch.Tensor):
        return [values]
    if isinstance(values, (tuple, list)):
        return [tensor for value in values for tensor in tensors_in(value)]
    return []


def _small(tensor: torch.Tensor, floats: int = _MAX_FLOAT_BYTES) -> bool:
    """Whether a tensor is small enough to compute with, given the limit for floating point."""
    dtype = tensor.dtype
    limit = floats if dtype in _FLOATS else _MAX_INTEGER_BYTES if dtype in _INTEGERS else -1
    return tensor.nbytes <= limit and span(tensor) <= limit


def _integral(tensor: torch.Tensor) -> bool:
    """Whether a floating-point tensor on the CPU has whole numbers only; the first values decide for most that do not."""
    with own_work():
        flat = tensor.detach().reshape(-1)
        head = flat[:16]
        return bool((head == head.round()).all()) and bool((flat == flat.round()).all())


def _is_kept(content: torch.Tensor) -> bool:
    """Whether known values are kept: those of larger tensors only if they are integral."""
    return _small(content) or content.dtype not in _FLOATS or _integral(content)


def _is_mask_like(tensor: torch.Tensor, content: torch.Tensor | None = None) -> bool:
    """Whether a tensor, or what is to be written to it, is of integral numbers and small enough to compute with."""
    if tensor.dtype not in _FLOATS or not _small(tensor, _MAX_INTEGRAL_FLOAT_BYTES):
        return False
    with own_work():
        source = twin(tensor) if content is None else content
    return source.dtype in _INTEGERS or (source.dtype in _FLOATS and _integral(source))


class State(threading.local):
    """What an operator tells those that it calls."""

    quiet: int = 0
    """Above 0, reads of the device are not the program's."""
    count: int | None = None
    """How many flags hold, for the next `nonzero`."""


class Handlers:
    def __init__(self, library: ctypes.CDLL, unknown: int) -> None:
        self.memory = DeviceMemory(library)
        self.unknown = unknown
        self.reads = Reads()
        self.state = State()
        # The program's own generators give what they would give without us.
        self.generator = torch.Generator("cpu")
        self.generator.manual_seed(unknown)
        made_up.uneven = bool(unknown)

    def any(self, operator: Operator, below: Any, args: Args, kwargs: Kwargs) -> Any:
        """Most operators: computed if all inputs are small and hold values, otherwise the results are unknown."""
        value, copies = self._inputs(operator, args, kwargs)
        result = operator.run(below, *args, **kwargs)
        if value == UNKNOWN or not self._compute(operator, args, kwargs, result, value, copies):
            self.forget(operator, args, kwargs)
            if operator.name in _WRITING_INTO_COPIES:
                self._forget_all(tensors_in(result))
            make_up = made_up.RESULTS.get(operator.name)
            if operator.name in made_up.COMPARISONS and isinstance(result, torch.Tensor) and result.numel() == 1:
                self._compare(operator, args, kwargs, result)
            elif make_up is not None:
                self._make_up(make_up, operator, args, kwargs, result)
        return result

    def opaque(self, operator: Operator, below: Any, args: Args, kwargs: Kwargs) -> Any:
        """Operators that only a kernel can compute."""
        result = operator.run(below, *args, **kwargs)
        self.forget(operator, args, kwargs)
        return result

    def factory(self, operator: Operator, below: Any, args: Args, kwargs: Kwargs) -> Any:
        """Tensors out of nothing, on any device."""
        result = operator.run(below, *args, **kwargs)
        try:
            if result.is_cuda and not capturing():
                if operator.computable:
                    self._compute(operator, args, kwargs, result, KNOWN, {})
                elif _small(result, _MAX_COPIED_FLOAT_BYTES):
                    # What the library copies here by itself, for other processes, then counts.
                    self.memory.begin(result)
        except Exception:
            pass
        return result

    def fill(self, operator: Operator, below: Any, args: Args, kwargs: Kwargs) -> Any:
        """`fill_` and `_foreach_zero_`: zeros of any size are known, since they take no host memory."""
        zeros = len(args) == 1 or (isinstance(args[1], (int, float)) and args[1] == 0)
        if not zeros or capturing():
            return self.any(operator, below, args, kwargs)
        result = operator.run(below, *args, **kwargs)
        try:
            for tensor in tensors_in(args[0]):
                self.memory.zero(tensor)
        except Exception:
            self.forget(operator, args, kwargs)
        return result

    def resize(self, operator: Operator, below: Any, args: Args, kwargs: Kwargs) -> Any:
        """What was known of a tensor stays known, also where it gets other memory: its bytes are copied there."""
        tensor = args[0]
        before = _address(tensor)
        kept = tensor.untyped_storage().nbytes() if self.memory.is_noted(tensor) else None
        result = operator.run(below, *args, **kwargs)
        if _address(tensor) != before:
            self.memory.end(before)
            if kept is not None:
                self.memory.moved(tensor, kept)
        return result

    def copy(self, operator: Operator, below: Any, args: Args, kwargs: Kwargs) -> Any:
        """`copy_`, between any two devices."""
        to, source = args[0], args[1]
        value, content, vouched, by_bytes = UNKNOWN, None, False, False
        try:
            if not capturing():
                by_bytes = self._is_copied_by_bytes(to, source)
                value = self.memory.value(source) if source.is_cuda else KNOWN
                vouched = source.is_cuda and not to.is_cuda and self.memory.is_noted(source)
                if value != KNOWN and not to.is_cuda:
                    self._note_read(operator, value, source.nbytes)
                if value != UNKNOWN and self._can_copy(to, source):
                    with own_work():
                        content = twin(source).clone() if source.is_cuda else source
        except Exception:
            content = None
        result = self._run_vouched(operator, below, args, kwargs) if vouched else operator.run(below, *args, **kwargs)
        if self.unknown and value == UNKNOWN and not to.is_cuda and _small(to, _MAX_COPIED_FLOAT_BYTES):
            with own_work():
                to.fill_(self.unknown)
        if (content is None or not self.write(to, content, value)) and to.is_cuda and not (by_bytes and value == UNKNOWN):
            self.forget(operator, args, kwargs)
        return result

    def _can_copy(self, to: torch.Tensor, source: torch.Tensor) -> bool:
        """Whether the values of a copy are worth having: few, or those of a mask."""
        if _small(to, _MAX_COPIED_FLOAT_BYTES) and _small(source, _MAX_COPIED_FLOAT_BYTES):
            return True
        limit = _MAX_INTEGRAL_FLOAT_BYTES
        if not (to.is_cuda and _small(to, limit) and _small(source, limit)):
            return False
        with own_work():
            content = twin(source) if source.is_cuda else source
        return _is_mask_like(to, content) if to.dtype in _FLOATS else _is_kept(content)

    def _is_copied_by_bytes(self, to: torch.Tensor, source: torch.Tensor) -> bool:
        """Whether the library sees the copy as bytes: it then knows of each byte what it knew of the source's, which may be
        known in part."""
        if not (to.is_cuda and source.is_cuda and to.dtype == source.dtype and to.shape == source.shape):
            return False
        is_plain = to.is_contiguous() and source.is_contiguous() and not source.is_conj() and not source.is_neg()
        if is_plain and self.memory.is_noted(source):
            self.memory.begin(to)
            return True
        return False

    def read(self, operator: Operator, below: Any, args: Args, kwargs: Kwargs) -> Any:
        """`_local_scalar_dense`: what `item()`, `bool()`, `int()` come down to."""
        value = UNKNOWN
        try:
            value = self.memory.value(args[0])
            if value != KNOWN and not self.state.quiet and not capturing():
                self._note_read(operator, value, args[0].nbytes)
        except Exception:
            pass
        if value != UNKNOWN:
            return self._run_vouched(operator, below, args, kwargs)
        number = operator.run(below, *args, **kwargs)
        return type(number)(self.unknown) if self.unknown and not self.state.quiet else number

    def _run_vouched(self, operator: Operator, below: Any, args: Args, kwargs: Kwargs) -> Any:
        """Runs an operator that reads memory of which we know whose it is."""
        self.memory.vouch(True)
        try:
            return operator.run(below, *args, **kwargs)
        finally:
            self.memory.vouch(False)

    def lift(self, operator: Operator, below: Any, args: Args, kwargs: Kwargs) -> Any:
        """`lift_fresh`: what `torch.tensor` ends with. Its copy to the device hides from us; the library has noted it."""
        result = operator.run(below, *args, **kwargs)
        try:
            if result.is_cuda:
                self.memory.begin(result, with_library=True)
        except Exception:
            pass
        return result

    def machinery(self, operator: Operator, below: Any, args: Args, kwargs: Kwargs) -> Any:
        """PyTorch's own checks: that a factorisation succeeded. Zeros say so."""
        self.state.quiet += 1
        try:
            return operator.run(below, *args, **kwargs)
        finally:
            self.state.quiet -= 1

    def unscale(self, operator: Operator, below: Any, args: Args, kwargs: Kwargs) -> Any:
        """`GradScaler` looks for gradients that are not finite. Unknown ones are finite, so the flag stays as it is."""
        flag = args[1]
        value, copies = self._inputs(operator, args, kwargs)
        before = self._value_or_unknown(flag)
        result = operator.run(below, *args, **kwargs)
        if value == UNKNOWN or not self._compute(operator, args, kwargs, result, value, copies):
            self.forget(operator, args, kwargs)
            if before != UNKNOWN:
                self.memory.keep(flag, MADE_UP)
        return result

    def _value_or_unknown(self, tensor: torch.Tensor) -> int:
        try:
            return UNKNOWN if capturing() else self.memory.value(tensor)
        except Exception:
            return UNKNOWN

    def forget(self, operator: Operator, args: Args, kwargs: Kwargs) -> None:
        """What the operator has written over is a kernel's now. Of new tensors nothing is known anyway."""
        try:
            for place, name in operator.written:
                self._forget_all(tensors_in(args[place] if place < len(args) else kwargs.get(name)))
        except Exception:
            pass

    def _forget_all(self, tensors: list[torch.Tensor]) -> None:
        for tensor in tensors:
            for plain in _memory_of(tensor):
                self.memory.forget(plain)

    def known_inputs(self, operator: Operator, args: Args, kwargs: Kwargs) -> int:
        """What is known of all inputs together; unknown also if one of them is too large to compute with."""
        value = MADE_UP if operator.random else KNOWN
        for place, given in enumerate(args):
            if isinstance(given, torch.Tensor):
                value = self._with(value, given, operator, operator.names[place])
            elif isinstance(given, (list, tuple)):
                for tensor in tensors_in(given):
                    value = value and self._with(value, tensor, operator, operator.names[place])
            if value == UNKNOWN:
                return UNKNOWN
        for name, given in kwargs.items():
            for tensor in tensors_in(given):
                value = value and self._with(value, tensor, operator, name)
        return UNKNOWN if value and capturing() else value

    def _with(self, value: int, tensor: torch.Tensor, operator: Operator, name: str) -> int:
        """What is known of this tensor and others together."""
        if not tensor.is_cuda:
            return value
        if not _small(tensor, _MAX_RANDOM_FLOAT_BYTES):
            return UNKNOWN
        if name in operator.overwritten:
            return value
        own = self.memory.value(tensor)
        if own == KNOWN and not _small(tensor) and not _is_mask_like(tensor):
            return UNKNOWN
        return own and max(own, value)

    def _inputs(self, operator: Operator, args: Args, kwargs: Kwargs) -> tuple[int, Kwargs]:
        """What is known of the inputs, and copies of those that the operator will change."""
        copies: Kwargs = {}
        try:
            value = self.known_inputs(operator, args, kwargs)
            if value != UNKNOWN and len(operator.written) > len(operator.overwritten):
                with own_work():
                    for place, name in operator.written:
                        given = args[place] if place < len(args) else kwargs.get(name)
                        if name not in operator.overwritten and given is not None:
                            copies[name] = _converted(given, lambda tensor: twin(tensor).clone())
            return value, copies
        except Exception:
            return UNKNOWN, copies

    def on_cpu(self, operator: Operator, args: Args, kwargs: Kwargs, copies: Kwargs) -> Any:
        """Runs an operator on the CPU, with twins for the tensors that there are no copies of."""
        cpu_args = [copies[name] if name in copies else _converted(given, twin) for name, given in zip(operator.names, args)]
        cpu_kwargs = {name: copies[name] if name in copies else _converted(given, twin) for name, given in kwargs.items()}
        if operator.random:
            cpu_kwargs["generator"] = self.generator
        return operator.run(_CPU_KERNELS, *cpu_args, **cpu_kwargs)

    def _compute(self, operator: Operator, args: Args, kwargs: Kwargs, result: Any, value: int, copies: Kwargs) -> bool:
        """Computes an operator's results and writes them to the device; False if that cannot be done."""
        try:
            floats = _MAX_FLOAT_BYTES
            if value == MADE_UP and operator.random:
                floats = _MAX_RANDOM_FLOAT_BYTES
            elif value == MADE_UP and operator.name not in _EXPENSIVE:
                floats = _MAX_MADE_UP_FLOAT_BYTES
            elif value == KNOWN:
                floats = _MAX_INTEGRAL_FLOAT_BYTES
            outputs = tensors_in(result)
            if not all(_small(output, floats) for output in outputs):
                return False
            with own_work():
                for place, name in operator.written:
                    given = args[place] if place < len(args) else kwargs.get(name)
                    if name not in copies and given is not None:
                        copies[name] = _converted(given, _empty_like)
                computed = self.on_cpu(operator, args, kwargs, copies)
            if value == KNOWN and not all(map(_is_kept, tensors_in(computed))):
                return False
            for place, name in operator.written:
                given = args[place] if place < len(args) else kwargs.get(name)
                if not self.write_all(tensors_in(given), tensors_in(copies.get(name)), value):
                    return False
            return not operator.fresh or self.write_all(outputs, tensors_in(computed), value)
        except Exception:
            return False

    def write_all(self, outputs: list[torch.Tensor], contents: list[torch.Tensor], value: int) -> bool:
        return len(outputs) == len(contents) and all(
            self.write(output, content, value) for output, content in zip(outputs, contents)
        )

    def write(self, output: torch.Tensor, content: torch.Tensor, value: int) -> bool:
        """Writes values into a tensor's memory; False if they do not fit."""
        try:
            if output.shape != content.shape and content.shape != output.shape[output.dim() - content.dim() :]:
                return False
            with own_work():
                (twin(output) if output.is_cuda else output).copy_(content)
            if output.is_cuda:
                self.memory.keep(output, value)
            return True
        except Exception:
            return False

    def _make_up(self, make_up: made_up.MakeUp, operator: Operator, args: Args, kwargs: Kwargs, result: Any) -> None:
        try:
            outputs = tensors_in(result)
            # Rows of probabilities; attention has more dimensions.
            floats = _MAX_MADE_UP_FLOAT_BYTES if outputs[-1].dim() < 3 else _MAX_FLOAT_BYTES
            if capturing() or not _small(outputs[-1], floats):
                return
            with own_work():
                made = make_up(operator.bound(args, kwargs), outputs)
            if made is not None:
                place, content = made
                self.write(outputs[place], content, MADE_UP)
        except Exception:
            pass

    def _compare(self, operator: Operator, args: Args, kwargs: Kwargs, result: torch.Tensor) -> None:
        """Compares, taking each unknown number as the value it reads as."""
        try:
            if capturing() or not result.is_cuda:
                return
            with own_work():
                assumed = {
                    name: torch.full(given.shape, self.unknown, dtype=given.dtype, device="cpu")
                    for name, given in operator.bound(args, kwargs).items()
                    if isinstance(given, torch.Tensor) and given.is_cuda and self.memory.value(given) == UNKNOWN
                }
                self.write(result, self.on_cpu(operator, args, kwargs, assumed), MADE_UP)
        except Exception:
            pass

    def _note_read(self, operator: Operator, value: int, size: int) -> None:
        self.reads.note(operator.name, KINDS[value], size)


def _address(tensor: torch.Tensor) -> int:
    """Address of a tensor; 0 for a wrapper subclass without memory."""
    try:
        return tensor.data_ptr()
    except Exception:
        return 0


def _memory_of(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """The tensors on the device that a tensor consists of: itself, or what a subclass has inside."""
    if hasattr(tensor, "__tensor_flatten__"):
        for name in tensor.__tensor_flatten__()[0]:
            yield from _memory_of(getattr(tensor, name))
    elif tensor.is_cuda and not tensor.is_sparse:
        yield tensor


def _converted(given: Any, convert: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """An argument for the CPU: tensors of the device converted, everything else as it is."""
    if isinstance(given, torch.Tensor):
        return convert(given) if given.is_cuda else given
    if isinstance(given, (list, tuple)):
        return [_converted(one, convert) for one in given]
    return _CPU if isinstance(given, torch.device) else given


def _empty_like(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty(tensor.shape, dtype=tensor.dtype, device=_CPU)
