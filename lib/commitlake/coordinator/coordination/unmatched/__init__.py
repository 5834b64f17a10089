"""Ops and parts whose first half message is not open: the ledger says what becomes of them."""

from __future__ import annotations
