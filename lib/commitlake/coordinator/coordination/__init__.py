"""Landed rows go through the state machine, and its events to the tables, in the one order that survives a kill."""

from __future__ import annotations
