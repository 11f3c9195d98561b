"""Benchmarks: protocols, plans of runs, their engine, and tables of what came out."""
