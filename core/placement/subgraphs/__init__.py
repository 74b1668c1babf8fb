"""Running the parts of a cut program on several tiers.

    machines/   which tier asks for what, without I/O: `asker` and `server`, events in, effects out
    frames/     streams of frames between two nodes, over gRPC or in envelopes over MQTT
    here        the drivers, which run machines with real programs and send frames

Machines know nothing of frames, frames nothing of machines. Cascades (`core/placement/cascade`) and
split training (`core/placement/split_training`) use what is here; nothing here knows them.
"""
