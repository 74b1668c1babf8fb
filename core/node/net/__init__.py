"""Links between nodes: messages, transfers and their limits, over gRPC and MQTT."""
