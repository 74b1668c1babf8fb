"""The coordinator's daemon: the machine's driver, operators' calls, blobs, the signed record."""
