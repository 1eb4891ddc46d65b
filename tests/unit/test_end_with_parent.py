"""With real processes: what ends with its parent, and what does not."""

import os
import signal
import subprocess
import sys

import pytest

from tests.waiting import Processes

CHILD = """
import os, sys, threading
from speedtronic.liveness import end_with_parent
end_with_parent({parent})
print(os.getpid(), flush=True)
{then}
"""

# The parent starts the child from a thread that ends at once; the child inherits its pipe.
PARENT = """
import subprocess, sys, threading
def start():
    subprocess.Popen([sys.executable, "-c", sys.argv[1]])
thread = threading.Thread(target=start)
thread.start()
thread.join()
sys.stdin.read()
"""

FOR_EVER = "threading.Event().wait()"
BUSY = "while True: pass"


@pytest.mark.parametrize("then", [FOR_EVER, BUSY], ids=["idle", "busy"])
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_ends_with_its_parent(how: signal.Signals, then: str) -> None:
    child = CHILD.format(parent="os.getppid()", then=then)
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, child], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert parent.stdout is not None
    try:
        with Processes([int(parent.stdout.readline())]) as children:
            assert children.num_running() == 1
            parent.send_signal(how)
            parent.wait()
            assert children.end_within()
    finally:
        parent.kill()
        parent.communicate()


def test_outlives_the_thread_that_started_it() -> None:
    child = CHILD.format(parent="os.getppid()", then=FOR_EVER)
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, child], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert parent.stdout is not None
    try:
        with Processes([int(parent.stdout.readline())]) as children:
            assert not children.end_within(0.6)  # three polls
    finally:
        parent.kill()
        parent.communicate()


def test_ends_at_once_when_the_parent_is_another_already() -> None:
    child = CHILD.format(parent=-1, then="print('still here')")
    ended = subprocess.run([sys.executable, "-c", child], capture_output=True, timeout=20)
    assert ended.returncode == -signal.SIGKILL
    assert ended.stdout == b""


def test_a_living_parent_lets_the_process_end_by_itself() -> None:
    child = CHILD.format(parent=os.getpid(), then="sys.exit(3)")
    assert subprocess.run([sys.executable, "-c", child], timeout=20).returncode == 3
