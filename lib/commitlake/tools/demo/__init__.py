"""The demo: an order service, and two that read its orders, around a coordinator. What `./spark-submit.sh` shows."""
