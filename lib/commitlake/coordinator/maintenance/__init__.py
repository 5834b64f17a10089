"""Old rows go, small files become few, unused files vanish."""

from __future__ import annotations
