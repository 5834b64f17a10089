"""The demo: a small order service and a points service around a coordinator. What `./spark-submit.sh` shows."""
