"""Run a command, and end it when standard input closes: a child never outlives its parent, even one killed by -9.

Usage: parent_watch.py GRACE_SECONDS COMMAND... The script is started by path, so it uses the standard library only.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading


def main() -> int:
    """Run the command until it ends or standard input closes; return its exit code."""
    grace_s, command = float(sys.argv[1]), sys.argv[2:]
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: child.terminate())
    threading.Thread(target=_end_with_parent, args=(child, grace_s), daemon=True).start()
    return child.wait()


def _end_with_parent(child: subprocess.Popen[bytes], grace_s: float) -> None:
    while os.read(sys.stdin.fileno(), 4096):
        pass
    child.terminate()
    try:
        child.wait(grace_s)
    except subprocess.TimeoutExpired:
        child.kill()


if __name__ == "__main__":
    sys.exit(main())
