"""
What operators set: settings with their defaults, and files to install.

Imports nothing of ours; only `claimlet.adapters` imports it.
"""
