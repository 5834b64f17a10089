"""The streaming queries: landing, coordination, and what a start does before them."""
