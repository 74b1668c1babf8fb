"""Delian: federated device-edge-cloud learning. `import delian as dl`."""
