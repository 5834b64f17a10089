"""What a running coordinator says of itself: Prometheus metrics, `/healthz`, a log line for each round."""
