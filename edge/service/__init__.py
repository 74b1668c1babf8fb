"""The edge's daemon: its links, its outbox, sums of masks."""
