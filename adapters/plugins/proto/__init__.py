"""
The wire of DRA drivers: own `.proto` files and the descriptor set made from them.

`descriptors.binpb` is committed, so that neither an install nor a start needs a compiler;
`python -m tests.adapters.plugins.descriptors` makes it anew, and a test compares.
"""
