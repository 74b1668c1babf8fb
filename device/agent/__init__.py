"""The device's daemon: conditions, training processes, files, the gate of bundles."""
