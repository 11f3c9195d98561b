"""Benchmarks: the runs of a plan, the engines that carry them out, and the folder that records them."""
