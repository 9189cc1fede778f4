"""
Facts and the log: what happened on a node, in order, and how it is stored.

Nothing here decides anything; `claimlet.engine` does.
"""
