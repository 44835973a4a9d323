"""What `oomph attach` does in a process: a recording from now on, or of this moment, after which nothing of ours is left.

All of it runs in a thread of ours, except what looks at tensors or changes PyTorch: that is done by the main thread, between two
instructions of the program, as Python would run a signal handler there. Only while the main thread waits in the system, outside
PyTorch, does our thread do that as well.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import shutil
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType
from typing import Any

import torch
from torch.optim import optimizer

from ..interpreter import system
from ..interpreter.errors import keep
from ..interpreter.frames import callers, is_anywhere, outwards
from ..interpreter.pause import unobserved
from ..recording import messages, recorder
from ..recording.cpu_history import CpuHistory
from ..recording.cuda_history import CudaHistory
from ..recording.history import MAX_EVENTS
from ..recording.messages import words
from ..recording.recorder import Options, Recorder
from .settings import Settings

_POLL_SECONDS = 0.2
"""How often to look whether `oomph` is still there, and whether the time is over."""
_RETRY_SECONDS = 0.02
_IDLE_SECONDS = 0.5
"""How long the main thread must not have moved to be taken for idle."""
_OPERATORS = (
    "torch._library",
    "torch._ops",
    "torch._subclasses",
    "torch.autograd",
    "torch.library",
    "torch.utils._python_dispatch",
)
"""Modules of functions that call operators, or are called by them."""
_COMPILERS = (
    "torch._dynamo.convert_frame",
    "torch.export",
    "torch.fx._symbolic_trace",
    "torch.jit._trace",
    "torch.onnx",
)
"""Modules of functions that trace a program. What they have seen of PyTorch has to stay as it is until they are done: Dynamo, for
example, writes guards for the function that calls modules, and fails if it is another one by then."""
_MAX_SECONDS_TO_LEAVE = 5.0
"""How long to wait for the main thread before PyTorch's functions are put back from this one."""


@dataclass(frozen=True)
class Attachment:
    folder: str
    """The private folder with the files of this attachment."""
    lock: str
    """File that `oomph` keeps locked while it is there."""
    seconds: float | None
    """How long to record; None writes what there is now."""
    steps: int | None
    """Number of steps after which to end earlier."""
    timeout: float
    """How long to wait for the main thread."""
    has_holders: bool


class Stopped(Exception):
    """`oomph` has ended, or the main thread does not come."""


def run(settings: dict[str, Any], attachment: dict[str, Any], unload: Callable[[], None]) -> None:
    """Returns when nothing is left. `unload` takes our modules out of the interpreter."""
    of = Settings(**settings)
    asked = Attachment(**attachment)
    messages.listener = of.report_problem
    system.after_fork(lambda: _forget(unload))
    try:
        with _Oomph(asked.lock) as oomph:
            of.note("loaded", "")
            _Visit(of, asked, oomph).make()
    except Stopped as stopped:
        of.note("stopped", str(stopped))
    except Exception as error:
        of.note("stopped", words(error))
    finally:
        _forget(unload)
        of.note("ended", "")
        if not _is_held(asked.lock):
            shutil.rmtree(asked.folder, ignore_errors=True)


def _forget(unload: Callable[[], None]) -> None:
    recorder.forget_forks()
    system.forget_forks()
    unload()


class _Oomph:
    """Whether the `oomph` that has come is still there: it holds a lock, which the system releases if it is killed."""

    def __init__(self, path: str) -> None:
        self._descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)

    def __enter__(self) -> _Oomph:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)

    def check(self) -> None:
        if _is_free(self._descriptor):
            raise Stopped("`oomph` has ended")


def _is_free(descriptor: int) -> bool:
    import fcntl  # not on every system that reads recordings

    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return False
    fcntl.flock(descriptor, fcntl.LOCK_UN)
    return True


def _is_held(path: str) -> bool:
    with contextlib.suppress(Stopped, OSError), _Oomph(path) as oomph:
        oomph.check()
        return True
    return False


class _Visit:
    def __init__(self, settings: Settings, asked: Attachment, oomph: _Oomph) -> None:
        self._settings = settings
        self._asked = asked
        self._oomph = oomph
        self._recorder: Recorder | None = None
        self._cpu_history: CpuHistory | None = None

    def make(self) -> None:
        if recorder.active is not None or self._has_own_recorder():
            raise Stopped("the program records itself with `oomph.record()`")
        try:
            # The history of CPU memory is a mode of the thread that starts it.
            is_mode = self._asked.seconds is not None and not torch.cuda.is_initialized()
            self._in_main_thread(self._begin, self._asked.timeout, may_be_idle=not is_mode)
            if self._recorder is not None and self._asked.seconds is not None:
                self._record(self._recorder, self._asked.seconds)
        finally:
            of, self._recorder = self._recorder, None
            if of is not None:
                self._settings.note("written", f"{of.last_dump_seconds:.3f}")
                self._leave(of)

    def _has_own_recorder(self) -> bool:
        found = sys.modules.get("oomph.recording.recorder")
        return getattr(found, "active", None) is not None

    def _begin(self) -> None:
        has_gpu = torch.cuda.is_initialized()
        most = self._settings.max_events or MAX_EVENTS
        self._cpu_history = None if has_gpu else CpuHistory(most, may_leave_for_cuda=_is_outside_operators)
        history = self._cpu_history or CudaHistory(most, ends_in_any_thread=True)
        options = Options(
            self._settings.output,
            is_fresh=True,
            has_heap=self._asked.has_holders,
            is_live=False,
            has_host_memory=False,
            is_guest=True,
        )
        of = self._recorder = Recorder(options, history, problem=self._settings.report_problem)
        if self._asked.seconds is not None:
            of.install()
            return
        history.look()
        if not self._dump(of):
            raise Stopped("no memory of tensors is known in this process")

    def _dump(self, of: Recorder) -> bool:
        self._settings.note("writing", "")
        return of.dump("asked")

    def _record(self, of: Recorder, seconds: float) -> None:
        self._settings.note("recording", of.history.kind)
        end = time.monotonic() + seconds
        count = -1
        while (left := end - time.monotonic()) > 0 and (self._asked.steps is None or of.count < self._asked.steps):
            if of.count != count:
                count = of.count
                self._settings.note("steps", str(count))
            time.sleep(min(_POLL_SECONDS, left))
            self._oomph.check()
            if of.history.kind == "cpu" and torch.cuda.is_initialized():
                self._settings.report_problem("the program began to use CUDA, and memory of the CPU was recorded until then")
                break
        self._settings.note("steps", str(of.count))
        # The thread that takes steps is the one whose tensors these are: it comes first.
        dump = functools.partial(self._dump, of)
        in_main_thread = functools.partial(self._in_main_thread, dump, self._asked.timeout)
        is_written = of.request_dump("asked", lambda: bool(in_main_thread())) if of.count else in_main_thread()
        if not is_written:
            raise Stopped("no memory of tensors is known in this process")

    def _leave(self, of: Recorder) -> None:
        try:
            self._in_main_thread(of.leave, _MAX_SECONDS_TO_LEAVE, needs_oomph=False)
        except Stopped:
            # The mode of a history of CPU memory stays where it is then, and does nothing.
            while _is_in_use():
                time.sleep(_RETRY_SECONDS)
            of.leave()

    def _modes(self) -> int:
        return self._cpu_history.modes if self._cpu_history else 0

    def _in_main_thread(
        self, function: Callable[[], object], seconds: float, *, needs_oomph: bool = True, may_be_idle: bool = True
    ) -> object:
        """`may_be_idle`: whether this thread calls `function` while the main thread waits for a request or a lock."""
        call = _PendingCall(function, self._modes)
        end = time.monotonic() + seconds
        call.ask()
        wait = _MainThreadWait()
        while not call.is_done.wait(_RETRY_SECONDS if call.is_refused else _POLL_SECONDS):
            if call.is_refused:
                call.ask()
            if may_be_idle and wait.goes_on() and not _is_in_use() and call.take_back():
                return function()
            try:
                if needs_oomph:
                    self._oomph.check()
                if time.monotonic() > end:
                    raise Stopped("the main thread is busy")
            except Stopped:
                if call.take_back():
                    raise
                call.is_done.wait()
        if call.error is not None:
            raise call.error
        return call.result


class _PendingCall:
    """A call that the interpreter makes in the main thread, as soon as that comes between two instructions.

    What the interpreter calls is `PyObject_IsTrue`. So no code of ours can be freed while it runs, and an exception that a signal
    handler of the program raises meanwhile goes on to the program.
    """

    def __init__(self, function: Callable[[], object], modes: Callable[[], int]) -> None:
        self._modes = modes
        """How many modes of PyTorch the main thread has where it is in none of the program's."""
        self.is_done = threading.Event()
        self.is_refused = False
        """Whether the main thread was where nothing may be done, and is to be asked again."""
        self.error: Exception | None = None
        self.result: object = None
        self._waiting = [function]

    def ask(self) -> None:
        self.is_refused = False
        # The interpreter may come to it long after everybody else has forgotten it.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self))
        while ctypes.pythonapi.Py_AddPendingCall(ctypes.pythonapi.PyObject_IsTrue, ctypes.py_object(self)) != 0:
            time.sleep(_RETRY_SECONDS)  # too many others wait

    def take_back(self) -> bool:
        """Whether it will not be made any more."""
        with contextlib.suppress(IndexError):
            self._waiting.pop()
            return True
        return False

    def __bool__(self) -> bool:
        ctypes.pythonapi.Py_DecRef(ctypes.py_object(self))
        with unobserved():
            self._make()
        return False

    def _make(self) -> None:
        try:
            is_refused = bool(self._waiting) and not _is_safe_point(self._modes())
        except Exception as error:
            keep(error)
            is_refused = True
        if is_refused:
            self.is_refused = True
            return
        try:
            function = self._waiting.pop()
        except IndexError:
            return
        try:
            self.result = function()
        except Exception as error:
            self.error = error
            keep(error)
        except BaseException:
            self.error = Stopped("the program was interrupted")
            raise
        finally:
            self.is_done.set()


class _MainThreadWait:
    """Whether the main thread waits in the system, for a request or a lock, outside PyTorch."""

    def __init__(self) -> None:
        self._thread = threading.main_thread().ident
        # Python's own `native_id` is that of the parent after a fork.
        self._files = [f"/proc/self/task/{os.getpid()}/{name}" for name in ("syscall", "status")]
        self._where: object = None
        self._since = time.monotonic()

    def goes_on(self) -> bool:
        """Whether it has not moved since `_IDLE_SECONDS`."""
        where = self._look()
        if where is None or where != self._where:
            self._where, self._since = where, time.monotonic()
            return False
        return time.monotonic() - self._since > _IDLE_SECONDS

    def _look(self) -> object:
        try:
            system_call, status = (_content(path) for path in self._files)
        except OSError:
            return None
        # `running` where it is in none. The first number is that of the call, the last two are addresses.
        if system_call.startswith(("running", "-1")):
            return None
        # It may have come back to where it was.
        switches = [line for line in status.splitlines() if "ctxt_switches" in line]
        where = _place(self._thread)
        return where and (where, system_call, switches)


def _place(thread: int | None) -> object:
    """Where a thread is, or None if that is inside PyTorch.

    A frame that is held here keeps the program's tensors alive when it returns. So nothing is done here that would let the
    program go on meanwhile.
    """
    innermost = sys._current_frames().get(thread or 0)
    if any(_module(frame).partition(".")[0] == "torch" for frame in outwards(innermost)):
        return None
    return innermost and (innermost.f_code, innermost.f_lasti)


def _module(frame: FrameType) -> str:
    return str(dict.get(frame.f_globals, "__name__", ""))


def _content(path: str) -> str:
    with open(path) as file:
        return file.read()


def _is_safe_point(modes: int) -> bool:
    """Whether the main thread is not in the middle of what must not be disturbed: the beginning of CUDA, the capture of a CUDA
    graph, a mode of PyTorch, or an operator; and nothing that must not be disturbed goes on in any thread."""
    is_capturing = torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()
    if is_capturing or torch._C._len_torch_dispatch_stack() != modes or _is_in_use():
        return False
    return _is_outside_operators()


def _is_in_use() -> bool:
    """Whether some thread uses what is changed when a recording begins or ends."""
    return _begins_cuda() or is_anywhere(lambda frame: _is_step_of_optimizer(frame) or _is_compiler(frame))


def _is_outside_operators() -> bool:
    """Whether this thread is in no function that an operator has called: PyTorch looks twice at the modes there, and fails if one
    has gone meanwhile."""
    return not any(_module(frame).startswith(_OPERATORS) for frame in callers())


def _begins_cuda() -> bool:
    """Whether a thread initializes CUDA: it goes through the calls that wait for that, and holds a lock."""
    return torch.cuda._initialization_lock.locked()


def _is_step_of_optimizer(frame: FrameType) -> bool:
    """The `step()` of an optimizer goes through its hooks, and fails if some come or go."""
    return frame.f_code.co_name == "wrapper" and frame.f_code.co_filename == optimizer.__file__


def _is_compiler(frame: FrameType) -> bool:
    return _module(frame).startswith(_COMPILERS)
