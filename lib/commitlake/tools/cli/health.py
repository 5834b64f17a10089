"""The work of `commitlake doctor`."""

from __future__ import annotations

from dataclasses import asdict

from commitlake.config import Config
from commitlake.config.terminal import json_line, printable
from commitlake.tools.doctor import examine, verdict


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
