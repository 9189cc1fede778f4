"""Benchmarks: commands of their own, never timed tests; each prints ratios against a bare floor."""
