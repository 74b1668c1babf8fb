"""The protobuf modules that are generated from `proto/`."""
