"""
The log on NATS JetStream: one stream, one pipe that appends, readers that check every step.

`log` opens the log of a node for its writer; `reader` replays it; `public` follows what everybody
may see.  Importing this package, or `claimlet.events`, imports no NATS client; these three do.
"""
