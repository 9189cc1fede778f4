"""The control interface: a NATS micro service in the CONTROL account, and its client."""
