"""The demo: an order service, and two that read its orders, around a coordinator; `./spark-submit.sh` runs it."""
