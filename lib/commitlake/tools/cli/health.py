"""The work of `commitlake doctor`."""

from __future__ import annotations

import sys
from dataclasses import asdict

from commitlake.config import Config, disks
from commitlake.config.terminal import json_line, printable
from commitlake.tools.doctor import examine, verdict


def make_room(settings: Config) -> None:
    """Delete the ballast, and print where to read what to do next."""
    size = disks.free_ballast(settings)
    done = f"{size / 2**20:.0f} MiB are free again" if size else "there is no ballast: deleted, or not made yet"
    print(f"{done}; see {disks.REMEDY}", file=sys.stderr)


def doctor(settings: Config, as_json: bool) -> int:
    """Show whether all is well; 1 when something is not."""
    findings = list(examine(settings))
    overall = verdict(findings)
    for finding in (overall, *findings):
        if as_json:
            print(json_line(asdict(finding)))
        else:
            print(printable(f"{'ok  ' if finding.is_well else 'LOOK'}  {finding.what:12} {finding.detail}"))
    return int(not overall.is_well)
