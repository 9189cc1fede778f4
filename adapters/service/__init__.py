"""The node service: the composition root, and the manners of a daemon."""
