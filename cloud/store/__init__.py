"""What the coordinator keeps: its tables, their migrations, and the journal of its nodes.

`database` opens a database and guards it against a second writer, `models` has the tables,
`journal` and `packs` make events durable, `records` turns the machine's facts into rows.
"""
