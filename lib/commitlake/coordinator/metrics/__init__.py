"""The state of a running coordinator for others: Prometheus metrics, `/healthz`.

Begin with `collect.py`. A new metric goes into docs/reference/metrics.md, and an alert of it into the runbook.
"""
