"""Links over MQTT 5: topics, sealed frames, transfers in parts, the broker."""
