"""Tests; they mirror the folders of the sources and import them as `claimlet.<folder>`."""
