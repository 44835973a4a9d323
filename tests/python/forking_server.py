"""Imports torch, then runs programs in forks of itself, as `python` would run them (forking.py)."""

import atexit
import builtins
import ctypes
import gc
import importlib
import importlib.machinery
import importlib.util
import json
import os
import runpy
import selectors
import signal
import socket
import sys
import threading
import types


def imported(path):
    """A module by its path."""
    spec = importlib.util.spec_from_file_location("stash", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def received(connection):
    """The program's arguments, environment, folder and streams."""
    size, streams, _, _ = socket.recv_fds(connection, 8, 3)
    size, request = int.from_bytes(size, "big"), b""
    while len(request) < size:
        part = connection.recv(size - len(request))
        if not part:
            raise EOFError
        request += part
    return [*json.loads(request.decode("utf-8", "surrogateescape")), streams]


def serve(address):
    """Answers requests until standard input ends; returns one in the process that is to run it."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(address)
    listener.listen(64)
    selector = selectors.DefaultSelector()
    selector.register(listener, selectors.EVENT_READ)
    selector.register(0, selectors.EVENT_READ)
    programs = {}
    """Clients with the processes that run for them, each as a descriptor and a number."""
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    while True:
        for key, _ in selector.select():
            if key.fileobj == 0:
                for _, pid in programs.values():
                    os.kill(pid, 9)
                os._exit(0)
            elif key.fileobj is listener:
                connection, _ = listener.accept()
                try:
                    request = received(connection)
                except (OSError, EOFError, ValueError):
                    connection.close()
                    continue
                pid = os.fork()
                if pid == 0:
                    selector.close()
                    for opened in (listener, connection, *programs):
                        opened.close()
                    for descriptor, _ in programs.values():
                        os.close(descriptor)
                    return request
                for descriptor in request[-1]:
                    os.close(descriptor)
                descriptor = os.pidfd_open(pid)
                programs[connection] = (descriptor, pid)
                selector.register(connection, selectors.EVENT_READ)
                selector.register(descriptor, selectors.EVENT_READ, connection)
                connection.sendall(pid.to_bytes(4, "big"))
            elif key.data is None:
                # The client is gone, and does not wait for its program any more.
                selector.unregister(key.fileobj)
                if key.fileobj in programs:
                    os.kill(programs[key.fileobj][1], 9)
            else:
                descriptor, pid = programs.pop(key.data)
                _, status = os.waitpid(pid, 0)
                selector.unregister(descriptor)
                os.close(descriptor)
                try:
                    selector.unregister(key.data)
                except KeyError:
                    pass
                try:
                    key.data.sendall(os.waitstatus_to_exitcode(status).to_bytes(4, "big", signed=True))
                except OSError:
                    pass
                key.data.close()


def become(arguments, environment, folder, streams, stash):
    """Makes this process what `python` is when it begins to run a program; returns the module of the program."""
    for number, descriptor in enumerate(streams):
        os.dup2(descriptor, number)
        os.close(descriptor)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    stash.hide()
    more = [path for path in environment.get("PYTHONPATH", "").split(os.pathsep) if path]
    sys.path[:] = [*more, *PATH]
    sys.path_importer_cache.clear()
    sys.modules.pop("sitecustomize", None)
    try:
        importlib.import_module("sitecustomize")
    except ImportError as error:
        if error.name != "sitecustomize":
            raise
    sys.orig_argv = [sys.executable, *arguments]
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    vars(main).update(__annotations__={}, __builtins__=builtins)
    if arguments[0] == "-c":
        sys.argv = ["-c", *arguments[2:]]
        sys.path.insert(0, "")
        vars(main).update(__loader__=importlib.machinery.BuiltinImporter)
    elif arguments[0] == "-m":
        sys.argv = arguments[1:]
        sys.path.insert(0, folder)
    else:
        sys.argv = arguments
        path = os.path.join(folder, arguments[0])
        sys.path.insert(0, os.path.dirname(os.path.realpath(path)))
        loader = importlib.machinery.SourceFileLoader("__main__", path)
        vars(main).update(__loader__=loader, __file__=path, __cached__=None)
    return main


def code_of(main):
    if not hasattr(main, "__file__"):
        return compile(sys.orig_argv[2], "<string>", "exec", dont_inherit=True)
    with open(main.__file__, "rb") as file:
        return compile(file.read(), main.__file__, "exec", dont_inherit=True)


def frames_of(program, traceback):
    """A traceback as Python shows it: from the program on."""
    while traceback is not None and traceback.tb_frame.f_globals is not program:
        traceback = traceback.tb_next
    return traceback


def run(main):
    """Runs the program, and returns the code that it exits with."""
    try:
        if sys.orig_argv[1] == "-m":
            runpy._run_module_as_main(sys.argv[0])
        else:
            exec(code_of(main), vars(main))
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return (end.code or 0) & 0xFF
        print(end.code, file=sys.stderr)
        return 1
    except BaseException as error:
        own = frames_of(vars(main), error.__traceback__)
        sys.last_type, sys.last_value, sys.last_traceback = type(error), error, own
        if sys.version_info >= (3, 12):
            sys.last_exc = error
        sys.excepthook(type(error), error.with_traceback(own), own)
        return -signal.SIGINT if isinstance(error, KeyboardInterrupt) else 1
    return 0


def end(main, code):
    """Ends as Python does, but leaves its objects alone: to free all those of torch takes longer than most programs."""
    for name in ("__file__", "__cached__"):
        vars(main).pop(name, None)
    threading._shutdown()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    if code == -signal.SIGINT:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    os._exit(code)


# Without the folder of the server.
PATH = sys.path[1:]
_, stash_path, address, *library = sys.argv
stash = imported(stash_path).Stash()
if library:
    ctypes.CDLL(library[0], mode=ctypes.RTLD_GLOBAL)
stash.add("torch")
stash.add("torch._dynamo")
# Otherwise it is due in each fork soon after it begins, and copies the memory of hundreds of thousands of objects.
gc.collect()
main = become(*serve(address), stash)
del stash
end(main, run(main))
