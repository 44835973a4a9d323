"""`oomph.record()`: the recorder, from inside a program."""

from __future__ import annotations

import functools
import inspect
import os
import sys
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from ..interpreter.system import IS_LINUX
from .alarm import Leak
from .history import MAX_EVENTS
from .messages import say, words
from .on_leak import OnLeak

if TYPE_CHECKING:
    from ..trackers.step_log import StepLog
    from .files import Files
    from .phases import Phase
    from .recorder import Alarm, Recorder

P = ParamSpec("P")
R = TypeVar("R")

DEVICES = ("auto", "cuda", "cpu")
DETAILS = ("auto", "full")
_MAX_PHASE_NAME = 100


class Recording:
    """A recording, from `start()` to `stop()`; or the body of a `with`; or each call of a function that it decorates."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        max_events: int | None,
        labels: bool,
        modules: bool,
        holders: bool,
        own_steps: bool,
        live: bool,
        device: str,
        detail: str,
        on_leak: str | Callable[[Leak], object] | None,
        raise_on_leak: bool,
        log_to: Any,
    ) -> None:
        if device not in DEVICES:
            raise ValueError(f"expected one of {', '.join(DEVICES)} for `device`, found {device!r}")
        if detail not in DETAILS:
            raise ValueError(f"expected one of {', '.join(DETAILS)} for `detail`, found {detail!r}")
        if max_events is not None and max_events < 1:
            raise ValueError(f"expected a positive number for `max_events`, found {max_events}")
        if on_leak is not None and not isinstance(on_leak, str) and not callable(on_leak):
            raise TypeError(f"expected a command or a function for `on_leak`, found {on_leak!r}")
        self.path = os.fspath(path)
        self._max_events = max_events
        self._labels = labels
        self._modules = modules
        self._holders = holders
        self._own_steps = own_steps
        self._live = live
        self._device = device
        self._detail = detail
        self._step_log = None if log_to is None else _step_log(log_to)
        self._on_leak = [OnLeak(on_leak, raise_on_leak)]
        if self._step_log is not None:
            self._on_leak.append(OnLeak(self._step_log.leak_found))
        self._recorder: Recorder | None = None
        self._is_guest = False
        self._depth = 0

    def start(self) -> Recording:
        if self._recorder is not None:
            return self
        try:
            # Under `oomph run` this starts its recorder, if the program has not imported torch before.
            import torch  # noqa: F401
        except Exception as error:
            say(f"nothing is recorded: {words(error)}")
            return self
        host = running()
        if host is not None:
            self._recorder, self._is_guest = host, True
            self._listen_to(host)
            if os.path.abspath(self.path) != host.files.folder:
                say(f"already recording to {host.files.folder}; `{self.path}` is not used")
            return self
        try:
            self._recorder = self._make()
        except Exception as error:
            say(f"nothing is recorded: {words(error)}")
            return self
        self._listen_to(self._recorder)
        self._recorder.install()
        return self

    def _listen_to(self, recorder: Recorder) -> None:
        recorder.on_leak += self._on_leak
        if self._step_log is None:
            return
        # An older version has none.
        if hasattr(recorder, "step_listeners"):
            self._step_log.begin(recorder.history.kind)
            recorder.step_listeners.append(self._step_log.step_ended)
        else:
            say("`log_to` needs an `oomph run` of the same version; nothing is logged")

    def _leave(self, recorder: Recorder) -> None:
        for each in self._on_leak:
            recorder.on_leak.remove(each)
        if self._step_log is not None and self._step_log.step_ended in getattr(recorder, "step_listeners", ()):
            recorder.step_listeners.remove(self._step_log.step_ended)

    def _make(self) -> Recorder:
        from .recorder import Options, Recorder
        from .start import history

        has_holders = self._holders and IS_LINUX
        if self._holders and not has_holders:
            say("what holds tensors is not recorded: it is known on Linux only")
        options = Options(
            self.path,
            tracks_modules=self._modules,
            has_labels=self._labels,
            has_heap=has_holders,
            has_own_steps=self._own_steps,
            has_all_stacks=self._detail == "full",
            is_live=self._live and IS_LINUX,
        )
        chosen = history(self._device, self._max_events or MAX_EVENTS)
        return Recorder(options, chosen, alarm=_alarm)

    def step(self) -> None:
        """Ends a step of the program. If it is never called, an optimizer's steps count."""
        if self._recorder is not None:
            self._recorder.steps.step()

    def dump(self) -> None:
        """Writes what is recorded so far, and continues."""
        if self._recorder is not None:
            self._recorder.dump("asked")

    def stop(self, error: BaseException | None = None) -> None:
        """Writes the recording and ends it; `error`: the exception that ended the recorded part."""
        recorder, self._recorder = self._recorder, None
        if recorder is None:
            return
        self._leave(recorder)
        if self._is_guest:
            self._is_guest = False
            if self._step_log is not None:
                self._step_log.end(None)
            return
        if error is not None:
            recorder.say_failure(error)
        recorder.stop("failed" if recorder.exception else "finished")
        if self._step_log is not None:
            self._step_log.end(None if recorder.files.name is None else recorder.files.path("pickle"))

    def __enter__(self) -> Recording:
        self._depth += 1
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._depth -= 1
        # A function that calls itself is recorded as one call.
        if self._depth == 0:
            self.stop(error)

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        """Records each call of `function`; a later one replaces the recording of an earlier one."""
        return _each_call(function, lambda: self, "oomph.record()")


def record(
    path: str | os.PathLike[str] = "oomph-recording",
    *,
    max_events: int | None = None,
    labels: bool = True,
    modules: bool = True,
    holders: bool = True,
    own_steps: bool = False,
    live: bool = True,
    device: str = "auto",
    detail: str = "auto",
    on_leak: str | Callable[[Leak], object] | None = None,
    raise_on_leak: bool = False,
    log_to: Any = None,
) -> Recording:
    """Records CUDA memory, or CPU tensors where there is no GPU, to the folder `path`.

    `max_events` bounds the history that is kept (a million events unless given). `labels` names parameters, gradients,
    optimizer state, buffers and inputs; `modules` records which module made each block; `holders` writes who holds the
    tensors. With `own_steps` only `step()` ends a step, also before its first call. `live` lets `oomph watch` and
    `oomph exporter` of the same user see the run. `device` is `cuda`, `cpu` or `auto`. `detail="full"` records stacks and
    modules also in steps that repeat the previous ones; otherwise the report shows these with the lines of the step that
    they repeat. `holders` and `live` have an effect on Linux only.

    When memory grows step after step, that is reported once per device, and a recording is written. Then `on_leak` is called
    with an `oomph.Leak`, or is run if it is a shell command, and with `raise_on_leak` the step raises `oomph.MemoryGrows`.

    `log_to` sends the counters of the steps and the findings to a tracker: `"wandb"`, `"mlflow"`, `"tensorboard"` or
    `"opentelemetry"` for what the program has active there; a run, `SummaryWriter` or `MeterProvider` of its own; a function that
    is called with the step and the metrics; or a list of these.

    Nothing else raises into the program: what cannot be recorded or written is reported once on standard error.
    """
    return Recording(
        path,
        max_events=max_events,
        labels=labels,
        modules=modules,
        holders=holders,
        own_steps=own_steps,
        live=live,
        device=device,
        detail=detail,
        on_leak=on_leak,
        raise_on_leak=raise_on_leak,
        log_to=log_to,
    )


class ProgramPhase:
    """A phase of the program: the body of a `with`, or each call of a function that it decorates."""

    def __init__(self, name: str) -> None:
        if not isinstance(name, str):
            raise TypeError(f"expected a string for the name of a phase, found {name!r}")
        if not name.strip() or len(name) > _MAX_PHASE_NAME:
            raise ValueError(f"expected 1 to {_MAX_PHASE_NAME} characters for the name of a phase, found {name[:20]!r}")
        self.name = name
        self._entered: list[tuple[Recorder, Phase | None] | None] = []

    def __enter__(self) -> ProgramPhase:
        recorder = running()
        # An older version has no phases.
        if recorder is None or not hasattr(recorder, "enter_phase"):
            self._entered.append(None)
        else:
            self._entered.append((recorder, recorder.enter_phase(self.name)))
        return self

    def __exit__(self, *_: object) -> None:
        entered = self._entered.pop()
        if entered is not None:
            recorder, phase = entered
            recorder.leave_phase(phase)

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        return _each_call(function, lambda: ProgramPhase(self.name), "oomph.phase(...)")


def phase(name: str) -> ProgramPhase:
    """Names a phase of the program, for `with oomph.phase("rollout"):` and `@oomph.phase("rollout")`.

    The report shows what each phase needs and what stays after it. Inside another phase, the inner one counts. Without a
    recorder, nothing happens.
    """
    return ProgramPhase(name)


def _each_call(function: Callable[P, R], context: Callable[[], Recording | ProgramPhase], name: str) -> Callable[P, R]:
    """`function` with each call of it inside a context; `name`: what to write instead where that cannot be done."""
    if inspect.iscoroutinefunction(function) or inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise TypeError(f"coroutines and generators cannot be decorated: use `with {name}:` inside")

    @functools.wraps(function)
    def within(*args: P.args, **kwargs: P.kwargs) -> R:
        with context():
            return function(*args, **kwargs)

    return within


def _alarm() -> Alarm:
    """Reports each device whose memory grows once, by the rule of `oomph report`."""
    from .. import _native

    alarms: dict[int, _native.Alarm] = {}

    def growing(rows: list[dict[str, int]], files: Files) -> list[Leak]:
        leaks = []
        for row in rows:
            device = row["device"]
            growth = alarms.setdefault(device, _native.Alarm()).step(row["allocated"])
            if growth is not None:
                where = f" on device {device}" if len(rows) > 1 else ""
                numbers = (growth.step, growth.bytes_per_step, growth.allocated)
                leaks.append(Leak(growth.message + where, *numbers, device, files.number or 0, files.folder))
        return leaks

    return growing


def _step_log(log_to: Any) -> StepLog:
    from ..trackers.step_log import StepLog

    return StepLog(log_to, lambda text, error: say(text if error is None else f"{text}: {words(error)}"))


def running() -> Recorder | None:
    """The recorder of this process: ours, or that of an `oomph run` of another version, which has brought its own copy."""
    for module in ("oomph_child.recording.recorder", f"{__package__}.recorder"):
        found = sys.modules.get(module)
        running: Recorder | None = getattr(found, "active", None)
        if running is not None:
            return running
    return None
