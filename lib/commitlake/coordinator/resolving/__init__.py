"""Checks answered by a join with a business table, when no producer is alive to answer them."""
