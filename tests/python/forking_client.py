# Stands in for `python`: has a server run the program, passes signals on to it, and ends as it does.
# forking.py puts the first lines in front. Imports little: it runs for every program of the tests.
import _socket
import json
import os
import signal
import sys

PYTHON, ADDRESS, AT_START, READ_AT_START, SET_PER_RUN, LIBRARY = SETTINGS  # noqa: F821
PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)


def can_be_forked(arguments, environment):
    if not arguments or (arguments[0].startswith("-") and (arguments[0] not in ("-c", "-m") or len(arguments) < 2)):
        return False
    at_start = {name: environment[name] for name in environment if name.startswith(READ_AT_START)}
    if any(at_start.get(name) != AT_START.get(name) for name in {*at_start, *AT_START} - {*SET_PER_RUN}):
        return False
    settings = environment.get("OOMPH_CHILD")
    return settings is None or json.loads(settings).get("library") == LIBRARY


def pass_on(number, frame):
    try:
        os.kill(program, number)
    except ProcessLookupError:
        pass


arguments, environment = sys.argv[1:], dict(os.environ)
if not can_be_forked(arguments, environment):
    os.execv(PYTHON, [PYTHON, *arguments])
connection = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
connection.connect(ADDRESS)
request = json.dumps([arguments, environment, os.getcwd()]).encode("utf-8", "surrogateescape")
streams = b"".join(number.to_bytes(4, sys.byteorder) for number in range(3))
connection.sendmsg([len(request).to_bytes(8, "big")], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, streams)])
while request:
    request = request[connection.send(request) :]
program = int.from_bytes(connection.recv(4), "big")
for number in PASSED_ON:
    if signal.getsignal(number) is not signal.SIG_IGN:
        signal.signal(number, pass_on)
answer = connection.recv(4)
# No answer: the server has ended.
code = int.from_bytes(answer, "big", signed=True) if answer else -signal.SIGKILL
if code < 0:
    signal.signal(-code, signal.SIG_DFL) if -code != signal.SIGKILL else None
    os.kill(os.getpid(), -code)
os._exit(code)
