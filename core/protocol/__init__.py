"""What a state machine is: events, effects, tables, snapshots, random streams. No I/O."""
