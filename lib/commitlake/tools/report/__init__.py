"""A page about the last hours: one HTML file that needs no network."""
