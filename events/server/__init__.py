"""
The log's own nats-server: a child process on the node's loopback interface.

`locate` finds the program, `keys` keeps its users' seeds, `conf` writes its configuration, `locks`
and `process` see to it that there is never a second one on a store, `reading` lends it to commands.
Nothing here knows what a fact is.
"""
